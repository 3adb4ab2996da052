"""Tensors by pickle: by value, out of band where the protocol can, and never torn from their planes."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given
from strategies import bare_tensors, images, same_pixels

import tensorferry as ferry
from tensorferry import Labels, Plane, StorageKind, Tensor, Unsupported, blob
from tensorferry.tensor import Description


@given(bare_tensors() | images())
def test_any_tensor_by_any_protocol(t: Tensor) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(t.replace(labels=Labels(name="x")), protocol))
        assert same_pixels(back, t)
        assert back.labels == Labels(name="x")
        assert back.strides_given == t.strides_given


@given(bare_tensors() | images())
def test_planes_travel_out_of_band_without_a_copy(t: Tensor) -> None:
    t = t.replace(quantization=None)  # its arrays go out of band too
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(t, 5, buffer_callback=buffers.append)
    assert sum(buffer.raw().nbytes for buffer in buffers) == t.packed().nbytes
    back = pickle.loads(data, buffers=buffers)
    assert same_pixels(back, t)
    if t.packed() is t and t.plane(0).size:
        assert np.shares_memory(back.plane(0), t.plane(0))


def test_planar_images_stay_one_array() -> None:
    t = Tensor.image("rgb8_planar", 5, 3, np.arange(45, dtype=np.uint8))
    back = pickle.loads(pickle.dumps(t, 5))
    assert np.array_equal(back.numpy(), t.numpy())
    apart = ferry.loads(ferry.dumps(t))  # in a blob, records stand between the planes
    assert np.array_equal(pickle.loads(pickle.dumps(apart, 5)).plane(2), t.plane(2))


def test_what_a_format_carried_comes_along() -> None:
    wire = bytearray(ferry.dumps(np.zeros(3, np.uint8))) + b"appended"
    wire[:8] = len(wire).to_bytes(8, "little")
    back = pickle.loads(pickle.dumps(ferry.loads(wire), 5))
    assert blob.export(back)[0] == wire


def test_memory_that_cannot_be_read_cannot_be_pickled() -> None:
    away = Tensor(Description(ferry.DType.UINT8, (6,)), (Plane(None, 6, 6),), storage=StorageKind.CUDA)
    with pytest.raises(Unsupported, match="cannot be pickled"):
        pickle.dumps(away)


def doubled(t: Tensor) -> Tensor:
    return Tensor.from_array(t.numpy() * 2, labels=t.labels)


def test_through_a_pool_of_processes() -> None:
    t = Tensor.from_array(np.arange(6, dtype=np.int32).reshape(2, 3), labels=Labels(seq=4))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        back = pool.submit(doubled, t).result(timeout=60)
    assert back.numpy().tolist() == [[0, 2, 4], [6, 8, 10]]
    assert back.labels == Labels(seq=4)

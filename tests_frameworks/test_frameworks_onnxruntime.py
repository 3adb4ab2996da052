"""ONNX Runtime takes what was received, and writes where it is told to, without a copy."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from frameworks_peers import GUARD, address, arange, over_a_link, scaling_model, shared
from onnx import TensorProto

import tensorferry as ferry
from tensorferry.link import Link, Pool

TYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]


@pytest.fixture(scope="module")
def session() -> Any:
    return ort.InferenceSession(scaling_model(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_value_over_received_memory(dtype: str) -> None:
    values = arange((3, 5), dtype)
    received = ferry.loads(ferry.dumps(values, format="vlink"))
    assert address(ort.OrtValue.ortvalue_from_numpy(received.numpy())) == address(received)
    if dtype != "bool":
        with over_a_link(shared(values)) as t:
            assert address(ort.OrtValue.ortvalue_from_numpy(t.numpy())) == address(t)
            with pytest.raises(BufferError, match="readonly"):  # it asks for a DLPack that cannot say so
                ort.OrtValue.from_dlpack(t)
        with over_a_link(shared(values), writable=True) as t:
            assert address(ort.OrtValue.from_dlpack(t)) == address(t)


def test_bfloat16() -> None:
    received = ferry.loads(ferry.dumps(ferry.allocate((2, 3), "bfloat16"), format="vlink"))
    with pytest.raises(RuntimeError, match="numpy"):
        ort.OrtValue.ortvalue_from_numpy(received.numpy())
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(received.numpy().view(np.uint16), TensorProto.BFLOAT16)
    assert value.data_type() == "tensor(bfloat16)"
    assert address(value) == address(received)
    back = ferry.Tensor.from_array(value)
    assert back.dtype == "bfloat16"
    assert address(back) == address(received)
    mine = ferry.allocate((2, 3), "bfloat16")
    assert address(ort.OrtValue.from_dlpack(mine)) == address(mine)


def test_gaps_are_copied() -> None:
    t = ferry.Tensor.from_array(np.zeros((4, 8), np.float32)[:, ::2])
    assert address(ort.OrtValue.ortvalue_from_numpy(t.numpy())) != address(t)


def test_a_session_on_a_received_image(session: Any) -> None:
    a, b = Link.pair()
    with a, b, Pool.of_images("rgb8", 48, 32, 1) as frames, Pool((32, 48, 3), "float32", 1) as results:
        with frames.acquire(GUARD) as frame:
            frame.numpy()[...] = arange(frame.shape, "uint8")
            a.send(frame)
        with b.recv(GUARD) as t, results.acquire(GUARD) as out:
            expected = t.numpy() / np.float32(255)
            binding = session.io_binding()
            value = ort.OrtValue.ortvalue_from_numpy(t.numpy())
            assert address(value) == address(t)
            binding.bind_ortvalue_input("x", value)
            binding.bind_output("y", "cpu", 0, np.float32, out.shape, address(out))
            session.run_with_iobinding(binding)
            assert address(binding.get_outputs()[0]) == address(out)
            assert np.array_equal(out.numpy(), expected)
            b.send(out)
            del binding, value
        with a.recv(GUARD) as back:
            assert back.storage is ferry.StorageKind.SHM
            assert np.array_equal(back.numpy(), expected)


def test_an_input_by_address(session: Any) -> None:
    with over_a_link(shared(arange((2, 3, 3), "uint8"))) as t:
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, np.uint8, t.shape, address(t))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        (y,) = binding.get_outputs()
        assert np.array_equal(y.numpy(), t.numpy() / np.float32(255))


def test_an_output_is_taken_where_it_stands(session: Any) -> None:
    pixels = arange((4, 4, 3), "uint8")
    (y,) = session.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(pixels)})
    t = ferry.Tensor.from_array(y)
    assert address(t) == address(y)
    del y
    gc.collect()
    for k in range(20):  # its memory is not used again
        session.run(["y"], {"x": np.full_like(pixels, k)})
    assert np.array_equal(t.numpy(), pixels / np.float32(255))
    with over_a_link(t) as back:
        assert np.array_equal(back.numpy(), t.numpy())


def test_run_takes_arrays_not_tensors(session: Any) -> None:
    with over_a_link(shared(arange((2, 3, 3), "uint8"))) as t:
        assert np.array_equal(session.run(["y"], {"x": t.numpy()})[0], t.numpy() / np.float32(255))
        with pytest.raises(RuntimeError, match="Unable to handle"):
            session.run(["y"], {"x": t})


def test_the_buffer_is_lent_as_long_as_a_value_looks() -> None:
    a, b = Link.pair()
    with a, b, Pool((4,), "float32", 1) as pool:
        with pool.acquire(GUARD) as frame:
            a.send(frame)
        with b.recv(GUARD) as t:
            value = ort.OrtValue.ortvalue_from_numpy(t.numpy())
        del t
        gc.collect()
        with pytest.raises(ferry.TimedOut):
            pool.acquire(0)
        del value
        gc.collect()
        pool.acquire(GUARD).close()

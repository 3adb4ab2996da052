"""What moves Python objects: which bytes are pickled, which go beside the pickle, which never move."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from typing import Any

import joblib
import numpy as np
import pytest
from distributed.protocol import deserialize, serialize
from frameworks_peers import address, inode, over_a_link, seen_elsewhere, shared, storage_elsewhere
from joblib.externals.loky.backend import reduction as loky

import tensorferry as ferry

SHAPE = (1080, 1920, 3)
FRAME = 1080 * 1920 * 3
SMALL = 1024
"""Bytes that a description may take in a pickle."""


@pytest.fixture(params=["array", "link", "bytes"])
def frame(request: pytest.FixtureRequest) -> Any:
    """A frame from an array, over a link, and from a blob."""
    values = np.full(SHAPE, 3, np.uint8)
    if request.param == "array":
        yield ferry.Tensor.from_array(values)
    elif request.param == "bytes":
        yield ferry.loads(ferry.dumps(values))
    else:
        with over_a_link(shared(values)) as t:
            yield t


def test_protocol_5_leaves_the_planes_out(frame: ferry.Tensor) -> None:
    beside: list[pickle.PickleBuffer] = []
    inband = pickle.dumps(frame, 5, buffer_callback=beside.append)
    assert len(inband) < SMALL
    assert [buffer.raw().nbytes for buffer in beside] == [FRAME]
    assert address(pickle.loads(inband, buffers=beside)) == address(frame)


def test_dask_sends_the_planes_as_frames_of_their_own(frame: ferry.Tensor) -> None:
    header, frames = serialize(frame)
    sizes = [memoryview(part).nbytes for part in frames]
    assert sizes[0] < SMALL
    assert sizes[1:] == [FRAME]
    back = deserialize(header, frames)
    assert address(back) == address(frame)


def test_multiprocessing_pickles_values_or_passes_a_descriptor() -> None:
    by_value = ForkingPickler.dumps(ferry.Tensor.from_array(np.zeros(SHAPE, np.uint8)))
    assert FRAME < len(by_value) < FRAME + SMALL
    by_descriptor = ForkingPickler.dumps(ferry.allocate(SHAPE, "uint8", storage="shm"))
    assert len(by_descriptor) < SMALL


# fork is for tests/memory: beside JAX it may deadlock.
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_shared_tensor_is_the_same_file_elsewhere(method: str) -> None:
    t = ferry.allocate(SHAPE, "uint8", storage="shm")
    with ProcessPoolExecutor(1, mp_context=get_context(method)) as workers:
        for k in (1, 2):
            there, storage, pid = workers.submit(seen_elsewhere, t).result(timeout=120)
            assert (there, storage) == (inode(t), "shm")
            assert pid != os.getpid()
            assert t.numpy().min() == t.numpy().max() == k


def test_a_received_tensor_goes_on_by_descriptor() -> None:
    with over_a_link(shared(np.full((8, 8), 2, np.uint8))) as t:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as workers:
            storage, total, _ = workers.submit(storage_elsewhere, t).result(timeout=120)
        assert (storage, total) == ("shm", 128)


def test_joblib_pickles_tensors_whole_and_maps_large_arrays() -> None:
    """loky has no buffers beside its pickle, and its own pickler knows no descriptors of ours."""
    for t in (ferry.Tensor.from_array(np.ones(SHAPE, np.uint8)), shared(np.ones(SHAPE, np.uint8))):
        assert FRAME < len(loky.dumps(t)) < FRAME + SMALL
        with joblib.parallel_config(backend="loky", n_jobs=2):
            found = joblib.Parallel()(joblib.delayed(storage_elsewhere)(t) for _ in range(2))
        assert {(storage, total) for storage, total, _ in found} == {("mem", FRAME)}

        def kind(array: Any) -> tuple[str, bool]:
            return type(array).__name__, array.flags.writeable

        found = joblib.Parallel(n_jobs=2)(joblib.delayed(kind)(t.numpy()) for _ in range(2))
        assert found == [("memmap", False)] * 2


def test_joblibs_threads_take_the_tensor_itself() -> None:
    t = shared(np.ones(SHAPE, np.uint8))
    found = joblib.Parallel(n_jobs=2, backend="threading")(joblib.delayed(address)(t) for _ in range(2))
    assert found == [address(t)] * 2

"""PyTorch takes what was received, and gives it back, without a copy; and where it cannot be trusted."""

from __future__ import annotations

import gc
import signal

import numpy as np
import pytest
import torch
from frameworks_peers import GUARD, address, arange, over_a_link, run_alone, shared

import tensorferry as ferry
from tensorferry.link import Link, Pool

NUMBERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
"""What both formats carry, and torch has."""


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_tensor_over_a_link(dtype: str) -> None:
    with over_a_link(shared(arange((3, 5), dtype))) as t:
        x = torch.from_dlpack(t)
        assert x.data_ptr() == address(t)
        assert np.array_equal(x.numpy(), t.numpy())
        assert str(x.dtype) == f"torch.{t.dtype}"


@pytest.mark.parametrize(
    ("dtype", "format"), [("bool", "vlink"), *((dtype, format) for dtype in NUMBERS for format in ("blob", "vlink"))]
)
def test_a_tensor_from_bytes(dtype: str, format: str) -> None:
    t = ferry.loads(ferry.dumps(arange((2, 3, 4), dtype), format=format))
    for take in (torch.from_dlpack, torch.as_tensor):
        x = take(t)
        assert x.data_ptr() == address(t)
        assert np.array_equal(x.numpy(), t.numpy())


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_from_numpy_too() -> None:
    t = ferry.loads(ferry.dumps(arange((2, 3), "float32")))
    assert torch.from_numpy(t.numpy()).data_ptr() == address(t)


def test_bfloat16_both_ways() -> None:
    mine = torch.arange(-3, 3, dtype=torch.bfloat16).reshape(2, 3)
    lent = ferry.Tensor.from_array(mine)
    assert lent.dtype == "bfloat16"
    assert address(lent) == mine.data_ptr()
    back = torch.from_dlpack(lent)
    assert back.dtype is torch.bfloat16
    assert back.data_ptr() == mine.data_ptr()
    arrived = ferry.loads(ferry.dumps(lent, format="vlink"))
    taken = torch.from_dlpack(arrived)
    assert taken.data_ptr() == address(arrived)
    assert torch.equal(taken, mine)
    with pytest.raises(ferry.Lossy, match="bfloat16"):
        ferry.dumps(mine)


def test_bfloat16_in_shared_memory() -> None:
    t = ferry.allocate((2, 3), "bfloat16", storage="shm")
    x = torch.from_dlpack(t)
    x.fill_(1.5)
    assert x.data_ptr() == address(t)
    assert (t.numpy() == 1.5).all()


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.arange(24.0).reshape(2, 3, 4),
        lambda: torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        lambda: torch.arange(24.0)[::2],
        lambda: torch.ones(1, 3).expand(5, 3),
        lambda: torch.tensor(4.0),
        lambda: torch.ones(3, requires_grad=True).detach(),
        lambda: torch.arange(24, dtype=torch.int16)[5:],
    ],
)
def test_torch_gives_its_memory(made) -> None:
    x = made()
    t = ferry.Tensor.from_array(x)
    assert address(t) == x.data_ptr()
    assert t.numpy().flags.writeable
    assert np.array_equal(t.numpy(), x.numpy())


def test_a_gradient_is_refused_and_says_how() -> None:
    with pytest.raises(ferry.Unsupported, match=r"\.detach\(\)"):
        ferry.Tensor.from_array(torch.ones(3, requires_grad=True))


def test_planes_of_a_semi_planar_image() -> None:
    image = ferry.allocate_image("NV12", 64, 32, storage="shm")
    image.plane(0)[...] = 7
    image.plane(1)[...] = 9
    with over_a_link(image) as t:
        for i in range(2):
            plane = torch.from_dlpack(t.plane(i))
            assert plane.data_ptr() == address(t.plane(i))
            assert (plane == (7, 9)[i]).all()


def test_a_models_output_goes_back_over_the_link() -> None:
    a, b = Link.pair()
    with a, b, Pool.of_images("rgb8", 48, 32, 2) as pool, torch.inference_mode():
        model = torch.nn.Conv2d(3, 4, 3, padding=1).eval()
        with pool.acquire(GUARD) as frame:
            frame.numpy()[...] = arange(frame.shape, "uint8")
            a.send(frame)
        with b.recv(GUARD) as t:
            x = torch.from_dlpack(t).permute(2, 0, 1)[None]
            assert x.data_ptr() == address(t)
            result = model(x.float().div(255))
            b.send(result)  # inline: the model's memory has no descriptor
            del x
        with a.recv(GUARD) as got:
            assert np.array_equal(got.numpy(), result.numpy())


def test_torch_writes_into_a_pools_buffer() -> None:
    a, b = Link.pair()
    with a, b, Pool((2, 3), "float32", 1) as pool:
        with pool.acquire(GUARD) as out:
            view = torch.from_dlpack(out)
            assert view.data_ptr() == address(out)
            torch.mul(torch.ones(2, 3), 3, out=view)
            assert view.data_ptr() == address(out)
            a.send(out)
            del view
        with b.recv(GUARD) as t:
            assert t.storage is ferry.StorageKind.SHM
            assert (t.numpy() == 3).all()
        pool.acquire(GUARD).close()


def test_the_buffer_is_lent_as_long_as_torch_looks() -> None:
    a, b = Link.pair()
    with a, b, Pool((4,), "float32", 1) as pool:
        with pool.acquire(GUARD) as frame:
            frame.numpy()[:] = 5
            a.send(frame)
        t = b.recv(GUARD)
        x = torch.from_dlpack(t)[1:].view(3, 1)
        with pytest.raises(ferry.InUse):
            t.close()
        with t:
            pass
        del t
        gc.collect()
        with pytest.raises(ferry.TimedOut):
            pool.acquire(0)
        assert (x == 5).all()
        del x
        gc.collect()
        pool.acquire(GUARD).close()


def test_torch_memory_lives_as_long_as_the_tensor() -> None:
    x = torch.full((1000,), 3.0)
    t = ferry.Tensor.from_array(x)
    del x
    gc.collect()
    torch.zeros(1000)
    assert (t.numpy() == 3).all()


READ_ONLY = """
import sys, numpy as np, torch, tensorferry as ferry
from tensorferry.link import Link
a, b = Link.pair(writable=sys.argv[1] == "writable")
t = ferry.allocate(4, "float32", storage="shm")
a.send(t)
r = b.recv(60)
torch.from_dlpack(r).add_(1)
assert t.numpy().tolist() == [1, 1, 1, 1]
"""


def test_torch_ignores_read_only() -> None:
    """Writing to a read-only mapping is a segmentation fault: the docs say so."""
    assert run_alone(READ_ONLY, "read-only").returncode == -signal.SIGSEGV
    assert run_alone(READ_ONLY, "writable").returncode == 0
    data = ferry.dumps(np.zeros(4, np.float32))
    torch.from_dlpack(ferry.loads(data)).add_(1)
    assert ferry.loads(data).numpy().tolist() == [1, 1, 1, 1]  # bytes, changed


BACKWARDS = """
import sys, numpy as np, torch, tensorferry as ferry
t = ferry.Tensor.from_array(np.arange(6, dtype=np.float32)[::-1])
x = getattr(torch, sys.argv[1])(t if sys.argv[2] == "ours" else t.numpy())
"""


@pytest.mark.parametrize("call", ["from_dlpack", "as_tensor", "asarray"])
def test_negative_strides_abort_torch(call: str) -> None:
    """Should this fail one day, torch has learnt to refuse or to take them, and the docs can forget it."""
    assert run_alone(BACKWARDS, call, "ours").returncode == -signal.SIGABRT
    assert run_alone(BACKWARDS, "from_dlpack", "NumPy's own").returncode == -signal.SIGABRT


def test_packed_negative_strides() -> None:
    t = ferry.Tensor.from_array(np.arange(6, dtype=np.float32)[::-1])
    assert torch.from_dlpack(t.packed()).tolist() == [5, 4, 3, 2, 1, 0]

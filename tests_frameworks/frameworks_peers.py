"""What the tests of frameworks share: tensors that have come from elsewhere, and where memory stands."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorferry as ferry
from tensorferry.link import Link

GUARD = 60.0
"""Seconds after which something hangs; no test passes or fails by anything shorter."""

Array = npt.NDArray[Any]


def address(memory: Any) -> int:
    """Where element 0 stands in memory: of a Tensor, an ndarray, a torch tensor, a jax array or an OrtValue."""
    for name in ("data_ptr", "unsafe_buffer_pointer"):
        if hasattr(memory, name):
            return int(getattr(memory, name)())
    array = memory.numpy() if isinstance(memory, ferry.Tensor) else memory
    return int(array.__array_interface__["data"][0])


@contextlib.contextmanager
def over_a_link(tensor: ferry.Tensor | Array, **options: Any) -> Iterator[ferry.Tensor]:
    """``tensor`` as a receiver has it: shared memory mapped read-only, unless ``writable`` is asked for."""
    sender, receiver = Link.pair(**options)
    with sender, receiver:
        sender.send(tensor)
        yield receiver.recv(GUARD)


def shared(values: Array) -> ferry.Tensor:
    """``values`` in shared memory, of which a link hands over the descriptor."""
    tensor = ferry.allocate(values.shape, values.dtype, storage="shm")
    tensor.numpy()[...] = values
    return tensor


def fd_of(tensor: ferry.Tensor) -> int:
    handle = tensor.planes[0].handle
    assert handle is not None
    return handle.fileno()


def inode(tensor: ferry.Tensor) -> tuple[int, int]:
    """The file that a shared tensor's memory is, whatever process asks."""
    status = os.fstat(fd_of(tensor))
    return status.st_dev, status.st_ino


def seen_elsewhere(tensor: ferry.Tensor) -> tuple[tuple[int, int], str, int]:
    """Add 1 in place; the memory's file, its storage, and this process. Runs in a child."""
    tensor.numpy()[...] += 1
    return inode(tensor), str(tensor.storage), os.getpid()


def storage_elsewhere(tensor: ferry.Tensor) -> tuple[str, int, int]:
    """How a tensor arrived: its storage, its sum, and this process. Runs in a child."""
    return str(tensor.storage), int(tensor.numpy().sum()), os.getpid()


def arange(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def scaling_model() -> bytes:
    """A model: pixels h×w×3 of uint8 in, the same over 255 as float32 out."""
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.UINT8, ["h", "w", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["h", "w", 3])
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT), helper.make_node("Div", ["c", "s"], ["y"])]
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [255.0])
    graph = helper.make_graph(nodes, "scaled", [x], [y], [scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def run_alone(script: str, *arguments: str) -> Any:
    """``script`` in a Python of its own, which may die: its exit status (negative: the signal) and its output."""
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=GUARD * 4)

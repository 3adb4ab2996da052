"""Foreign kinds: plug-ins that open what Python cannot, found by registration or by entry point."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from descriptors import memfd, none_left, refers_to
from references import by_reference, changed, records

import tensorferry as ferry
from tensorferry import Malformed, StorageKind, Tensor, Unsupported, blob, memory
from tensorferry.blob import BlobPlane, D3D11Handle
from tensorferry.memory import ForeignPlane, Importer

SHM, DMA_BUF, IO_SURFACE, PBO, CUDA, TOMORROW = 1, 2, 3, 4, 5, 77
IPC = bytes(range(64))
TEXTURE = D3D11Handle(0x1234, 0x5678, 9).pack()


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    yield
    for kind in (*StorageKind, TOMORROW):
        memory.unregister(kind)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> list[importlib.metadata.EntryPoint]:
    """The entry points that are installed: none, until a test adds some."""
    points: list[importlib.metadata.EntryPoint] = []

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return points


def foreign(kind: int, handle_bytes: bytes = b"", handle: int = 0, offset: int = 0, count: int = 6) -> bytes:
    """A blob of uint8 [count] whose plane is in memory of ``kind``."""
    wire, _ = by_reference(ferry.allocate(count, "uint8", storage="shm"))
    return changed(
        wire,
        [BlobPlane(handle, offset, count, count, count, handle_bytes=handle_bytes)],
        storage_kind=kind,
        pid=4242,
    )


ARRIVALS: dict[str, tuple[StorageKind | int, bytes, int | str]] = {
    "a CUDA handle": (StorageKind.CUDA, foreign(CUDA, IPC), "64 handle bytes"),
    "a D3D11 texture": (StorageKind.D3D11, foreign(DMA_BUF, TEXTURE), "24 handle bytes"),
    "an IOSurface id": (StorageKind.IO_SURFACE, foreign(IO_SURFACE, handle=9001), "handle 9001"),
    "an unknown kind's bytes": (TOMORROW, foreign(TOMORROW, b"opaque"), "6 handle bytes"),
    "an unknown kind's number": (TOMORROW, foreign(TOMORROW, handle=3), "handle 3"),
}


@pytest.mark.parametrize("what", ARRIVALS)
def test_without_an_importer_the_refusal_says_all_that_is_needed(what: str) -> None:
    kind, wire, arrived = ARRIVALS[what]
    name = repr(str(kind)) if isinstance(kind, StorageKind) else repr(kind)
    with none_left():
        for _ in range(2):  # the second time the blob is a remembered one
            with pytest.raises(Unsupported) as caught:
                blob.import_(wire)
            message = str(caught.value)
            assert f"of kind {kind!s} arrived ({arrived}, 6 bytes from 0)" in message
            assert f"tensorferry.memory.register({name}, importer)" in message
            assert "entry point in 'tensorferry.importers'" in message
            assert (caught.value.field, caught.value.value) == ("storage_kind", kind)


class Recorder:
    """An importer that notes what arrived and returns what it was given."""

    def __init__(self, opened: object) -> None:
        self.opened = opened
        self.seen: list[ForeignPlane] = []

    def __call__(self, arrived: ForeignPlane) -> object:
        self.seen.append(arrived)
        return self.opened


@pytest.mark.parametrize("what", ARRIVALS)
def test_an_importer_gets_all_that_arrived(what: str) -> None:
    kind, wire, _ = ARRIVALS[what]
    importer = Recorder(b"abcdef")
    memory.register(kind, importer)
    for _ in range(2):
        t = blob.import_(wire)
        assert bytes(t.numpy()) == b"abcdef"
        assert t.storage == "mem"  # the host reads it
    (record,) = records(wire)
    handle = record.handle
    wanted = ForeignPlane(kind, bytes(record.handle_bytes), None, handle, 0, 6, 6, 0, 4242)
    assert importer.seen == [wanted, wanted]
    memory.unregister(kind)
    memory.unregister(kind)
    with pytest.raises(Unsupported):
        blob.import_(wire)


def test_a_texture_is_taken_apart_by_its_importer() -> None:
    def importer(arrived: ForeignPlane) -> object:
        assert D3D11Handle.unpack(arrived.handle_bytes) == (0x1234, 0x5678, 9)
        return bytes(6)

    memory.register("d3d11", importer)
    assert blob.import_(foreign(DMA_BUF, TEXTURE)).numpy().tolist() == [0] * 6


def test_an_importer_may_use_the_descriptor_that_came() -> None:
    def importer(arrived: ForeignPlane) -> object:
        assert arrived.fd is not None
        assert refers_to(arrived.fd) == refers_to(fd)
        return ferry.from_fd(arrived.fd, (arrived.offset + arrived.size,), "uint8").numpy()

    with memfd(b"..abcdef") as fd, none_left():
        memory.register(TOMORROW, importer)
        t = blob.import_(foreign(TOMORROW, handle=1, offset=2), [0, fd])
        assert bytes(t.numpy()) == b"abcdef"
        del t


LENDERS: dict[str, Callable[[bytes], object]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "array": lambda data: np.frombuffer(data, np.uint8),
    "array of floats": lambda data: np.frombuffer(data, np.float32).reshape(2, 1),
    "dlpack": lambda data: Tensor.from_array(np.frombuffer(data, np.uint8).copy()),
}


@pytest.mark.parametrize("lender", LENDERS)
@pytest.mark.parametrize("offset", [0, 2])
def test_host_memory_in_any_form(lender: str, offset: int) -> None:
    memory.register("cuda", Recorder(LENDERS[lender](b"abcdefgh")))
    t = blob.import_(foreign(CUDA, IPC, offset=offset))
    assert bytes(t.numpy()) == b"abcdefgh"[offset : offset + 6]
    assert not t.numpy().flags.writeable
    assert bytes(blob.import_(blob.export(t)[0]).numpy()) == bytes(t.numpy())


def test_host_memory_is_written_through_when_asked() -> None:
    data = bytearray(b"abcdef")
    memory.register("cuda", Recorder(data))
    blob.import_(foreign(CUDA, IPC), writable=True).numpy()[:] = 1
    assert data == b"\1" * 6
    memory.unregister("cuda")
    memory.register("cuda", Recorder(bytes(data)))
    assert not blob.import_(foreign(CUDA, IPC), writable=True).numpy().flags.writeable


@pytest.mark.parametrize("opened", [b"abcde", np.zeros((6, 6), np.uint8)[:, :2], np.zeros(12, np.uint8)[::2]])
def test_importers_that_give_too_little_or_gaps(opened: Any) -> None:
    memory.register("cuda", Recorder(opened))
    with pytest.raises(Unsupported, match="the importer for cuda gave"):
        blob.import_(foreign(CUDA, IPC))


class OnDevice:
    """What a GPU library gives: an array that says by DLPack that it is not on the host."""

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("not on the host")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.mark.parametrize("opened", [object(), OnDevice(), types.SimpleNamespace(__cuda_array_interface__={})])
def test_memory_that_only_a_device_sees(opened: object) -> None:
    memory.register("cuda", Recorder(opened))
    t = blob.import_(foreign(CUDA, IPC, offset=8))
    (plane,) = t.planes
    assert (t.storage, plane.data, plane.offset, plane.size) == ("cuda", None, 8, 6)
    assert plane.handle is opened
    assert t.shape == (6,)
    with pytest.raises(Unsupported, match="cuda memory that this process cannot read"):
        t.numpy()
    with pytest.raises(Unsupported):
        blob.export(t)
    with pytest.raises(Unsupported):
        by_reference(t)
    with t.cpu_access("read"):
        pass
    t.close()


def test_what_has_no_number_in_the_published_table_is_not_written() -> None:
    """A D3D11 texture that somehow has a descriptor: refused, not a KeyError."""
    with memfd(b"abcdef") as fd:
        memory.register("d3d11", Recorder(types.SimpleNamespace(fileno=lambda: fd)))
        t = blob.import_(foreign(DMA_BUF, TEXTURE))
        assert t.storage == "d3d11"
        with pytest.raises(Unsupported, match="no handle to pass on"):
            by_reference(t)


def test_used_bytes_are_kept() -> None:
    memory.register("cuda", Recorder(b"abcdef"))
    wire = foreign(CUDA, IPC)
    (record,) = records(wire)
    record.used = 4
    assert blob.import_(changed(wire, [record])).planes[0].used == 4


def test_images_are_opened_plane_by_plane() -> None:
    image, _ = by_reference(ferry.allocate_image("NV12", 4, 4, storage="shm"))
    planes = [BlobPlane(0, 0, 4, 16, 16, handle_bytes=IPC), BlobPlane(0, 16, 4, 8, 8, handle_bytes=IPC[::-1])]
    importer = Recorder(bytes(range(24)))
    memory.register("cuda", importer)
    t = blob.import_(changed(image, planes, storage_kind=CUDA))
    assert [seen.handle_bytes for seen in importer.seen] == [IPC, IPC[::-1]]
    assert t.plane(0).tolist() == np.arange(16).reshape(4, 4).tolist()
    assert t.plane(1).tolist() == np.arange(16, 24).reshape(2, 4).tolist()


def test_an_importers_own_error_is_its_own() -> None:
    def importer(arrived: ForeignPlane) -> object:
        raise RuntimeError("driver says no")

    memory.register("cuda", importer)
    with none_left(), pytest.raises(RuntimeError, match="driver says no"):
        blob.import_(foreign(CUDA, IPC))


# ---- handles that cannot be ----


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        (foreign(SHM, IPC), "handle_bytes"),
        (foreign(0, TEXTURE), "handle_bytes"),
        (foreign(DMA_BUF, IPC), "handle_bytes"),
        (foreign(DMA_BUF, TEXTURE[:23]), "handle_bytes"),
        (foreign(DMA_BUF, D3D11Handle(1).pack()[:16] + b"\1" + bytes(7)), "handle_bytes"),  # a value, and no fence
        (foreign(CUDA, IPC[:63]), "handle_bytes"),
        (foreign(CUDA, IPC + b"x"), "handle_bytes"),
        (foreign(CUDA), "handle"),  # no bytes, and no descriptor came
        (foreign(PBO, handle=2), "handle"),
    ],
)
def test_contradictions(wire: bytes, field: str) -> None:
    for kind in StorageKind:
        memory.register(kind, lambda _: pytest.fail("opened"))
    for _ in range(2):
        with pytest.raises(Malformed) as caught:
            blob.import_(wire)
        assert caught.value.field == field


def test_a_fence_is_refused_for_foreign_memory_too() -> None:
    memory.register("cuda", Recorder(b"abcdef"))
    wire = changed(foreign(CUDA, IPC), fence_fd=0)
    with pytest.raises(Unsupported, match="someone may still be writing"):
        blob.import_(wire)
    assert bytes(blob.import_(wire, fence="ignore").numpy()) == b"abcdef"


# ---- registering ----


def test_one_importer_a_kind() -> None:
    memory.register("cuda", Recorder(b""))
    for kind in ("cuda", StorageKind.CUDA):
        with pytest.raises(ValueError, match="cuda is registered already"):
            memory.register(kind, Recorder(b""))
    memory.register(TOMORROW, Recorder(b""))
    with pytest.raises(ValueError, match="77 is registered already"):
        memory.register(TOMORROW, Recorder(b""))
    with pytest.raises(ValueError, match="vulkan"):
        memory.register("vulkan", Recorder(b""))


def plug_in(name: str, importer: Importer, monkeypatch: pytest.MonkeyPatch) -> importlib.metadata.EntryPoint:
    """An installed distribution's entry point for the kind ``name``."""
    module: Any = types.ModuleType(f"plug_in_{name}")
    module.importer = importer
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return importlib.metadata.EntryPoint(name, f"{module.__name__}:importer", "tensorferry.importers")


@pytest.mark.parametrize("what", ARRIVALS)
def test_installed_importers_are_found(
    what: str, installed: list[importlib.metadata.EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, wire, _ = ARRIVALS[what]
    right, wrong = Recorder(b"abcdef"), Recorder(b"wrong!")
    elsewhere = importlib.metadata.EntryPoint(str(kind), "nowhere:importer", "another.group")
    installed += [elsewhere, plug_in("other", wrong, monkeypatch), plug_in(str(kind), right, monkeypatch)]
    assert bytes(blob.import_(wire).numpy()) == b"abcdef"
    installed.clear()  # found once, it is known
    assert bytes(blob.import_(wire).numpy()) == b"abcdef"
    assert (len(right.seen), wrong.seen) == (2, [])


def test_a_registered_importer_goes_before_an_installed_one(
    installed: list[importlib.metadata.EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.append(plug_in("cuda", Recorder(b"installed"), monkeypatch))
    memory.register("cuda", Recorder(b"registered"))
    assert bytes(blob.import_(foreign(CUDA, IPC)).numpy()) == b"regist"


def test_an_installed_importer_that_cannot_be_loaded(installed: list[importlib.metadata.EntryPoint]) -> None:
    installed.append(importlib.metadata.EntryPoint("cuda", "no_such_module:importer", "tensorferry.importers"))
    with pytest.raises(Unsupported, match="'no_such_module:importer' cannot be loaded: ModuleNotFoundError"):
        blob.import_(foreign(CUDA, IPC))

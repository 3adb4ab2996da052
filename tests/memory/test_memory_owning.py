"""Who owns memory and descriptors: closed once, on every path; views keep what they look at."""

from __future__ import annotations

import gc
import os
import resource
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from descriptors import memfd, none_left, open_descriptors, refers_to

import tensorferry as ferry
from tensorferry import Closed, InUse, Labels, Tensor, Unsupported, blob
from tensorferry.blob import TransportMode
from tensorferry.memory import Descriptor, Region


def shared(values: int = 6) -> Tensor:
    t = ferry.allocate(values, "uint8", storage="shm")
    t.numpy()[:] = np.arange(values)
    return t


def inode(t: Tensor) -> str:
    handle = t.planes[0].handle
    assert handle is not None
    return str(os.fstat(handle.fileno()).st_ino)


def is_mapped(inode: str) -> bool:
    return any(line.split()[4] == inode for line in Path("/proc/self/maps").read_text().splitlines())


# ---- closing ----


def test_closing_unmaps_and_closes() -> None:
    with none_left():
        t = shared()
        memory = inode(t)
        assert is_mapped(memory)
        t.close()
        assert not is_mapped(memory)
        t.close()
        for look in (t.numpy, lambda: t.planes, lambda: t.nbytes, lambda: t.plane(0), lambda: t.replace(labels=None)):
            with pytest.raises(Closed):
                look()
        assert "closed" in repr(t)
        assert t.shape == (6,)  # what it said, it says


VIEWS: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda t: t.numpy(),
    "plane": lambda t: t.plane(0),
    "slice": lambda t: t.numpy()[2:4],
    "asarray": np.asarray,
    "memoryview": lambda t: memoryview(t.planes[0].data or b""),
    "memoryview slice": lambda t: (t.planes[0].data or memoryview(b""))[2:3],
    "memoryview of the array": lambda t: t.numpy().data,
    "dlpack": np.from_dlpack,
    "capsule": lambda t: t.__dlpack__(),
    "frombuffer": lambda t: np.frombuffer(t.planes[0].data or b"", np.uint8),
    "tensor over the array": lambda t: Tensor.from_array(t.numpy()),
    "iterator": lambda t: iter(memoryview(t.planes[0].data or b"")),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_views_forbid_closing_and_closing_can_be_tried_again(kind: str) -> None:
    with none_left():
        t = shared()
        view = VIEWS[kind](t)
        for _ in range(3):
            with pytest.raises(InUse, match="views of this tensor's memory are alive"):
                t.close()
        # Nothing has changed: the memory is there, writable, and goes on to others.
        assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]
        t.numpy()[2] = 99
        if isinstance(view, np.ndarray):
            assert 99 in view
        assert len(blob.export(t, TransportMode.REFERENCE)[1]) == 1
        del view
        t.close()


@pytest.mark.parametrize("kind", VIEWS)
def test_with_lets_the_memory_go_with_the_last_view(kind: str) -> None:
    with none_left():
        with shared() as t:
            memory = inode(t)
            view = VIEWS[kind](t)
        with pytest.raises(Closed):
            t.numpy()
        assert is_mapped(memory)
        if isinstance(view, np.ndarray):
            view[...] = 7
            assert (view == 7).all()
        del view
        assert not is_mapped(memory)


def test_with_closes_when_nobody_looks_and_after_an_error_too() -> None:
    with none_left():
        with shared() as t:
            memory = inode(t)
        assert not is_mapped(memory)
        t = shared()
        memory = inode(t)
        with pytest.raises(ZeroDivisionError), t:
            _ = 1 // 0
        assert not is_mapped(memory)
        with shared() as t:
            t.close()


def test_a_view_outlives_a_tensor_that_is_forgotten() -> None:
    with none_left():
        t = shared()
        memory, view = inode(t), t.numpy()
        del t
        assert view.tolist() == [0, 1, 2, 3, 4, 5]
        assert is_mapped(memory)
        del view
        assert not is_mapped(memory)


def test_closing_what_is_borrowed_leaves_it_alone() -> None:
    a = np.arange(4)
    t = Tensor.from_array(a)
    view = t.numpy()
    t.close()
    assert view.tolist() == a.tolist() == [0, 1, 2, 3]


def test_heap_tensors_close_too_and_their_views_live_on() -> None:
    t = ferry.allocate(4, "uint8")
    view = t.numpy()
    t.close()
    view[:] = 5
    assert view.tolist() == [5, 5, 5, 5]


# ---- sharing planes ----


@pytest.mark.parametrize("first", [0, 1, 2])
def test_replaced_tensors_share_the_memory_until_the_last_is_closed(first: int) -> None:
    with none_left():
        t = shared()
        memory = inode(t)
        both = [t, t.replace(labels=Labels(name="x")), t.replace(quantization=None)]
        closing = both.pop(first)
        del t
        closing.close()
        with pytest.raises(Closed):
            closing.numpy()
        for other in both:
            assert other.numpy().tolist() == [0, 1, 2, 3, 4, 5]
        both.pop().close()
        view = both[0].numpy()
        with pytest.raises(InUse):
            both[0].close()
        del view, other
        both[0].close()
        assert not is_mapped(memory)


def test_tensors_that_are_forgotten_do_not_hold_up_the_last() -> None:
    """`t = t.replace(…)` forgets the first one, which is never closed."""
    with none_left():
        t = shared()
        memory = inode(t)
        for i in range(5):
            t = t.replace(labels=Labels(seq=i))
        view = t.numpy()
        with pytest.raises(InUse):
            t.close()
        del view
        t.close()
        assert not is_mapped(memory)


def test_with_around_a_tensor_whose_memory_is_shared() -> None:
    with none_left():
        with shared() as t:
            other = t.replace(labels=Labels(name="x"))
            view = t.numpy()
        assert other.numpy().tolist() == [0, 1, 2, 3, 4, 5]
        with other:
            memory = inode(other)
        assert view.tolist() == [0, 1, 2, 3, 4, 5]
        del view
        assert not is_mapped(memory)


# ---- several memories in one tensor ----


@contextmanager
def two_memories() -> Iterator[Tensor]:
    """An NV12 image whose planes are each in memory of their own."""
    with memfd(b"\1" * 16) as luma, memfd(b"\2" * 8) as chroma:
        yield ferry.image_from_fd([luma, chroma], "NV12", 4, 4)


@pytest.mark.parametrize("looked_at", [0, 1])
def test_nothing_is_let_go_while_one_of_several_memories_is_looked_at(looked_at: int) -> None:
    with none_left(), two_memories() as t:
        other = t.replace(labels=Labels(name="x"))
        other.close()
        view = t.plane(looked_at)
        for _ in range(3):
            with pytest.raises(InUse):
                t.close()
            assert [bytes(p.data or b"") for p in t.planes] == [b"\1" * 16, b"\2" * 8]
            assert len(blob.export(t, TransportMode.REFERENCE)[1]) == 2
        del view
        other_view = t.plane(1 - looked_at)
        with pytest.raises(InUse):
            t.close()
        del other_view
        t.close()
        t.close()


def test_several_memories_forgotten_or_left_by_with() -> None:
    with none_left():
        with two_memories() as t:
            del t
        with two_memories() as t, t:
            view = t.plane(1)
        assert view.tolist() == [[2, 2, 2, 2]] * 2
        del view, t


# ---- descriptors ----


def test_a_descriptor_is_closed_once() -> None:
    with none_left():
        a, b = os.pipe()
        owner = Descriptor(a)
        assert owner.fileno() == a
        assert not owner.closed
        owner.close()
        again = os.dup(b)
        assert again == a  # the number is used again, by somebody else
        owner.close()
        del owner
        gc.collect()
        assert os.fstat(again)
        os.close(again)
        os.close(b)


def test_a_closed_descriptor_has_no_number() -> None:
    owner = Descriptor(os.open("/dev/null", os.O_RDONLY))
    owner.close()
    assert owner.closed
    assert "closed" in repr(owner)
    with pytest.raises(ValueError, match="was closed"):
        owner.fileno()


def test_a_forgotten_descriptor_is_closed() -> None:
    with none_left():
        Descriptor(os.open("/dev/null", os.O_RDONLY))


def test_duplicates_are_their_own() -> None:
    with none_left(), memfd(b"x") as fd:
        mine = Descriptor.duplicate(fd)
        assert mine.fileno() != fd
        assert refers_to(mine.fileno()) == refers_to(fd)
        assert not os.get_inheritable(mine.fileno())
        mine.close()
        assert os.fstat(fd)


def test_duplicating_what_is_not_open() -> None:
    with none_left():
        fd = os.dup(0)
        os.close(fd)
        with pytest.raises(Unsupported, match=f"descriptor {fd} cannot be duplicated"):
            Descriptor.duplicate(fd)


def test_without_a_free_descriptor_the_limit_is_named() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with memfd(b"abcd") as fd, none_left():
        highest = max(int(name) for name, _ in open_descriptors()) + 1
        kept = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        try:
            with suppress(OSError):
                while True:
                    kept.append(os.dup(fd))
            for attempt in (
                lambda: Descriptor.duplicate(fd),
                lambda: ferry.allocate(1, "uint8", storage="shm"),
                lambda: ferry.from_fd(fd, (4,), "uint8"),
                lambda: ferry.from_shm("any", (4,), "uint8"),
            ):
                with pytest.raises(Unsupported, match=f"RLIMIT_NOFILE is {highest}") as caught:
                    attempt()
                assert caught.value.field == "RLIMIT_NOFILE"
            # One is free: enough for the duplicate, but not (before Python 3.13) for the mapping's.
            os.close(kept.pop())
            try:
                ferry.from_fd(fd, (4,), "uint8").close()
            except Unsupported as refused:
                assert refused.field == "RLIMIT_NOFILE"  # noqa: PT017  # a mapping may need a second
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for spare in kept:
                os.close(spare)
        with ferry.from_fd(fd, (4,), "uint8") as t:
            assert bytes(t.numpy()) == b"abcd"


def test_a_region_takes_its_descriptor_over_even_when_it_refuses() -> None:
    with none_left():
        for fd in (os.open("/", os.O_RDONLY), os.memfd_create("unsealed")):
            with pytest.raises(Unsupported, match="never mapped"):
                Region(Descriptor(fd), writable=False)


def test_no_cycles_keep_memory() -> None:
    """Reference counts alone let memory go: a stream must not wait for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        t = shared()
        memory, watch = inode(t), weakref.ref(t)
        other = t.replace(labels=Labels(name="x"))
        view = other.numpy()
        del t, other
        assert watch() is None
        del view
        assert not is_mapped(memory)
    finally:
        gc.enable()


def test_thousands_of_rounds_of_everything() -> None:
    with none_left():
        t = ferry.allocate_image("NV12", 33, 17, storage="shm")
        wire, fds = blob.export(t, TransportMode.REFERENCE)
        for i in range(2000):
            got = blob.import_(wire, fds)
            if i % 4 == 0:
                view = got.plane(1)
                with pytest.raises(InUse):
                    got.close()
                del view
            if i % 4 != 1:
                got.close()
            with pytest.raises(blob.BlobError):
                blob.import_(wire, [])
        del got
        t.close()

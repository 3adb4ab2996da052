"""DLPack at both ends, against NumPy and against a producer made here field by field."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorferry import dlpack
from tensorferry.errors import Closed, Unsupported
from tensorferry.tensor import Tensor

Array = npt.NDArray[Any]

BF16 = np.dtype(ml_dtypes.bfloat16)
BFLOAT, FLOAT8_E5M2 = 4, 12
READ_ONLY = 1
NUMPY_SPEAKS_1_0 = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
needs_1_0 = pytest.mark.skipif(not NUMPY_SPEAKS_1_0, reason="this NumPy knows no DLPack 1.0")

# ---- a producer ----


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )
    data: int
    device: Any
    ndim: int
    code: int
    bits: int
    lanes: int
    byte_offset: int


class Unversioned(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))
    deleter: int
    tensor: DLTensor


class Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )
    deleter: int
    flags: int
    tensor: DLTensor


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR)(
    ("PyCapsule_New", ctypes.pythonapi)
)
capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))
capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


LENT: dict[int, tuple[Versioned | Unversioned, Producer]] = {}
"""What every producer here has lent, by address, until its deleter is called."""

OFFERED: list[Any] = []
"""Every capsule offered, until somebody counts: NumPy drops one that it refuses with its error already
raised, and in that state no Python, and so not ``destroy``, can run."""


def delete_managed(address: int) -> None:
    managed, producer = LENT.pop(address)  # KeyError, which fails the test, at a second call
    producer.code_at_deletion = managed.tensor.code
    producer._deleted += 1


delete = DELETER(delete_managed)


def destroy_capsule(capsule: int) -> None:
    """What the standard asks of a producer: the capsule deletes what nobody took from it."""
    name = capsule_name(capsule)
    if name in (b"dltensor", b"dltensor_versioned"):
        address = capsule_pointer(capsule, name)
        DELETER(LENT[address][0].deleter)(address)


destroy = DESTRUCTOR(destroy_capsule)


@pytest.fixture(autouse=True)
def _all_deleted() -> Iterator[None]:
    yield
    OFFERED.clear()
    gc.collect()
    assert not LENT


class Producer:
    """A DLPack producer over ``memory``, with every field as given; it counts what is asked of it."""

    def __init__(
        self,
        memory: Array,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        offset: int = 0,
        code: int = BFLOAT,
        bits: int = 16,
        lanes: int = 1,
        versioned: bool = NUMPY_SPEAKS_1_0,
        version: tuple[int, int] = (1, 0),
        flags: int = 0,
        device: tuple[int, int] = (1, 0),
        null: bool = False,
    ) -> None:
        self.memory, self.versioned, self.device = memory, versioned, device
        self.lent = self._deleted = 0
        self.code_at_deletion = -1
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self._tensor = DLTensor(
            None if null else memory.ctypes.data, device, len(shape), code, bits, lanes,
            ctypes.addressof(self._shape),
            None if self._strides is None else ctypes.addressof(self._strides),
            offset,
        )  # fmt: skip
        self._version, self._flags = version, flags

    @property
    def deleted(self) -> int:
        OFFERED.clear()
        gc.collect()
        return self._deleted

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **request: Any) -> Any:
        deleter = ctypes.cast(delete, ctypes.c_void_p).value
        managed: Versioned | Unversioned
        if self.versioned and max_version is not None:
            managed = Versioned(self._version, None, deleter, self._flags, self._tensor)
        else:
            managed = Unversioned(self._tensor, None, deleter)
        address = ctypes.addressof(managed)
        LENT[address] = managed, self
        self.lent += 1
        name = b"dltensor_versioned" if isinstance(managed, Versioned) else b"dltensor"
        capsule = new_capsule(address, name, destroy)
        OFFERED.append(capsule)
        return capsule


class OldProducer(Producer):
    """One from before DLPack 1.0, whose ``__dlpack__`` takes only a stream."""

    def __dlpack__(self, stream: None = None) -> Any:  # type: ignore[override]
        return super().__dlpack__()


def bf16(*shape: int) -> Array:
    return np.arange(np.prod(shape, dtype=int)).astype(BF16).reshape(shape)


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def same_memory(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.strides == b.strides and address(a) == address(b)


# ---- borrowing bfloat16 ----


@pytest.mark.parametrize("kind", [Producer, OldProducer])
def test_a_borrowed_array_is_the_producers_memory(kind: type[Producer]) -> None:
    memory = bf16(3, 4)
    array = dlpack.borrow(kind(memory, (3, 4), (4, 1)))
    assert same_memory(array, memory)
    assert array.astype(float).tolist() == memory.astype(float).tolist()


def test_absent_strides_are_c_order() -> None:
    memory = bf16(2, 3, 4)
    assert same_memory(dlpack.borrow(Producer(memory, (2, 3, 4), None)), memory)


def test_strides_count_elements_and_may_be_negative_or_zero() -> None:
    memory = bf16(4, 6)
    turned = dlpack.borrow(Producer(memory, (6, 2), (-1, 12), offset=10))
    assert same_memory(turned, memory[::2, ::-1].T)
    repeated = dlpack.borrow(Producer(memory, (5, 6), (0, 1)))
    assert repeated.astype(int).tolist() == [[0, 1, 2, 3, 4, 5]] * 5


def test_byte_offset_counts_bytes() -> None:
    memory = bf16(8)
    assert same_memory(dlpack.borrow(Producer(memory, (3,), (1,), offset=6)), memory[3:6])


def test_a_scalar() -> None:
    array = dlpack.borrow(Producer(bf16(4), (), (), offset=6))
    assert (array.shape, float(array)) == ((), 3.0)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("strides", [None, (3, 1)])
def test_no_elements(strides: tuple[int, ...] | None, null: bool) -> None:
    producer = Producer(bf16(1), (0, 3), strides, null=null)
    array = dlpack.borrow(producer)
    assert (array.shape, array.dtype) == ((0, 3), BF16)
    del array
    assert producer.deleted == producer.lent


@needs_1_0
def test_read_only_where_the_producer_says_so() -> None:
    memory = bf16(3)
    writable = dlpack.borrow(Producer(memory, (3,)))
    assert not dlpack.borrow(Producer(memory, (3,), flags=READ_ONLY)).flags.writeable
    writable[1] = 9
    assert memory.astype(int).tolist() == [0, 9, 2]


def test_read_only_where_the_producer_cannot_say() -> None:
    assert not dlpack.borrow(OldProducer(bf16(3), (3,))).flags.writeable


@pytest.mark.parametrize("kind", [Producer, OldProducer])
def test_the_deleter_is_called_once_after_the_last_view(kind: type[Producer]) -> None:
    producer = kind(bf16(3, 4), (3, 4))
    array = dlpack.borrow(producer)
    unused = producer.lent - 1  # a first capsule, which NumPy refused, and which deleted itself
    assert producer.deleted == unused
    view = array.reshape(-1).view(np.uint8)[3:5]
    del array
    assert producer.deleted == unused
    del view
    assert producer.deleted == producer.lent
    assert producer.code_at_deletion == BFLOAT


def test_a_tensor_keeps_what_it_borrowed() -> None:
    producer = Producer(bf16(3, 4), (3, 4))
    tensor = Tensor.from_array(producer)
    assert tensor.dtype == "bfloat16"
    assert tensor.shape == (3, 4)
    array = tensor.numpy()
    assert address(array) == address(producer.memory)
    tensor.close()
    del tensor
    assert producer.deleted == producer.lent - 1
    del array
    assert producer.deleted == producer.lent


@pytest.mark.parametrize("device", [(3, 0), (11, 1)])
def test_pinned_memory_is_host_memory(device: tuple[int, int]) -> None:
    memory = bf16(3)
    assert same_memory(dlpack.borrow(Producer(memory, (3,), device=device)), memory)


def test_a_type_that_numpy_knows_is_asked_for_once() -> None:
    memory = np.arange(4, dtype=np.int16)
    producer = Producer(memory, (4,), code=0)
    assert same_memory(dlpack.borrow(producer), memory)
    assert producer.lent == 1


# ---- refusing to borrow ----


@pytest.mark.parametrize(
    ("device", "name"), [((2, 1), "CUDA device 1"), ((13, 0), "CUDA managed"), ((99, 0), "DLPack type 99")]
)
def test_memory_of_another_device(device: tuple[int, int], name: str) -> None:
    producer = Producer(bf16(3), (3,), device=device)
    with pytest.raises(Unsupported, match=name) as caught:
        Tensor.from_array(producer)
    assert caught.value.field == "device"
    assert caught.value.value == device
    assert "CPU first" in str(caught.value)
    assert producer.lent == 0


@pytest.mark.parametrize(
    ("code", "bits", "lanes", "name"),
    [
        (FLOAT8_E5M2, 8, 1, "float8_e5m2 "),
        (2, 32, 4, "float32x4 "),
        (17, 4, 2, "float4_e2m1fnx2 "),
        (0, 4, 1, "int4 "),
        (200, 8, 1, "code 200 of bits 8 "),
        (BFLOAT, 16, 2, "bfloat16x2 "),
    ],
)
@pytest.mark.parametrize("kind", [Producer, OldProducer])
def test_elements_unknown_to_numpy(code: int, bits: int, lanes: int, name: str, kind: type[Producer]) -> None:
    producer = kind(np.zeros(64, np.uint8), (2,), code=code, bits=bits, lanes=lanes)
    with pytest.raises(Unsupported, match=name) as caught:
        dlpack.borrow(producer)
    assert caught.value.field == "dtype"
    assert caught.value.__cause__ is not None
    del caught
    assert producer.deleted == producer.lent


def test_more_dimensions_than_numpy_has() -> None:
    producer = Producer(bf16(1), (1,) * 65)
    with pytest.raises(Unsupported) as caught:
        dlpack.borrow(producer)
    assert caught.value.field == "__dlpack__"
    assert caught.value.__cause__ is not None
    del caught
    assert producer.deleted == producer.lent


@needs_1_0
def test_a_dlpack_of_the_future() -> None:
    producer = Producer(bf16(3), (3,), version=(2, 0))
    with pytest.raises(Unsupported, match=r"DLPack 2\.0"):
        dlpack.borrow(producer)
    assert producer.deleted == producer.lent


@pytest.mark.parametrize("error", [BufferError("needs grad"), RuntimeError(), KeyError("x"), TypeError("no")])
def test_a_producer_that_refuses(error: Exception) -> None:
    class Refusing:
        def __dlpack_device__(self) -> tuple[int, int]:
            return dlpack.CPU

        def __dlpack__(self, **request: Any) -> Any:
            raise error

    with pytest.raises(Unsupported, match="Refusing does not lend") as caught:
        Tensor.from_array(Refusing())
    assert caught.value.__cause__ is error
    assert (str(error) or repr(error)) in str(caught.value)


@pytest.mark.parametrize("offer", [None, 7, "used"])
def test_a_producer_that_offers_no_capsule(offer: object) -> None:
    class Empty:
        def __dlpack_device__(self) -> tuple[int, int]:
            return dlpack.CPU

        def __dlpack__(self, **request: Any) -> Any:
            if offer != "used":
                return offer
            capsule = bf16(2).view(np.uint16).__dlpack__()
            np.from_dlpack(_Offering(capsule))
            return capsule

    with pytest.raises(Unsupported, match="no DLPack capsule"):
        dlpack.borrow(Empty())


def test_a_producer_without_a_device() -> None:
    class Nowhere:
        def __dlpack__(self, **request: Any) -> Any:
            raise AssertionError("never asked")

    with pytest.raises(Unsupported) as caught:
        dlpack.borrow(Nowhere())
    assert caught.value.field == "device"


def test_a_lazy_negative() -> None:
    class Negative(Producer):
        def is_neg(self) -> bool:
            return True

    with pytest.raises(Unsupported, match="resolve_neg"):
        dlpack.borrow(Negative(bf16(3), (3,)))


def test_a_closed_tensor_says_so_itself() -> None:
    tensor = Tensor.from_array(bf16(3))
    tensor.close()
    with pytest.raises(Closed):
        dlpack.borrow(tensor)


# ---- lending ----


class _Offering:
    """Hands on a capsule that exists already."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU

    def __dlpack__(self, **request: Any) -> Any:
        return self.capsule


class _Owner:
    """An ndarray as a producer, through ``lend``."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU

    def __dlpack__(self, **request: Any) -> Any:
        return dlpack.lend(self.array, **request)


def name_of(capsule: Any) -> bytes:
    return bytes(capsule_name(id(capsule)))


def tensor_in(capsule: Any) -> DLTensor:
    name = name_of(capsule)
    kind = Versioned if name == b"dltensor_versioned" else Unversioned
    tensor: DLTensor = kind.from_address(capsule_pointer(id(capsule), name)).tensor
    return tensor


VIEWS = {
    "dense": bf16(4, 6),
    "strided": bf16(4, 6)[::2, 1::2],
    "transposed": bf16(4, 6).T,
    "negative": bf16(4, 6)[::-1, ::-2],
    "broadcast": np.broadcast_to(bf16(1, 6), (4, 6)).view(),
    "scalar": np.array(3, BF16),
    "offset": bf16(10)[7:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_there_and_back(name: str) -> None:
    array = VIEWS[name].copy() if name == "broadcast" and not NUMPY_SPEAKS_1_0 else VIEWS[name]
    assert same_memory(dlpack.borrow(_Owner(array)), array)
    assert same_memory(dlpack.borrow(Tensor.from_array(array)), array)


@given(
    hnp.arrays(np.uint16, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)).flatmap(
        lambda array: st.tuples(st.just(array), hnp.basic_indices(array.shape, allow_newaxis=True))
    )
)
def test_any_view_there_and_back(case: tuple[Array, Any]) -> None:
    whole, index = case
    array = np.asarray(whole.view(BF16)[index])
    back = dlpack.borrow(_Owner(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back.view(np.uint16), array.view(np.uint16))
    if array.size:
        assert address(back) == address(array)


@needs_1_0
def test_there_and_back_read_only() -> None:
    array = bf16(3)
    assert dlpack.borrow(_Owner(array)).flags.writeable
    array.flags.writeable = False
    assert not dlpack.borrow(_Owner(array)).flags.writeable
    assert not dlpack.borrow(Tensor.from_array(array)).flags.writeable


def test_the_capsule_says_bfloat16() -> None:
    array = bf16(2, 3)
    capsule = Tensor.from_array(array).__dlpack__()
    tensor = tensor_in(capsule)
    assert name_of(capsule) == b"dltensor"
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim) == (BFLOAT, 16, 1, 2)
    assert tensor.data + tensor.byte_offset == address(array)
    assert tuple(tensor.device) == Tensor.from_array(array).__dlpack_device__() == dlpack.CPU


@needs_1_0
@pytest.mark.parametrize("version", [(1, 0), (1, 3), (2, 0)])
def test_the_version_asked_for(version: tuple[int, int]) -> None:
    capsule = dlpack.lend(bf16(3), max_version=version)
    assert name_of(capsule) == b"dltensor_versioned"
    assert tensor_in(capsule).code == BFLOAT
    assert name_of(dlpack.lend(bf16(3), max_version=(0, 8))) == b"dltensor"


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_a_read_only_array_needs_version_1(dtype: Any) -> None:
    array = np.ones(3, dtype)
    array.flags.writeable = False
    with pytest.raises(BufferError, match="readonly"):
        dlpack.lend(array)
    if NUMPY_SPEAKS_1_0:
        capsule = dlpack.lend(array, max_version=(1, 0))
        assert Versioned.from_address(capsule_pointer(id(capsule), b"dltensor_versioned")).flags & READ_ONLY
        assert tensor_in(dlpack.lend(array, copy=True)).data != address(array)


@needs_1_0
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_what_numpy_would_refuse(dtype: Any) -> None:
    array = np.ones(3, dtype)
    with pytest.raises(BufferError):
        dlpack.lend(array, dl_device=(2, 0))
    with pytest.raises((RuntimeError, ValueError), match="stream"):  # ValueError since NumPy 2.5
        dlpack.lend(array, stream=1)
    assert tensor_in(dlpack.lend(array, dl_device=(1, 0), stream=None, copy=False)).data == address(array)


@needs_1_0
def test_a_copy_on_request() -> None:
    array = bf16(2, 3)
    capsule = dlpack.lend(array, copy=True, max_version=(1, 0))
    assert tensor_in(capsule).data != address(array)
    copy = dlpack.borrow(_Offering(capsule))  # NumPy refused it once, untaken
    assert copy.astype(int).tolist() == array.astype(int).tolist()


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_memory_lives_until_the_consumer_lets_go(dtype: Any) -> None:
    array = np.ones(8, dtype)
    gone = weakref.ref(array)
    borrowed = dlpack.borrow(Tensor.from_array(array))
    del array
    gc.collect()
    assert gone() is not None
    del borrowed
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("request_", [{}, pytest.param({"max_version": (1, 0)}, marks=needs_1_0)])
def test_a_capsule_that_nobody_took_leaks_nothing(request_: dict[str, Any]) -> None:
    array = bf16(8).copy()
    gone = weakref.ref(array)
    capsule = dlpack.lend(array, **request_)
    del array
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dtype", ["bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
def test_numpys_types_pass_through_numpy(dtype: str) -> None:
    array = np.ones((3, 4), dtype)[:, ::2]
    tensor = Tensor.from_array(array)
    assert same_memory(np.from_dlpack(tensor), array)
    assert same_memory(dlpack.borrow(tensor), array)


def test_complex_is_borrowed() -> None:
    assert dlpack.borrow(_Owner(np.array([1 + 2j]))).tolist() == [1 + 2j]

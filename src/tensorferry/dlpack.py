"""DLPack at both ends: NumPy's own, and bfloat16, which NumPy's does not know.

NumPy does all the work: memory, strides, the read-only flag, whose turn it is to call the deleter. It
refuses bfloat16 for its type code alone, so a bfloat16 tensor passes through NumPy as uint16, which has the
same size, and the code inside the capsule is the only thing written here.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import DType
from .errors import FerryError, Unsupported

__all__ = ["CPU", "borrow", "lend"]

Array = npt.NDArray[Any]

CPU = (1, 0)
"""The device of everything lent here: kDLCPU, the first of them."""

_BFLOAT16 = DType.BFLOAT16.numpy

# DLDeviceType: the memory that a host reads as its own, and names for the rest. Managed memory (13) is not
# among the first: the host may read it, but only after waiting for a stream that nothing here knows.
_HOST_DEVICES = {1, 3, 11}
_DEVICES = {
    2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 12: "extension",
    13: "CUDA managed", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon", 17: "MAIA", 18: "Trainium",
}  # fmt: skip

# DLDataTypeCode, in order; from float8 on, the name says the bits.
_UINT, _BFLOAT = 1, 4
_CODES = (
    "int", "uint", "float", "handle", "bfloat", "complex", "bool",
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
)  # fmt: skip
_TAKEN = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
    "bool8", "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
}  # fmt: skip


def borrow(obj: Any) -> Array:
    """An ndarray over the memory of ``obj``, which has ``__dlpack__``: no copy.

    The array is read-only where the producer says so, or speaks a DLPack before 1.0, which cannot say. The
    producer's deleter is called when the last view of the array is gone. Raises Unsupported for memory that
    the host cannot read, for element types that NumPy has not, and where the producer refuses.
    """
    _require_host(obj)
    _require_resolved(obj)
    try:
        return np.from_dlpack(obj)
    except FerryError:  # a Tensor of ours, which says itself what is wrong with it
        raise
    except Exception:  # whatever a producer refuses with: asked again below, it says why
        pass
    disguised = _AsUint16(obj)
    try:
        array = np.from_dlpack(disguised)
    except Exception as error:
        raise _explained(obj, disguised.element, error) from error
    return disguised.revealed(array)


def lend(array: Array, **request: Any) -> Any:
    """A DLPack capsule over ``array``: what ``__dlpack__(**request)`` of its owner returns.

    It refuses what NumPy refuses, and as NumPy does: BufferError for another device than the CPU, and for a
    read-only array unless the consumer takes DLPack 1.0 (``max_version=(1, 0)``) or a copy.
    """
    if array.dtype != _BFLOAT16:
        return array.__dlpack__(**request)
    capsule = array.view(np.uint16).__dlpack__(**request)
    _tensor_in(capsule).code = _BFLOAT
    return capsule


class _AsUint16:
    """A producer whose bfloat16 elements NumPy sees as uint16; all others it sees as they are."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._tensor: _DLTensor | None = None
        self.element: str | None = None
        """What the producer says the elements are, once it has lent them."""

    def __dlpack__(self, **request: Any) -> Any:
        capsule = self._producer.__dlpack__(**request)
        tensor = _tensor_in(capsule)
        self.element = tensor.element
        if self.element == "bfloat16":
            self._tensor = tensor
            tensor.code = _UINT
        return capsule

    def __dlpack_device__(self) -> Any:
        return self._producer.__dlpack_device__()

    def revealed(self, array: Array) -> Array:
        """``array``, which NumPy made of this, with the elements that the producer meant."""
        if self._tensor is None:
            return array
        # The structure, alive as long as the array, goes back to its deleter as it came.
        self._tensor.code = _BFLOAT
        return array.view(_BFLOAT16)


def _require_host(obj: Any) -> None:
    try:
        device, ordinal = obj.__dlpack_device__()
        device = int(device)
    except FerryError:
        raise
    except Exception as error:
        raise Unsupported(
            f"this {type(obj).__name__} does not say where it lives: {error}; move it to the CPU first",
            field="device",
        ) from error
    if device not in _HOST_DEVICES:
        name = _DEVICES.get(device, f"DLPack type {device}")
        raise Unsupported(
            f"this {type(obj).__name__} lives on {name} device {ordinal},"
            " whose memory the host cannot read: move it to the CPU first (PyTorch, CuPy: .cpu(), .get())",
            field="device",
            value=(device, ordinal),
        )


def _require_resolved(obj: Any) -> None:
    # PyTorch refuses to lend a conjugate that is still to be computed, but lends a negative that is, and
    # every value comes out with the wrong sign.
    is_negative = getattr(obj, "is_neg", None)
    if is_negative is not None and is_negative() is True:
        raise Unsupported(
            f"this {type(obj).__name__} is a lazy negative, its memory holds the opposite of its values:"
            " pass .resolve_neg() of it",
            field="__dlpack__",
        )


def _explained(obj: Any, element: str | None, error: Exception) -> Unsupported:
    if element is not None and element not in _TAKEN:
        return Unsupported(
            f"NumPy has no dtype for the {element} elements of this {type(obj).__name__}:"
            f" convert it to one of {', '.join(row.value for row in DType)} first",
            field="dtype",
            value=element,
        )
    return Unsupported(
        f"this {type(obj).__name__} does not lend its memory: {str(error) or repr(error)};"
        " pass a plain tensor (PyTorch: .detach().resolve_conj().resolve_neg()) or an array copied from it",
        field="__dlpack__",
    )


class _DLTensor(ctypes.Structure):
    """DLPack C API, DLTensor; its DLDevice and DLDataType are laid flat, in the same places."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )
    code: int
    bits: int
    lanes: int

    @property
    def element(self) -> str:
        """The element type by name: "bfloat16", "float8_e5m2", "float32x4"."""
        name = _CODES[self.code] if self.code < len(_CODES) else f"DLPack code {self.code} of bits "
        bits = "" if "_" in name else self.bits
        return f"{name}{bits}" + (f"x{self.lanes}" if self.lanes != 1 else "")


class _DLManagedTensorVersioned(ctypes.Structure):
    """DLPack C API, DLManagedTensorVersioned (its predecessor, DLManagedTensor, starts with the DLTensor)."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    )
    major: int
    minor: int
    dl_tensor: _DLTensor


def _tensor_in(capsule: Any) -> _DLTensor:
    """The DLTensor in a capsule that nobody consumed yet, in place; BufferError where there is none."""
    get_pointer = _capsule_get_pointer()
    try:
        managed = _DLManagedTensorVersioned.from_address(get_pointer(capsule, b"dltensor_versioned"))
    except ValueError:  # a capsule by another name
        try:
            return _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
        except ValueError:
            raise BufferError("it offers no DLPack capsule, or a used one") from None
    if managed.major != 1:  # what follows the version may lie anywhere
        raise BufferError(f"it offers DLPack {managed.major}.{managed.minor}; this reads 1.x and older")
    return managed.dl_tensor


@functools.cache
def _capsule_get_pointer() -> Callable[[object, bytes], int]:
    # A prototype of our own: restype and argtypes set on ctypes.pythonapi would be set for everybody. Looked
    # up late, since not every Python has a C API to look in.
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return prototype(("PyCapsule_GetPointer", ctypes.pythonapi))

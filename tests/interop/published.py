"""The published tensor library, through ctypes: what our blobs are measured against.

The wheel `edgefirst-tensor` speaks the blob format in its C functions only; its Python module offers neither
import nor export. This wraps as much of them as a test needs to make a tensor there, take its blob, give it
one of ours, and read back everything it understood:

    with published.build((2, 3), U8, bytes(6), quantization=(-1, [0.5], [3])) as tensor:
        blob = tensor.export()
    with Published.imported(blob) as tensor:
        assert tensor.shape == (2, 3)

Signatures come from observed behaviour of version 0.38.0 (ABI 2); `library()` refuses any other ABI.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import TypeAlias

__all__ = [
    "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64",
    "Colorimetry", "Published", "Quantization", "Refused", "available", "build", "image", "library",
]  # fmt: skip

Quantization: TypeAlias = tuple[int, Sequence[float], Sequence[int] | None]
"""Axis (-1 for the whole tensor), scales, zero points (None: symmetric)."""

Colorimetry: TypeAlias = tuple[str, str, str, str]
"""Space, transfer, encoding, range, as the blob spells them; "" where unspecified."""

U8, I8, U16, I16, U32, I32, U64, I64, F16, F32, F64 = range(11)

ABI = 2
MEM = 0  # the one storage that exports inline; as a `memory` argument and as a storage kind
READ, WRITE = 1, 2

# One byte an axis in the packed colorimetry, lowest first; 0 is "unspecified", or a value it does not know.
COLOR_AXES = (
    ("", "bt709", "bt2020", "srgb", "smpte170m"),
    ("", "bt709", "srgb", "pq", "hlg", "linear"),
    ("", "bt601", "bt709", "bt2020"),
    ("", "full", "limited"),
)


class MapView(ctypes.Structure):
    """What ef_tensor_map fills in, with room to spare for fields that later revisions add."""

    _fields_ = (("address", c_void_p), ("length", c_size_t), ("later", c_uint64 * 14))


class QuantizationInfo(ctypes.Structure):
    _fields_ = (("axis", c_int32), ("count", c_uint32), ("present", c_uint32))


TENSOR = BUILDER = c_void_p
SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "abi_version": (c_uint32, ()),
    "last_error_message": (c_char_p, ()),
    "builder_new": (BUILDER, ()),
    "builder_free": (None, (BUILDER,)),
    "builder_dtype": (c_int, (BUILDER, c_uint32)),
    "builder_storage": (c_int, (BUILDER, c_uint32)),
    "builder_shape": (c_int, (BUILDER, POINTER(c_uint64), c_uint32)),
    "builder_format": (c_int, (BUILDER, c_char_p)),
    "builder_colorimetry": (c_int, (BUILDER, c_char_p, c_char_p, c_char_p, c_char_p)),
    "builder_quantization": (c_int, (BUILDER, c_int32, POINTER(c_float), POINTER(c_int32), c_uint32)),
    "builder_alloc": (TENSOR, (BUILDER,)),
    "builder_error": (c_int, (BUILDER,)),
    "image_alloc": (TENSOR, (c_size_t, c_size_t, c_char_p, c_uint32, c_int, c_uint32, c_uint32)),
    "map": (c_int, (TENSOR, c_uint32, POINTER(MapView))),
    "unmap": (c_int, (TENSOR,)),
    "copy_to": (c_int64, (TENSOR, c_void_p, c_size_t)),
    "export": (
        c_int,
        (TENSOR, c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_int), c_size_t, POINTER(c_size_t)),
    ),
    "import": (TENSOR, (c_char_p, c_size_t, POINTER(c_int), c_size_t)),
    "ndim": (c_uint32, (TENSOR,)),
    "dtype": (c_uint32, (TENSOR,)),
    "storage_kind": (c_uint32, (TENSOR,)),
    "plane_count": (c_uint32, (TENSOR,)),
    "shape": (POINTER(c_uint64), (TENSOR,)),
    "strides": (POINTER(c_int64), (TENSOR,)),
    "format": (c_char_p, (TENSOR,)),
    "capacity_bytes": (c_int64, (TENSOR,)),
    "colorimetry": (c_uint32, (TENSOR,)),
    "quantization_info": (c_int, (TENSOR, POINTER(QuantizationInfo))),
    "quantization_get": (c_int, (TENSOR, POINTER(c_float), POINTER(c_int32), c_uint32)),
    "free": (None, (TENSOR,)),
}


class Refused(Exception):
    """The published library said no; `number` is its errno, 0 where it gave none (import never does)."""

    def __init__(self, what: str, number: int = 0) -> None:
        reason = f": {os.strerror(number)}" if number else ""
        super().__init__(f"the published library refused to {what}{reason}")
        self.number = number


@functools.cache
def library() -> ctypes.CDLL:
    """The shared library out of the installed wheel, with every signature declared."""
    found = _shared_object()
    if found is None:
        raise ImportError("no published library here: pip install edgefirst-tensor==0.38.0 (Linux)")
    lib = ctypes.CDLL(str(found))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(lib, f"ef_tensor_{name}")
        function.restype, function.argtypes = result, arguments
    if lib.ef_tensor_abi_version() != ABI:
        raise ImportError(f"{found} has ABI {lib.ef_tensor_abi_version()}, these signatures are of ABI {ABI}")
    return lib


def available() -> bool:
    """Whether the wheel is installed; for pytest.mark.skipif."""
    return _shared_object() is not None


def _shared_object() -> Path | None:
    # find_spec imports the parent only, a namespace package without code: the Python module is never run.
    try:
        spec = importlib.util.find_spec("edgefirst.tensor")
    except ModuleNotFoundError:
        return None
    folders = spec.submodule_search_locations if spec else None
    return next((so for folder in folders or () for so in Path(folder).glob("libedgefirst_tensor.so*")), None)


def build(
    shape: Sequence[int],
    dtype_code: int,
    payload: bytes,
    *,
    format: str = "",
    colorimetry: Colorimetry | None = None,
    quantization: Quantization | None = None,
) -> Published:
    """A heap tensor that holds `payload`.

    With a format, `shape` is the allocation's (NV12: [H + ceil(H/2), W]); the library derives the planes.
    """
    lib = library()
    dims = (c_uint64 * len(shape))(*shape)
    with _builder() as builder:
        _check("set the dtype", lib.ef_tensor_builder_dtype(builder, dtype_code))
        _check("set the storage", lib.ef_tensor_builder_storage(builder, MEM))
        _check("set the shape", lib.ef_tensor_builder_shape(builder, dims, len(dims)))
        if format:
            _check("set the format", lib.ef_tensor_builder_format(builder, format.encode()))
        if colorimetry is not None:
            values = (value.encode() for value in colorimetry)
            _check("set the colorimetry", lib.ef_tensor_builder_colorimetry(builder, *values))
        if quantization is not None:
            _check("set the quantization", _quantize(builder, *quantization))
        handle = lib.ef_tensor_builder_alloc(builder)
        if not handle:
            raise Refused(f"allocate {list(shape)}", int(lib.ef_tensor_builder_error(builder)))
    return Published(handle)._filled(payload)


def image(
    format: str,
    width: int,
    height: int,
    payload_fill: bytes | Callable[[int], bytes] = b"\0",
    dtype_code: int = U8,
) -> Published:
    """A heap image of `width` by `height` pixels, its pitch and allocation as the library chooses them.

    Bytes repeat until the allocation is full; a function is asked for as many bytes as the allocation holds.
    """
    lib = library()
    handle = lib.ef_tensor_image_alloc(width, height, format.encode(), dtype_code, True, MEM, READ | WRITE)
    if not handle:
        raise Refused(f"allocate a {format} image: {(lib.ef_tensor_last_error_message() or b'').decode()}")
    tensor = Published(handle)
    size = tensor.capacity_bytes
    if callable(payload_fill):
        return tensor._filled(payload_fill(size))
    repeats = math.ceil(size / len(payload_fill))
    return tensor._filled((payload_fill * repeats)[:size])


class Published:
    """One tensor that the published library holds; closing frees it, using it after that is a ValueError."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    @classmethod
    def imported(cls, blob: bytes, fds: Sequence[int] = ()) -> Published:
        """What the library makes of a blob. Inline bytes are copied, descriptors duplicated: none is kept."""
        handle = library().ef_tensor_import(blob, len(blob), (c_int * len(fds))(*fds), len(fds))
        if not handle:
            raise Refused("import the blob")
        return cls(handle)

    def export(self) -> bytes:
        """The inline blob. Refused for what it sends by reference, since the descriptors would be lost."""
        lib, blob_len, fds_len = library(), c_size_t(), c_size_t()
        # Without a buffer the answer is ENOSPC and the length; any other error is real, the length left 0.
        number = lib.ef_tensor_export(self.handle, None, 0, byref(blob_len), None, 0, byref(fds_len))
        if not blob_len.value or fds_len.value:
            raise Refused("export the tensor inline", number)
        blob = ctypes.create_string_buffer(blob_len.value)
        filled = byref(blob_len)
        _check("export", lib.ef_tensor_export(self.handle, blob, len(blob), filled, None, 0, byref(fds_len)))
        return blob.raw

    def copy_out(self) -> bytes:
        """Every byte of the allocation, in one piece: planes follow each other, padding included."""
        size = self.capacity_bytes
        out = ctypes.create_string_buffer(max(size, 1))
        copied = int(library().ef_tensor_copy_to(self.handle, out, size))
        if copied < 0:
            raise Refused("copy the payload out", -copied)
        return out.raw[:copied]

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ValueError("this tensor is closed")
        return self._handle

    @property
    def shape(self) -> tuple[int, ...]:
        return self._dimensions("shape")

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes; () where the library keeps none."""
        return self._dimensions("strides")

    @property
    def dtype(self) -> int:
        return int(library().ef_tensor_dtype(self.handle))

    @property
    def storage_kind(self) -> int:
        return int(library().ef_tensor_storage_kind(self.handle))

    @property
    def plane_count(self) -> int:
        return int(library().ef_tensor_plane_count(self.handle))

    @property
    def format(self) -> str:
        return (library().ef_tensor_format(self.handle) or b"").decode()

    @property
    def capacity_bytes(self) -> int:
        return int(library().ef_tensor_capacity_bytes(self.handle))

    @property
    def colorimetry(self) -> Colorimetry:
        packed = int(library().ef_tensor_colorimetry(self.handle))
        space, transfer, encoding, range_ = (names[packed >> 8 * axis & 0xFF] for axis, names in enumerate(COLOR_AXES))
        return space, transfer, encoding, range_

    @property
    def quantization(self) -> Quantization | None:
        """Symmetric quantization reads back as zero points of 0: only its own export tells the two apart."""
        lib, info = library(), QuantizationInfo()
        _check("describe the quantization", lib.ef_tensor_quantization_info(self.handle, byref(info)))
        if not info.present:
            return None
        scales, zero_points = (c_float * info.count)(), (c_int32 * info.count)()
        number = lib.ef_tensor_quantization_get(self.handle, scales, zero_points, info.count)
        _check("read the quantization", number)
        return info.axis, list(scales), list(zero_points)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            library().ef_tensor_free(handle)

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _dimensions(self, name: str) -> tuple[int, ...]:
        values = getattr(library(), f"ef_tensor_{name}")(self.handle)
        return tuple(values[: library().ef_tensor_ndim(self.handle)]) if values else ()

    def _filled(self, payload: bytes) -> Published:
        lib, view = library(), MapView()
        _check("map", lib.ef_tensor_map(self.handle, READ | WRITE, byref(view)))
        try:
            if len(payload) != view.length:
                raise ValueError(f"the tensor holds {view.length} bytes, the payload {len(payload)}")
            ctypes.memmove(view.address, payload, view.length)
        finally:
            _check("unmap", lib.ef_tensor_unmap(self.handle))
        return self


@contextmanager
def _builder() -> Iterator[int]:
    builder = library().ef_tensor_builder_new()
    try:
        yield builder
    finally:
        library().ef_tensor_builder_free(builder)


def _quantize(builder: int, axis: int, scales: Sequence[float], zero_points: Sequence[int] | None) -> int:
    steps = (c_float * len(scales))(*scales)
    offsets = None if zero_points is None else (c_int32 * len(zero_points))(*zero_points)
    if offsets is not None and len(offsets) != len(steps):
        raise ValueError(f"{len(steps)} scales, {len(offsets)} zero points: the library would read past the shorter")
    return int(library().ef_tensor_builder_quantization(builder, axis, steps, offsets, len(steps)))


def _check(what: str, number: int) -> None:
    if number:
        raise Refused(what, number)

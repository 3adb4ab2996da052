"""The published container: 248 bytes of description, and a buffer that it owns or borrows.

Method for method what VLink's own Python binding offers, so that code written for that runs here.
``import_`` and ``export`` do not pass through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..arrays import borrow, dense_strides, flat_bytes
from ..errors import WireError
from ..parts import Buffer, flat
from . import codes
from .envelope import (
    MAGIC_BEGIN_BYTES,
    MAGIC_END_BYTES,
    OVERHEAD,
    PAYLOAD_OFFSET,
    STRUCT_OFFSET,
    VERSION,
    read_record,
)
from .header import NEW_FRAME_ID, Header
from .record import HEADER_LEN, MAX_RANK, STRUCT_LEN, U32S, Number, Text

__all__ = ["Tensor"]

_UPDATE_TIME_NS = Number[int]("update_time_ns", 56, "Q")
_NUM_ELEMENTS = Number[int]("num_elements", 64, "Q")
_NAME = Text(72, 32, keep=31)
_MODEL_ID = Text(104, 32, keep=31)
_LAYOUT = Text(136, 16, keep=15)
_SHAPE = tuple(Number[int](f"shape[{i}]", 152 + 4 * i, "I") for i in range(MAX_RANK))
_STRIDES = tuple(Number[int](f"strides[{i}]", 184 + 4 * i, "I") for i in range(MAX_RANK))
_CHANNEL = Number[int]("channel", 216, "I")
_FREQ = Number[int]("freq", 220, "I")
_BATCH_SIZE = Number[int]("batch_size", 224, "I")
_QUANT_SCALE = Number[float]("quant_scale", 228, "f")
_QUANT_ZERO_POINT = Number[int]("quant_zero_point", 232, "i")
_DTYPE = Number[int]("dtype", 236, "B")
_RANK = Number[int]("rank", 237, "B")
_DEVICE = Number[int]("device", 238, "B")
_ELEMENT_SIZE = Number[int]("element_size", 240, "B")

# Parts of the struct by where they start and end.
_SHAPE_AND_STRIDES = slice(152, 216)
_RESERVED = slice(241, 248)
_DATA_AND_SIZE = slice(40, 56)
_IS_OWNER = 239

_PREFIX = MAGIC_BEGIN_BYTES + VERSION.to_bytes(4, "little")
_U32_MAX = 2**32 - 1


class Tensor:
    """VLink's tensor container. Sizes are bytes, strides are elements, times nanoseconds since the epoch.

    Settings and the buffer are independent, as in C++: ``set_shape`` allocates nothing, ``create`` knows
    no shape. Setters raise ValueError for what the field cannot hold; methods that answer bool never
    raise for a value that is merely wrong. What the container borrows stays alive while it does.
    Source: spec/vlink-tensor.md, "Container behaviour".
    """

    # data_, is_owner_ of the image stay 0: what they mean here is in _data and _owner.
    __slots__ = ("_data", "_header", "_image", "_owner")

    _data: memoryview | None
    _image: bytearray

    kMaxRank = MAX_RANK
    DataType = codes.DataType
    Device = codes.Device

    kUnknown = kDataUnknown = codes.DataType.kUnknown
    kBool = codes.DataType.kBool
    kInt8 = codes.DataType.kInt8
    kUint8 = codes.DataType.kUint8
    kInt16 = codes.DataType.kInt16
    kUint16 = codes.DataType.kUint16
    kInt32 = codes.DataType.kInt32
    kUint32 = codes.DataType.kUint32
    kInt64 = codes.DataType.kInt64
    kUint64 = codes.DataType.kUint64
    kFloat16 = codes.DataType.kFloat16
    kBfloat16 = codes.DataType.kBfloat16
    kFloat32 = codes.DataType.kFloat32
    kFloat64 = codes.DataType.kFloat64
    kCpu = kDeviceCpu = codes.Device.kCpu
    kGpu = kDeviceGpu = codes.Device.kGpu
    kNpu = kDeviceNpu = codes.Device.kNpu
    kDsp = kDeviceDsp = codes.Device.kDsp

    # The seed forbids applications to use these; they survive clear and travel with every copy.
    reserved = Number[int]("reserved", 241, "B")
    reserved2 = Number[int]("reserved2", 242, "H")
    reserved3 = Number[int]("reserved3", 244, "I")

    def __init__(self) -> None:
        self._image = bytearray(STRUCT_LEN)
        self._image[: len(NEW_FRAME_ID)] = NEW_FRAME_ID
        self._header = Header.over(self._image)
        self._data = None
        self._owner = False

    # ---- the wire ----

    @staticmethod
    def check_valid(bytes: Buffer) -> bool:
        """Whether ``from_bytes`` would take these bytes: one whole envelope of a known major version."""
        try:
            read_record(flat(bytes))
        except WireError:
            return False
        return True

    def from_bytes(self, bytes: Buffer) -> bool:
        """Become what the envelope ``bytes`` says, its elements borrowed; False, and empty, if it is none.

        A rank above 8 is taken for 8 and the element size follows the dtype, whatever the wire says.
        Nothing else is judged: use ``vlink.import_`` for values that can be trusted.
        """
        envelope = flat(bytes)
        if not self.check_valid(envelope):
            self.clear()
            return False
        self._image[:] = envelope[STRUCT_OFFSET:PAYLOAD_OFFSET]
        self._image[_IS_OWNER] = 0
        _RANK.write(self._image, min(_RANK.read(self._image), MAX_RANK))
        self.set_dtype(_DTYPE.read(self._image))
        self._hold(envelope[PAYLOAD_OFFSET:-4], owner=False)
        return True

    def to_bytes(self) -> bytes:
        """The envelope: a copy of everything, version 2.1.0, pointer and ownership left out."""
        return b"".join((_PREFIX, self._image, self.data(), MAGIC_END_BYTES))

    def get_serialized_size(self) -> int:
        """Bytes that ``to_bytes`` would return."""
        return OVERHEAD + self.size()

    def __rshift__(self, wire: bytearray) -> bool:
        """``t >> wire`` makes ``wire`` the envelope, replacing what it held; True.

        BufferError where something still holds a view of ``wire`` and its length would change.
        """
        if not isinstance(wire, bytearray):
            return NotImplemented
        wire[:] = self.to_bytes()
        return True

    def __lshift__(self, wire: Buffer) -> bool:
        """``t << wire`` is ``t.from_bytes(wire)``."""
        return self.from_bytes(wire)

    # ---- the buffer ----

    def create(self, size: int) -> bool:
        """Own a new buffer of ``size`` zeroed bytes in place of the present one; False for 0.

        Views of the old buffer live on. False too, with no buffer left, where there is no such memory.
        """
        if size <= 0:
            return False
        try:
            fresh = bytearray(size)
        except (MemoryError, OverflowError):
            self._hold(None, owner=False)
            return False
        self._hold(memoryview(fresh), owner=True)
        return True

    def clear(self) -> None:
        """Let go of the buffer and zero everything, the header too; the three reserved slots stay."""
        reserved = self._image[_RESERVED]
        self._image[:] = bytes(STRUCT_LEN)
        self._image[_RESERVED] = reserved
        self._hold(None, owner=False)

    def size(self) -> int:
        """Bytes of the buffer."""
        return 0 if self._data is None else len(self._data)

    def data(self) -> memoryview:
        """The buffer: writable when owned, read-only when borrowed, empty when there is none."""
        return memoryview(b"") if self._data is None else self._data

    def is_valid(self) -> bool:
        """Whether there is a buffer with bytes in it."""
        return self.size() != 0

    def is_owner(self) -> bool:
        """Whether the buffer is this container's own."""
        return self._owner

    def fill_data(self, data: object) -> bool:
        """Copy the bytes of ``data`` into an owned buffer of just their size; ``deep_copy`` of them."""
        return self._copy_bytes(_lent(data, copy=True))

    # ---- copies ----

    def shallow_copy(self, source: object) -> bool:
        """Say what the container ``source`` says and borrow its buffer; or borrow the bytes of an array.

        False, and nothing changes, for this container itself, its own buffer or a part of that, and for
        no bytes. TypeError for what lends no memory, ValueError for an array with gaps.
        """
        if not isinstance(source, Tensor):
            data = _lent(source, copy=False)
            if not len(data) or self._owns(data) or (self.size() and _address(data) == _address(self.data())):
                return False
            self._hold(data, owner=False)
            return True
        if source is self or self._owns(source.data()):
            return False
        self._image[:] = source._image
        self._hold(source._data, owner=False)
        return True

    def deep_copy(self, source: object) -> bool:
        """Say what the container ``source`` says and own a copy of its buffer; or copy an array's bytes.

        An owned buffer of the right size is written over, a view of it then shows the new bytes. False as
        in ``shallow_copy``; a borrowed buffer may be copied into an owned one.
        """
        if not isinstance(source, Tensor):
            return self._copy_bytes(_lent(source, copy=True))
        if source is self or self._owns(source.data()):
            return False
        kept = self._data if self._owner and self.size() == source.size() else None
        self._image[:] = source._image
        self._hold(kept, owner=kept is not None)
        return not source.size() or self._copy_bytes(source.data())

    def move_copy(self, source: Tensor) -> bool:
        """Take over everything from ``source``, ownership too, and leave it empty, reserved slots included.

        False, and nothing changes, for this container itself and for one that borrows from it.
        """
        owner = source._owner
        data = source._data
        if not self.shallow_copy(source):
            return False
        self._hold(data, owner=owner)
        source._image[:] = bytes(STRUCT_LEN)
        source._hold(None, owner=False)
        return True

    def _copy_bytes(self, data: memoryview) -> bool:
        if not len(data) or self._owns(data):
            return False
        if not (self._owner and self.size() == len(data)) and not self.create(len(data)):
            return False
        self.data()[:] = data
        return True

    def _hold(self, data: memoryview | None, *, owner: bool) -> None:
        """Every change of buffer comes through here; borrowed memory is not for writing."""
        self._data = data if data is None or owner else data.toreadonly()
        self._owner = owner
        self._image[_DATA_AND_SIZE] = bytes(8) + self.size().to_bytes(8, "little")

    def _owns(self, data: memoryview) -> bool:
        """Whether ``data`` starts inside the buffer that this container owns."""
        if not (self._owner and len(data)):
            return False
        return 0 <= _address(data) - _address(self.data()) < self.size()

    # ---- what it says ----

    @property
    def header(self) -> Header:
        """The header, in place; setting it copies another's fields."""
        return self._header

    @header.setter
    def header(self, header: Header) -> None:
        self._image[:HEADER_LEN] = header.to_bytes()

    def shape(self) -> list[int]:
        """The dimensions that count, ``rank()`` of them."""
        rank = self.rank()
        return list(U32S[rank].unpack_from(self._image, _SHAPE[0].offset))

    def strides(self) -> list[int]:
        """Elements from one index to the next, for each dimension; all 0 where nobody set them."""
        rank = self.rank()
        return list(U32S[rank].unpack_from(self._image, _STRIDES[0].offset))

    def shape_at(self, dim: int) -> int:
        """Dimension ``dim`` of the eight slots; 0 outside them."""
        return _SHAPE[dim].read(self._image) if 0 <= dim < MAX_RANK else 0

    def stride_at(self, dim: int) -> int:
        """The stride of dimension ``dim`` of the eight slots, in elements; 0 outside them."""
        return _STRIDES[dim].read(self._image) if 0 <= dim < MAX_RANK else 0

    def set_shape(self, shape: Sequence[int]) -> None:
        """The first eight dimensions, with the strides of C order, their product, and the batch size.

        None at all, a product past 64 bits or a stride past 32 leave rank 0 and all of these 0.
        ValueError for a dimension that is negative or past 32 bits.
        """
        kept = list(shape[:MAX_RANK])
        for i, dimension in enumerate(kept):
            if not 0 <= dimension <= _U32_MAX:
                raise ValueError(f"shape[{i}] = {dimension} is no 32-bit unsigned integer")
        strides = dense_strides(tuple(kept), 1)
        elements = math.prod(kept)
        # No product is past 64 bits while the first dimension and its stride are not past 32.
        if not kept or max(strides) > _U32_MAX:
            kept, strides, elements = [], (), 0
        packed = U32S[len(kept)].pack(*kept).ljust(32, b"\0") + U32S[len(kept)].pack(*strides).ljust(32, b"\0")
        self._image[_SHAPE_AND_STRIDES] = packed
        _RANK.write(self._image, len(kept))
        _NUM_ELEMENTS.write(self._image, elements)
        _BATCH_SIZE.write(self._image, kept[0] if kept else 0)

    def set_shape_at(self, dim: int, value: int) -> None:
        """Set one of the eight slots and nothing else: strides, rank and product stay as they are."""
        if 0 <= dim < MAX_RANK:
            _SHAPE[dim].write(self._image, value)

    def set_stride_at(self, dim: int, value: int) -> None:
        """Set the stride of one of the eight slots, in elements."""
        if 0 <= dim < MAX_RANK:
            _STRIDES[dim].write(self._image, value)

    def rank(self) -> int:
        return _RANK.read(self._image)

    def num_elements(self) -> int:
        """The product that ``set_shape`` or the wire left; ``set_shape_at`` does not change it."""
        return _NUM_ELEMENTS.read(self._image)

    def dtype(self) -> codes.DataType | int:
        """The element type; the bare number of a code that is none."""
        code = _DTYPE.read(self._image)
        return codes.DataType(code) if code <= codes.DataType.kFloat64 else code

    def set_dtype(self, dtype: int) -> None:
        """Set the element type, a DataType, and the element size with it."""
        _DTYPE.write(self._image, dtype)
        _ELEMENT_SIZE.write(self._image, codes.element_size_of(dtype))

    def element_size(self) -> int:
        """Bytes of one element; 0 while the type is unknown."""
        return _ELEMENT_SIZE.read(self._image)

    @staticmethod
    def element_size_of(dtype: int) -> int:
        """Bytes of one element of ``dtype``; 0 for unknown and for codes that are none."""
        return codes.element_size_of(dtype)

    def device(self) -> codes.Device | int:
        """The device hint; the bare number of a kind unknown here."""
        code = _DEVICE.read(self._image)
        return codes.Device(code) if code <= codes.Device.kDsp else code

    def set_device(self, device: int) -> None:
        _DEVICE.write(self._image, device)

    def name(self) -> str:
        return _NAME.read(self._image)

    def set_name(self, name: str) -> None:
        """Set the name; at most 31 bytes of UTF-8 are kept."""
        _NAME.write(self._image, name)

    def model_id(self) -> str:
        return _MODEL_ID.read(self._image)

    def set_model_id(self, model_id: str) -> None:
        """Set which model it came from; at most 31 bytes of UTF-8 are kept."""
        _MODEL_ID.write(self._image, model_id)

    def layout(self) -> str:
        """What the dimensions stand for, such as "NCHW"."""
        return _LAYOUT.read(self._image)

    def set_layout(self, layout: str) -> None:
        """Set what the dimensions stand for; at most 15 bytes of UTF-8 are kept."""
        _LAYOUT.write(self._image, layout)

    def update_time_ns(self) -> int:
        return _UPDATE_TIME_NS.read(self._image)

    def set_update_time_ns(self, update_time_ns: int) -> None:
        _UPDATE_TIME_NS.write(self._image, update_time_ns)

    def channel(self) -> int:
        return _CHANNEL.read(self._image)

    def set_channel(self, channel: int) -> None:
        _CHANNEL.write(self._image, channel)

    def freq(self) -> int:
        """How often it is published, in Hz."""
        return _FREQ.read(self._image)

    def set_freq(self, freq: int) -> None:
        _FREQ.write(self._image, freq)

    def batch_size(self) -> int:
        return _BATCH_SIZE.read(self._image)

    def set_batch_size(self, batch_size: int) -> None:
        _BATCH_SIZE.write(self._image, batch_size)

    def quant_scale(self) -> float:
        """The scale of quantized elements, rounded to float32; 0 when unused."""
        return _QUANT_SCALE.read(self._image)

    def set_quant_scale(self, quant_scale: float) -> None:
        _QUANT_SCALE.write(self._image, quant_scale)

    def quant_zero_point(self) -> int:
        """The stored value that stands for 0; 0 when unused."""
        return _QUANT_ZERO_POINT.read(self._image)

    def set_quant_zero_point(self, quant_zero_point: int) -> None:
        _QUANT_ZERO_POINT.write(self._image, quant_zero_point)

    def __repr__(self) -> str:
        held = f"{self.size()} bytes, {'owned' if self._owner else 'borrowed'}" if self.size() else "empty"
        return f"<vlink.Tensor {self.dtype()!r} {self.shape()}, {held}>"


def _lent(data: object, *, copy: bool) -> memoryview:
    """The bytes of ``data``, borrowed; an array with gaps is copied into C order if ``copy``."""
    array = borrow(data)
    if not array.flags.c_contiguous:
        if not copy:
            raise ValueError("the array has gaps or another order than C: copy it (deep_copy) or pack it first")
        array = np.ascontiguousarray(array)
    return flat_bytes(array)


def _address(data: memoryview) -> int:
    """Where ``data``, which is not empty, starts in memory."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address

"""Whatever VLink can carry comes back as it went; whatever arrives gives a tensor or one of our errors."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorferry import DType, FerryError, Labels, Plane, Quantization, Tensor, Unsupported, WireError, vlink
from tensorferry.tensor import Description

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))


def fits(room: int) -> Any:
    """Texts that a field of ``room`` bytes can hold."""
    texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=room)
    return texts.filter(lambda text: len(text.encode()) <= room)


LABELS = st.builds(
    Labels, name=fits(32), model_id=fits(32), layout=fits(16), frame_id=fits(16), seq=U32, time_meas=U64,
    time_pub=U64, update_time_ns=U64, channel=U32, freq=U32, batch_size=st.none() | U32, device=U8,
)  # fmt: skip
QUANTIZATIONS = st.builds(
    Quantization.per_tensor, st.floats(width=32), st.none() | st.integers(-(2**31), 2**31 - 1)
).filter(lambda q: q.scales[0] != 0 or not q.symmetric)
RESERVED = st.builds(vlink.Reserved, U32, U8, U16, U32)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors that an envelope can carry in full, over just enough bytes or some more."""
    dtype = draw(st.sampled_from(list(DType)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=8)))
    strides = draw(st.none() | st.tuples(*[st.integers(0, 9)] * len(shape)))
    if strides is not None and shape and not any(strides):
        strides = (*strides[:-1], 1)
    in_bytes = None if strides is None else tuple(stride * dtype.size for stride in strides)
    description = Description(dtype, shape, in_bytes, quantization=draw(st.none() | QUANTIZATIONS))
    reach = sum((n - 1) * stride for n, stride in zip(shape, description.strides, strict=True)) + dtype.size
    size = (0 if 0 in shape else reach) + draw(st.integers(0, 9))
    data = np.random.default_rng(draw(st.integers(0, 2**32))).bytes(size)
    return Tensor(
        description,
        (Plane(memoryview(data), size),),
        labels=draw(st.none() | LABELS),
        carried=draw(st.none() | RESERVED),
    )


@given(tensors())
def test_what_vlink_can_carry_comes_back(tensor: Tensor) -> None:
    wire = vlink.export(tensor)
    back = vlink.import_(wire)
    assert (back.dtype, back.shape, back.strides) == (tensor.dtype, tensor.shape, tensor.strides)
    assert back.strides_given == (tensor.strides_given or not tensor.shape)
    assert back.numpy().tobytes() == tensor.numpy().tobytes()
    assert back.quantization == tensor.quantization
    batch = tensor.shape[0] if tensor.shape else 0
    assert (back.labels or Labels()) == settled(tensor.labels, batch)
    assert reserved(back) == reserved(tensor)
    assert vlink.export(back) == wire
    container = vlink.Tensor()
    assert container.from_bytes(wire)
    assert container.to_bytes() == wire


def settled(labels: Labels | None, batch: int) -> Labels:
    """The labels as they come back: the batch a number, unless all is as in a new container."""
    if labels is None or (labels.said() in ((), ("batch_size",)) and labels.batch_size in (None, batch)):
        return Labels()
    said = {name: getattr(labels, name) for name in Labels.__dataclass_fields__}
    return Labels(**said | {"batch_size": batch if labels.batch_size is None else labels.batch_size})


def reserved(tensor: Tensor) -> list[int]:
    carried = tensor.carried
    return [getattr(carried, name) if carried else 0 for name in vlink.Reserved.__slots__]


def look(data: bytes) -> None:
    """Read ``data`` every way there is: results or our errors, and little memory."""
    tracemalloc.start()
    try:
        accepted = vlink.Tensor.check_valid(data)
        container = vlink.Tensor()
        assert container.from_bytes(data) is accepted
        if accepted:
            repr(container), container.shape(), container.strides(), container.name(), container.header.frame_id
            assert container.dtype() is not None
            again = container.to_bytes()
            assert len(again) == len(data)
            assert again[256:] == data[256:]
            del again
        else:
            assert not container.is_valid()
        try:
            tensor = vlink.import_(data)
        except (WireError, Unsupported):
            return
        assert accepted
        try:
            array = tensor.numpy()
        except FerryError:
            return
        assert array.shape == tensor.shape
        if array.size < 10_000:
            array.tobytes()
        vlink.import_(vlink.export(tensor))
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * len(data) + (1 << 20)


@given(st.binary(max_size=600))
@example(b"")
def test_random_bytes(data: bytes) -> None:
    look(data)


@given(st.binary(min_size=248, max_size=248), st.binary(max_size=64))
def test_a_random_struct_in_an_honest_envelope(build: Callable[..., bytes], struct: bytes, elements: bytes) -> None:
    data = bytearray(build(elements))
    data[8:256] = struct
    data[56:64] = len(elements).to_bytes(8, "little")
    look(bytes(data))


@settings(max_examples=400)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6),
    st.integers(-8, 8),
    tensors(),
)
def test_damage(patches: list[tuple[int, bytes]], cut: int, tensor: Tensor) -> None:
    data = bytearray(vlink.export(tensor))
    for offset, patch in patches:
        at = offset % len(data)
        data[at : at + len(patch)] = patch[: len(data) - at]
    look(bytes(data[:cut] if cut < 0 else data + bytes(cut)))


@given(
    st.lists(U32 | st.integers(0, 5), min_size=8, max_size=8),
    st.lists(U32 | st.integers(0, 5), min_size=8, max_size=8),
    st.integers(0, 8),
    st.integers(1, 13),
    st.binary(max_size=64),
)
def test_any_shape_and_strides(
    build: Callable[..., bytes], shape: list[int], strides: list[int], rank: int, dtype: int, elements: bytes
) -> None:
    data = build(elements, shape=tuple(shape), strides=tuple(strides), rank=rank, dtype=dtype, num_elements=0)
    look(data)

"""The attachment: what is written is read, and what a stranger writes is believed or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorferry as ferry
from tensorferry.net.attachment import (
    MAGIC,
    MAX_BYTES,
    Attachment,
    DescriptorId,
    References,
    read_attachment,
    write_attachment,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LABELS = st.builds(
    ferry.Labels,
    name=TEXT,
    model_id=TEXT,
    layout=TEXT,
    frame_id=TEXT,
    seq=U32,
    time_meas=U64,
    time_pub=U64,
    update_time_ns=U64,
    channel=U32,
    freq=U32,
    batch_size=st.none() | U32,
    device=st.integers(0, 255),
)
DESCRIPTORS = st.lists(st.builds(DescriptorId, st.integers(0, 2**31 - 1), U64, U64), max_size=5).map(tuple)
REFERENCES = st.builds(References, st.binary(min_size=16, max_size=16), DESCRIPTORS)


@given(st.builds(Attachment, U64, st.none() | LABELS, st.none() | REFERENCES))
def test_reads_what_it_wrote(attachment: Attachment) -> None:
    data = write_attachment(attachment)
    assert read_attachment(data) == attachment
    assert len(data) <= MAX_BYTES


def test_is_laid_out_as_documented() -> None:
    labels = ferry.Labels(name="é", seq=7, batch_size=2, device=1)
    data = write_attachment(Attachment(5, labels, References(bytes(range(16)), (DescriptorId(3, 4, 5),))))
    assert data[:4] == b"TFa1"
    assert data[4:16] == bytes([1, 0, 8, 0]) + (5).to_bytes(8, "little")
    numbers = bytes(24) + b"".join(n.to_bytes(4, "little") for n in (7, 0, 0, 2)) + bytes([1, 1, 0, 0])
    texts = b"\2\0\xc3\xa9" + b"\0\0" + b"\0\0" + b"\7\0unknown"
    assert data[16 : 20 + len(numbers + texts)] == b"\2\0" + bytes([len(numbers + texts), 0]) + numbers + texts
    table = b"".join(n.to_bytes(size, "little") for n, size in ((3, 4), (4, 8), (5, 8)))
    assert data[20 + len(numbers + texts) :] == bytes([3, 0, 36, 0]) + bytes(range(16)) + table


@pytest.mark.parametrize("data", [b"", b"TF", b"\0" * 40, b"rmw_zenoh's own", b"TFa2" + bytes(8)])
def test_somebody_elses_says_nothing(data: bytes) -> None:
    assert read_attachment(data) == Attachment()


def test_a_record_of_a_later_version_is_skipped() -> None:
    later = (9).to_bytes(2, "little") + (3).to_bytes(2, "little") + b"new"
    assert read_attachment(MAGIC + later + write_attachment(Attachment(5))[4:]) == Attachment(5)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (b"\1", ferry.Truncated),
        (b"\1\0\x08\0" + bytes(7), ferry.ForgedLength),
        (b"\1\0\xff\xff" + bytes(8), ferry.ForgedLength),
        (b"\1\0\4\0" + bytes(4), ferry.Malformed),
        (b"\1\0\x08\0" + bytes(8) + b"\1\0\x08\0" + bytes(8), ferry.Malformed),
        (b"\2\0\1\0\0", ferry.Malformed),
        (b"\2\0\x2c\0" + bytes(44), ferry.Malformed),
        (b"\2\0\x34\0" + bytes(44) + bytes(6) + b"\xff\xff", ferry.Malformed),
        (b"\2\0\x35\0" + bytes(44) + bytes(9), ferry.Malformed),
        (b"\2\0\x35\0" + bytes(44) + b"\1\0\xff" + bytes(6), ferry.InvalidUtf8),
        (b"\3\0\0\0", ferry.Malformed),
        (b"\3\0\x13\0" + bytes(19), ferry.Malformed),
    ],
)
def test_what_cannot_be_believed_is_refused(records: bytes, error: type[ferry.WireError]) -> None:
    with pytest.raises(error) as caught:
        read_attachment(MAGIC + records)
    assert type(caught.value) is error
    assert caught.value.field


@given(st.binary(max_size=200))
def test_any_bytes_are_believed_or_refused(data: bytes) -> None:
    for attempt in (data, MAGIC + data):
        try:
            read_attachment(attempt)
        except ferry.WireError:
            continue


@given(st.builds(Attachment, U64, LABELS, REFERENCES), st.data())
def test_a_cut_one_is_refused_or_says_less(attachment: Attachment, data: st.DataObject) -> None:
    whole = write_attachment(attachment)
    cut = whole[: data.draw(st.integers(4, len(whole) - 1))]
    try:
        read = read_attachment(cut)
    except ferry.WireError:
        return
    assert read.references is None


def test_labels_too_long_to_travel_are_said_so() -> None:
    with pytest.raises(ferry.Unsupported, match="name has 70000 bytes"):
        write_attachment(Attachment(0, ferry.Labels(name="n" * 70000)))
    with pytest.raises(ferry.Unsupported, match="labels take"):
        write_attachment(Attachment(0, ferry.Labels(name="n" * 40000, layout="l" * 40000)))

"""The hex dump: every byte once, in the colour of its field."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tensorferry.blob.fields import fields as blob_fields
from tensorferry.cli.hexdump import Elided, Line, dump, lines
from tensorferry.fields import Field
from tensorferry.vlink.fields import fields as vlink_fields

Case = dict[str, Any]


def owners(fields: list[Field]) -> list[int]:
    """The field that each byte belongs to."""
    return [i for i, field in enumerate(fields) for _ in range(field.length)]


def check_dump(data: bytes, fields: list[Field], everything: bool) -> None:
    """Lines and elisions cover each byte once, under its own field; each field is named once or elided."""
    wanted = owners(fields)
    at = 0
    named: list[int] = []
    for line in lines(fields, everything=everything):
        assert line.offset == at
        if isinstance(line, Elided):
            assert not everything
            assert line.offset % 16 == 0
            assert set(wanted[at : at + line.length]) == {line.owner}
            at += line.length
        else:
            assert isinstance(line, Line)
            assert list(line.owners) == wanted[at : at + len(line.owners)]
            named += line.starting
            at += len(line.owners)
            assert len(line.owners) == 16 or at == len(data)
    assert at == len(data)
    assert named == [i for i, field in enumerate(fields) if field.length]


def printed(data: bytes, fields: list[Field], width: int, everything: bool = True) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    dump(console, memoryview(data), fields, None, everything=everything)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def read_back(text: str) -> bytes:
    """The bytes that a dump shows."""
    return b"".join(
        bytes.fromhex(match[1]) for match in re.finditer(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} {1,2}){1,16})", text, re.M)
    )


@pytest.mark.parametrize("everything", [True, False])
def test_covers_the_vectors(data: Path, everything: bool) -> None:
    for file in data.glob("blob/*.blob"):
        wire = file.read_bytes()
        check_dump(wire, blob_fields(wire), everything)
    for file in data.glob("vlink/*.vlt"):
        wire = file.read_bytes()
        check_dump(wire, vlink_fields(wire), everything)


def test_covers_the_damaged(hostile: list[tuple[Case, bytes]]) -> None:
    for _, wire in hostile:
        check_dump(wire, blob_fields(wire), everything=True)
        check_dump(wire, blob_fields(wire), everything=False)


@given(st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_covers_any_fields(lengths: list[int], everything: bool) -> None:
    fields = []
    at = 0
    for i, length in enumerate(lengths):
        if length:
            fields.append(Field(at, length, f"f{i}", i))
            at += length
    check_dump(bytes(at), fields, everything)


@pytest.mark.parametrize("width", [60, 80, 112, 160])
def test_shows_the_bytes_that_are_there(data: Path, width: int) -> None:
    for name in ("image_NV12_33x17", "image_rgb8_33x17", "quant_i8_pt_asym"):
        file = data / "blob" / f"{name}.blob"
        if file.exists():
            wire = file.read_bytes()
            text = printed(wire, blob_fields(wire), width)
            if width >= 80:
                assert read_back(text) == wire
                assert all(field.name.rpartition(".")[2] in text for field in blob_fields(wire))


def test_payloads_are_elided_in_the_middle(data: Path) -> None:
    wire = (data / "blob" / "image_NV12_64x48.blob").read_bytes()
    text = printed(wire, blob_fields(wire), 160, everything=False)
    assert "⋯ 2,960 more bytes of planes[0].data (--all shows them)" in text
    assert len(text.splitlines()) < 50


def test_the_command_colours_and_elides(ferry_cli: Callable[..., Any], data: Path) -> None:
    file = data / "blob" / "image_NV12_64x48.blob"
    assert "--all shows them" in ferry_cli("inspect", "--hex", file).out
    assert read_back(ferry_cli("inspect", "--hex", "--all", file).out) == file.read_bytes()

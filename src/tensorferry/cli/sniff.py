"""What bytes look like that are no tensor of ours."""

from __future__ import annotations

import codecs

__all__ = ["looks_like"]

# offset, magic, what it is
_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", "a JPEG image (tensorferry convert takes it)"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image (tensorferry convert takes it)"),
    (0, b"GIF87a", "a GIF image"),
    (0, b"GIF89a", "a GIF image"),
    (0, b"II*\0", "a TIFF image"),
    (0, b"MM\0*", "a TIFF image"),
    (8, b"WEBP", "a WebP image (tensorferry convert takes it)"),
    (4, b"ftyp", "an MP4 or HEIF file"),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM film"),
    (0, b"\x93NUMPY", "a NumPy array (tensorferry convert takes it)"),
    (0, b"\x89MCAP0\r\n", "an MCAP recording, as a VLink .vcap is (tensorferry info reads it)"),
    (0, b"SQLite format 3\0", "an SQLite database, as a VLink .vdb is (tensorferry info reads it)"),
    (0, b"#ROSBAG V", "a ROS 1 bag"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (0, b"ARROW1\0\0", "an Arrow file"),
    (0, b"PAR1", "a Parquet file"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (0, b"PK\x03\x04", "a zip archive, as .npz (tensorferry convert takes it) and PyTorch files are"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (0, b"\x04\x22\x4d\x18", "an LZ4 archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ\0", "an xz archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"%PDF-", "a PDF document"),
    (0, b"\x7fELF", "an ELF program"),
    (8, b'{"', "a safetensors file (tensorferry convert takes it)"),
    (0, b"\x80\x02", "a Python pickle"),
    (0, b"\x80\x03", "a Python pickle"),
    (0, b"\x80\x04\x95", "a Python pickle"),
    (0, b"\x80\x05\x95", "a Python pickle"),
)

_TEXT_SAMPLE = 512
_LARGEST_BLOB = 1 << 48  # no machine has more address space


def looks_like(data: memoryview) -> str | None:
    """What ``data``, which was refused, looks like; None where it may well be a damaged tensor.

    Ask only about refused bytes: a sound blob may start with another format's magic, by its size.
    """
    head = bytes(data[:_TEXT_SAMPLE])
    size, required_mask = (int.from_bytes(head[at : at + 8], "little") for at in (0, 8))
    if size < _LARGEST_BLOB and not required_mask:
        return None
    for offset, magic, name in _MAGICS:
        if head.startswith(magic, offset):
            return name
    if _is_text(head, final=len(head) == len(data)):
        return "JSON" if head.lstrip().startswith((b"{", b"[")) else "text"
    return f"nothing known here (it starts {head[:8].hex(' ')})" if size >= _LARGEST_BLOB and required_mask else None


def _is_text(head: bytes, *, final: bool) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final)
    except UnicodeDecodeError:
        return False
    return bool(text) and all(char.isprintable() or char in "\t\n\r\f" for char in text)

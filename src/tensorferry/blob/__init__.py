"""The tensor blob: a size-prefixed, append-only serialization of a tensor (the first seed).

Pure functions between ``Tensor`` and bytes. Every integer is little-endian on every host.
"""

from ..errors import WireError as BlobError
from .exporting import TransportMode, export, export_into, export_parts
from .header import (
    HEADER_LEN,
    HEADER_PID_OFFSET,
    PLANE_RECORD_LEN,
    SUPPORTED_REQUIRED_MASK,
    BlobHeader,
    Regions,
    parse_header,
    region_offsets,
)
from .importing import import_
from .planes import D3D11_HANDLE_BYTES, BlobPlane, D3D11Handle, parse_planes, write_plane
from .strings import BlobStrings, parse_strings, strings_encoded_len, write_strings
from .view import BlobQuantization, BlobView, iter_blobs

__all__ = [
    "D3D11_HANDLE_BYTES",
    "HEADER_LEN",
    "HEADER_PID_OFFSET",
    "PLANE_RECORD_LEN",
    "SUPPORTED_REQUIRED_MASK",
    "BlobError",
    "BlobHeader",
    "BlobPlane",
    "BlobQuantization",
    "BlobStrings",
    "BlobView",
    "D3D11Handle",
    "Regions",
    "TransportMode",
    "export",
    "export_into",
    "export_parts",
    "import_",
    "iter_blobs",
    "parse_header",
    "parse_planes",
    "parse_strings",
    "region_offsets",
    "strings_encoded_len",
    "write_plane",
    "write_strings",
]

"""The VLink tensor: a 248-byte struct, its elements, an envelope around both (the second seed).

Pure functions between ``tensorferry.Tensor`` and bytes; and, apart from them, VLink's own container.
"""

from typing import TYPE_CHECKING, Any

from .codes import DataType, Device
from .envelope import (
    MAGIC_BEGIN,
    MAGIC_BEGIN_BYTES,
    MAGIC_END,
    MAGIC_END_BYTES,
    OVERHEAD,
    VERSION,
    VERSION_MAJOR,
)
from .exporting import export, export_into, export_parts
from .header import Header
from .importing import Reserved, import_
from .record import HEADER_LEN, MAX_RANK, STRUCT_LEN

if TYPE_CHECKING:
    from .container import Tensor

__all__ = [
    "HEADER_LEN",
    "MAGIC_BEGIN",
    "MAGIC_BEGIN_BYTES",
    "MAGIC_END",
    "MAGIC_END_BYTES",
    "MAX_RANK",
    "OVERHEAD",
    "STRUCT_LEN",
    "VERSION",
    "VERSION_MAJOR",
    "DataType",
    "Device",
    "Header",
    "Reserved",
    "Tensor",
    "export",
    "export_into",
    "export_parts",
    "import_",
]


def __getattr__(name: str) -> Any:
    # The container is the largest module here, and no message passes through it: loaded when it is asked for.
    if name == "Tensor":
        from .container import Tensor

        globals()[name] = Tensor
        return Tensor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

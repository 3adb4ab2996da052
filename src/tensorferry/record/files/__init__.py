"""Files that people have, read into tensors and written from them: one module a format, one table of all."""

from .entry import Entry, Format, Loss, Written
from .table import FORMATS, encode, format_of, read, write

__all__ = ["FORMATS", "Entry", "Format", "Loss", "Written", "encode", "format_of", "read", "write"]

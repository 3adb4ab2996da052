"""Recordings: streams of blobs, MCAP and VLink bags, read as one shape, ``Record``."""

from .appending import Dropped, StreamWriter, append
from .opening import open
from .record import Damage, Record, Recording, TopicInfo
from .repairing import Repaired, repair
from .stream import BlobStream

__all__ = [
    "BlobStream",
    "Damage",
    "Dropped",
    "Record",
    "Recording",
    "Repaired",
    "StreamWriter",
    "TopicInfo",
    "append",
    "open",
    "repair",
]

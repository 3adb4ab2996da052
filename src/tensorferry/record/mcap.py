"""MCAP files: read any, write those whose messages are tensors. Needs ``pip install tensorferry[record]``."""

from __future__ import annotations

import os

from ..closing import Closing
from ..errors import Unsupported
from ..tensor import Tensor
from .mcap_output import McapOutput, encoders
from .record import Recording

__all__ = ["McapWriter", "missing_mcap", "open_mcap"]


def open_mcap(path: str | os.PathLike[str], *, strict: bool = True) -> Recording:
    """The MCAP file at ``path``, as a Recording of the tensors in it.

    Which channels hold tensors is told by their message encoding and schema, and where those say nothing, by the
    first message. Files without a summary, or without an end, are read as far as they go, and ``damage`` says where
    that is. ``strict`` raises at damage within the file; without, damage is passed over and listed. Uncompressed
    chunks are not copied. Raises OSError, WireError for what is no MCAP file, Unsupported without the extra.
    """
    try:
        from .mcap_file import McapFile
        from .mcap_reading import McapRecording
    except ImportError as error:
        raise missing_mcap(error) from error
    return McapRecording(McapFile(path), strict=strict)


def missing_mcap(error: ImportError) -> Unsupported:
    """What to say where the extra is not installed."""
    return Unsupported(f"MCAP files need the package mcap ({error}): install tensorferry[record]", field="mcap")


class McapWriter(Closing):
    """Writes tensors to an MCAP file, as blobs, VLink envelopes or EdgeFirst messages.

    The file is written beside ``path``, as ``<path>.part``, and takes its place when it is closed: what was there
    before stays until then. Chunks are written as they fill, or at ``flush``; after a crash the ``.part`` is read
    by ``open_mcap`` up to the last of them. Leaving a ``with`` closes, after an error too: what was written is whole.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "blob",
        compression: str = "zstd",
        chunk_size: int = 1 << 20,
    ) -> None:
        """``format`` is "blob", "vlink", "Tensor", "TensorStamped" or "CameraFrame".

        ``compression`` is "zstd", "lz4" or "none"; ``chunk_size`` is bytes before it. Raises FileExistsError where a
        ``.part`` is in the way, ValueError for unknown names, OSError, Unsupported without the extra.
        """
        self.format = format
        encoders(format)
        self._output = McapOutput(path, compression=compression, chunk_size=chunk_size)
        self._output.start(profile="")
        self._channels: dict[str, tuple[int, str]] = {}

    def write(
        self,
        topic: str,
        tensor: Tensor,
        *,
        log_time: int,
        publish_time: int | None = None,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Write ``tensor`` under ``topic``. Times are ns; publish_time None is log_time.

        ``format`` None is the writer's. Raises Lossy as the format's export does, ValueError where the topic has
        messages in another format already, or times that do not fit 64 unsigned bits. Nothing is written then.
        """
        encoder = encoders(self.format if format is None else format)
        channel, used = self._channels.get(topic, (0, encoder.name))
        if used != encoder.name:
            raise ValueError(f"topic {topic!r} holds {used!r} already: write {encoder.name!r} under another topic")
        data = encoder.encode(tensor, lossy)
        self._output.check_times(log_time, log_time if publish_time is None else publish_time)
        if not channel:
            channel = self._output.add_channel(topic, encoder)
            self._channels[topic] = channel, used
        self._output.add_message(channel, data, log_time, log_time if publish_time is None else publish_time)

    def flush(self) -> None:
        """Write the chunk that was begun; what was written so far then survives this process."""
        self._output.flush()

    def close(self) -> None:
        """Finish the file and put it in its place. Closing twice is fine."""
        self._output.close()

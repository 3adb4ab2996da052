"""VLink's ``.vcap`` bags: MCAP, with metadata records that say what each URL carries."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .. import vlink
from ..closing import Closing
from ..tensor import Tensor
from .mcap import missing_mcap
from .mcap_output import McapOutput, encoders
from .payloads import VLINK_ENCODING, VLINK_TENSOR, Payload
from .record import Recording
from .vlink_names import CHANNEL, HEADER, PROFILE, payload_of, refuse_packed

if TYPE_CHECKING:
    from mcap.records import Channel, Schema

__all__ = ["VcapWriter", "open_vcap"]

_CHUNKS = ("zstd", "lz4")
_MS = 1_000_000


def open_vcap(path: str | os.PathLike[str], *, strict: bool = True) -> Recording:
    """The ``.vcap`` bag at ``path``: topics are URLs, log times are what the bag has, ns since 1970.

    A bag without an end is read as far as it goes; then what each URL carries is told by its first message, since
    the records that say so come last. Raises as ``open_mcap``, and Unsupported for payloads that are compressed.
    """
    try:
        from .mcap_file import McapFile
        from .mcap_reading import McapRecording
    except ImportError as error:
        raise missing_mcap(error) from error
    file = McapFile(path)
    try:
        words = file.metadata()
        refuse_packed(words.get(HEADER, {}).get("compress", ""), chunks=_CHUNKS)
    except BaseException:
        file.close()
        raise

    def naming(channel: Channel, schema: Schema | None) -> Payload | None:
        about = words.get(f"{CHANNEL}{channel.id}", {})
        ser = about.get("ser", "" if schema is None else schema.name)
        return payload_of(ser, about.get("encoding", channel.message_encoding))

    return McapRecording(file, strict=strict, naming=naming)


class VcapWriter(Closing):
    """Writes tensors to a ``.vcap`` bag that VLink plays: profile, metadata records and channels are VLink's own.

    Written beside its place, flushed and closed as ``McapWriter``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str = "zstd",
        chunk_size: int = 1 << 20,
        start_timestamp: int | None = None,
        tag: str = "",
        process: str | None = None,
    ) -> None:
        """``start_timestamp`` is ms since 1970, by default the first message's; ``process`` the program's name.

        Otherwise as ``McapWriter``. ``compression`` is "zstd" or "none": VLink reads no other.
        """
        if compression not in ("zstd", "none"):
            raise ValueError(f"compression {compression!r} is neither 'zstd' nor 'none', which is what VLink reads")
        if start_timestamp is not None and start_timestamp < 0:
            raise ValueError(f"start_timestamp {start_timestamp} is before 1970")
        self._compress = "None" if compression == "none" else compression
        self._start = start_timestamp
        self._tag = tag
        self._process = Path(sys.argv[0]).name if process is None else process
        self._begun = False
        self._urls: dict[str, _Url] = {}
        self._output = McapOutput(path, compression=compression, chunk_size=chunk_size)
        self._output.start(profile=PROFILE)

    def write(
        self, url: str, tensor: Tensor, *, log_time: int, publish_time: int | None = None, lossy: bool = False
    ) -> None:
        """Write ``tensor`` as a VLink envelope under ``url``, as if it was published there.

        Times are ns; publish_time None is log_time. Raises Lossy as ``vlink.export`` does, ValueError for times
        before the bag's start or past 64 bits.
        """
        data = encoders("vlink").encode(tensor, lossy)
        published = log_time if publish_time is None else publish_time
        self._output.check_times(log_time, published)
        if self._start is not None and log_time < self._start * _MS:
            raise ValueError(f"log_time {log_time} ns is before the bag's start, {self._start} ms")
        self._begin(log_time // _MS)
        entry = self._urls.get(url)
        if entry is None:
            number = self._output.add_bare_channel(url, VLINK_ENCODING, {"action": "Pub"})
            self._urls[url] = entry = _Url(number, log_time)
        self._output.add_message(entry.number, data, log_time, published)
        entry.add(len(data), log_time)

    def flush(self) -> None:
        """Write the chunk that was begun; what was written so far then survives this process."""
        self._output.flush()

    def close(self) -> None:
        """Write what VLink wants to know of each URL, finish the file and put it in its place. Twice is fine."""
        if not self._output.closed:
            self._begin(time.time_ns() // _MS)
            self._output.flush()  # the records about URLs come behind the last chunk
            for entry in self._urls.values():
                self._output.add_metadata(f"{CHANNEL}{entry.number}", entry.words())
        self._output.close()

    def _begin(self, start: int) -> None:
        if self._begun:
            return
        self._begun = True
        self._start = start if self._start is None else self._start
        seconds, ms = divmod(self._start, 1000)
        local = time.localtime(seconds)
        version = vlink.VERSION
        self._output.add_metadata(
            HEADER,
            {
                "tag": self._tag,
                "version": f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}",
                "compress": self._compress,
                "process": self._process,
                "date": f"{time.strftime('%Y/%m/%d %H:%M:%S', local)}:{ms:03}",
                "timezone": str(local.tm_gmtoff // 60),
                "start_timestamp": str(self._start),
            },
        )


class _Url:
    """What is counted of one URL. ``number`` is its channel's, sizes are bytes, times ns."""

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = self.last = first
        self.count = self.size = 0

    def add(self, size: int, log_time: int) -> None:
        self.count += 1
        self.size += size
        self.last = max(self.last, log_time)

    def words(self) -> dict[str, str]:
        """The metadata record about it."""
        seconds = (self.last - self.first) / 1e9
        return {
            "index": str(self.number - 1),
            "type": "Event",
            "action": "Pub",
            "encoding": VLINK_ENCODING,
            "ser": VLINK_TENSOR,
            "count": str(self.count),
            "size": str(self.size),
            "loss": f"{0:.6f}",
            "freq": f"{self.count / seconds if seconds > 0 else 0:.6f}",
        }

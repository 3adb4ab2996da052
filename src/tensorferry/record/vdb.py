"""VLink's ``.vdb`` bags: an SQLite file with four tables.

The user's file is opened read-only and as immutable: SQLite then takes no lock, writes nothing and puts nothing
beside it. It also reads no write-ahead log, so where a crash left one, file and log are read as a copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from ..errors import Closed, FerryError, Malformed, Truncated, Unsupported, WireError
from .payloads import Payload, recognised
from .record import Damage, Record, Recording, TopicInfo
from .source import ReadFile
from .vlink_names import integer, payload_of, refuse_packed

__all__ = ["VdbRecording", "open_vdb"]

_MS = 1_000_000
_US = 1_000
_TIMES = 1 << 64
_SIDECARS = ("-wal", "-journal")
_ACCURACY = "MicroSecond"
# The sqlite3 module decodes names and messages out of a damaged file, and takes the memory that its rows claim.
_FAILURES = (sqlite3.Error, UnicodeDecodeError, MemoryError)
_HEADER = Struct(">16xH10xI")  # SQLite's own: bytes of a page (1: 65,536), pages
_COLUMNS = {
    "VLinkHeader": ("compress", "start_timestamp"),
    "VLinkUrls": ("id", "url"),
    "VLinkDatas": ("elapsed", "url", "data"),
}


def open_vdb(path: str | os.PathLike[str], *, strict: bool = True) -> VdbRecording:
    """The ``.vdb`` bag at ``path``: topics are URLs, log times start_timestamp + elapsed, ns since 1970.

    The file is never locked or changed. Where a non-empty ``-wal`` or ``-journal`` lies beside it, as a crash
    leaves them, all are copied to a temporary folder (TMPDIR) and read there. ``strict`` raises at damage; without,
    it is passed over and listed in ``damage``, which counts no bytes here: the message names the row. Raises OSError,
    WireError for what is no such bag, Unsupported for compressed payloads.
    """
    return VdbRecording(Path(path), strict=strict)


class _Url(NamedTuple):
    """A row of VLinkUrls."""

    name: str
    ser: str
    encoding: str


class VdbRecording(Recording):
    """A ``.vdb`` bag, open for reading: see ``open_vdb``. ``complete`` is what its header says."""

    def __init__(self, path: Path, *, strict: bool = True) -> None:
        self.path = path
        self._strict = strict
        self._damage: list[Damage] = []
        self._payloads: dict[int, Payload] = {}
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._db: sqlite3.Connection | None = None
        cut = _cut(path)
        self._cut = cut is not None
        try:
            self._db = self._connect()
            if cut is not None:
                # Without, SQLite reads nothing of a file that is shorter than it says. Nothing is written.
                self._db.execute("PRAGMA writable_schema = ON")
            self._check_tables()
            self._read_header()
            self._urls = self._read_urls()
        except _FAILURES as error:
            self.close()
            raise Malformed(f"{path} is no VLink bag: SQLite says {str(error)!r}", field="VLinkHeader") from None
        except BaseException:
            self.close()
            raise
        if cut is not None:
            self.complete = False
            self._note(cut)

    def __iter__(self) -> Iterator[Record]:
        """Records as they were written; WireError or Unsupported at damage with ``strict``, passed over without."""
        return self.select()

    def select(
        self, topics: Collection[str] | None = None, *, start: int | None = None, end: int | None = None
    ) -> Iterator[Record]:
        """As ``Recording.select``; SQLite does not look at the payloads of other topics and times."""
        wanted = [number for number, url in self._urls.items() if topics is None or url.name in topics]
        every = topics is None
        for row in self._rows(wanted, start, end, every=every):
            try:
                record = self._record(*row)
            except FerryError as error:
                self._damaged(error)
                continue
            if record is not None:
                yield record

    @property
    def topics(self) -> list[TopicInfo]:
        """By VLinkUrls and a count of VLinkDatas; no payload is read but the first of a URL that says nothing."""
        query = "SELECT url, COUNT(*), MIN(elapsed), MAX(elapsed) FROM VLinkDatas GROUP BY url"
        try:
            counts = {url: rest for url, *rest in self._execute(query)}
        except _FAILURES as error:
            self._ended(error, 0)
            counts = {}
        found = []
        for number, url in self._urls.items():
            count, first, last = counts.get(number, (0, None, None))
            payload = self._payload(number, self._first(number) if count else None)
            first, last = (self._time(elapsed) if isinstance(elapsed, int) else None for elapsed in (first, last))
            found.append(TopicInfo(url.name, count, payload.kind, payload.encoding, first, last, payload.why))
        return found

    @property
    def damage(self) -> Sequence[Damage]:
        """What was passed over so far, and that the recorder was not closed where the header says so."""
        return tuple(self._damage)

    def close(self) -> None:
        """Let the file go, and the copy of it if there was one. Closing twice is fine."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def __enter__(self) -> VdbRecording:
        return self

    def __repr__(self) -> str:
        return f"<VdbRecording {str(self.path)!r}>"

    # ---- opening ----

    def _connect(self) -> sqlite3.Connection:
        left = [name for name in _SIDECARS if _size(self.path.with_name(self.path.name + name))]
        if left:
            place, options = self._copied(left), "mode=rw"
        else:
            place, options = self.path.absolute(), "mode=ro&immutable=1"
        db = sqlite3.connect(f"{place.as_uri()}?{options}", uri=True, check_same_thread=False)
        db.text_factory = _text
        try:
            # Whoever made the file may have put code into its schema.
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA cell_size_check = ON")
        except BaseException:
            db.close()
            raise
        return db

    def _copied(self, left: list[str]) -> Path:
        """A copy of the bag and of what a crash left beside it."""
        self._copy = tempfile.TemporaryDirectory(prefix="tensorferry-")
        copy = Path(self._copy.name) / "bag.vdb"
        sources = [self.path, *(self.path.with_name(self.path.name + name) for name in left)]
        before = [_state(source) for source in sources]
        for source, name in zip(sources, ["", *left], strict=True):
            shutil.copyfile(source, copy.with_name(copy.name + name))
        if before != [_state(source) for source in sources]:
            raise Unsupported(f"{self.path} is being written: close the recorder first", field="path", value=self.path)
        return copy

    def _check_tables(self) -> None:
        """Malformed unless the tables are there, as tables of plain columns: a view could be any query."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        tables = {name for (name,) in self._execute(query)}
        for table, needed in _COLUMNS.items():
            if table not in tables:
                raise Malformed(f"{self.path} has no table {table}: it is no VLink bag", field=table)
            columns = {row[1]: row[6] for row in self._execute(f"PRAGMA table_xinfo({table})")}
            missing = [name for name in needed if name not in columns]
            if missing or any(columns.values()):
                raise Malformed(
                    f"{table} of {self.path} " + (f"has no column {missing[0]}" if missing else "has columns of code"),
                    field=table,
                    value=sorted(columns),
                )

    def _read_header(self) -> None:
        cursor = self._execute("SELECT * FROM VLinkHeader LIMIT 1")
        row = cursor.fetchone()
        header = {} if row is None else dict(zip((column[0] for column in cursor.description), row, strict=True))
        refuse_packed(str(header.get("compress") or ""))
        accuracy = header.get("accuracy") or _ACCURACY
        if accuracy != _ACCURACY:
            raise Unsupported(f"times in {accuracy!r} are not read here, only {_ACCURACY}s", field="accuracy")
        self._start = integer(header.get("start_timestamp")) * _MS
        self.complete = bool(header.get("complete", 1)) if header else False
        if not self.complete:
            why = Truncated(f"{self.path} was not closed by its recorder (complete = 0): it may lack its end")
            self._damage.append(Damage(0, 0, why))

    def _read_urls(self) -> dict[int, _Url]:
        cursor = self._execute("SELECT * FROM VLinkUrls")
        names = [column[0] for column in cursor.description]
        found = {}
        for row in cursor:
            values = dict(zip(names, row, strict=True))
            texts = (str(values.get(name) or "") for name in ("url", "ser", "encoding"))
            if type(values["id"]) is int:
                found[values["id"]] = _Url(*texts)
        return found

    # ---- reading ----

    def _execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if self._db is None:
            raise Closed(f"{self.path} was closed: open it again")
        return self._db.execute(query, values)

    def _rows(
        self, urls: list[int], start: int | None, end: int | None, *, every: bool
    ) -> Iterator[tuple[int, object, object, object]]:
        """(row, elapsed, url, data) of messages in the order of writing, as far as SQLite can read them."""
        where, values = [], []
        if not every:
            where.append(f"url IN ({', '.join(map(str, urls))})")
        if start is not None:
            where.append("elapsed >= ?")
            values.append(_ceil(start - self._start))
        if end is not None:
            where.append("elapsed < ?")
            values.append(_ceil(end - self._start))
        condition = f"WHERE {' AND '.join(where)}" if where else ""
        row = 0
        try:
            # NOT INDEXED: an index is a second copy of what is there, and may disagree after a crash.
            query = f"SELECT rowid, elapsed, url, data FROM VLinkDatas NOT INDEXED {condition} ORDER BY rowid"
            for found in self._execute(query, values):
                row = found[0]
                yield found
        except _FAILURES as error:
            self._ended(error, row)

    def _record(self, row: int, elapsed: object, number: object, data: object) -> Record | None:
        """The tensor in one row; None where its URL carries none."""
        url = self._urls.get(number) if isinstance(number, int) else None
        if url is None or not isinstance(number, int):
            raise _bad(row, "url", number, "is of no URL in VLinkUrls")
        payload = self._payload(number, memoryview(data) if isinstance(data, bytes) else None)
        if payload.read is None:
            return None
        if not isinstance(elapsed, int) or not 0 <= self._time(elapsed) < _TIMES:
            raise _bad(row, "elapsed", elapsed, "is no time in microseconds")
        if not isinstance(data, bytes):
            raise _bad(row, "data", type(data).__name__, "is no payload")
        time = self._time(elapsed)
        try:
            return Record(url.name, time, time, payload.read(memoryview(data)))
        except WireError as error:
            error.args = (f"row {row} of {url.name}: {error}", *error.args[1:])
            raise

    def _time(self, elapsed: int) -> int:
        return self._start + elapsed * _US

    def _payload(self, number: int, first: memoryview | None) -> Payload:
        payload = self._payloads.get(number)
        if payload is None:
            url = self._urls[number]
            payload = payload_of(url.ser, url.encoding)
            if payload is None and first is None:
                return Payload(None, url.encoding, why="there is no message that would say what they are")
            if payload is None and first is not None:
                payload = recognised(url.encoding, first)
            assert payload is not None
            self._payloads[number] = payload
        return payload

    def _first(self, number: int) -> memoryview | None:
        """The first payload of a URL, where it is needed to tell what the URL carries."""
        url = self._urls[number]
        if number in self._payloads or payload_of(url.ser, url.encoding) is not None:
            return None
        query = "SELECT data FROM VLinkDatas NOT INDEXED WHERE url = ? ORDER BY rowid LIMIT 1"
        try:
            row = self._execute(query, (number,)).fetchone()
        except _FAILURES as error:
            self._ended(error, 0)
            return None
        return memoryview(row[0]) if row is not None and isinstance(row[0], bytes) else None

    def _damaged(self, error: FerryError) -> None:
        # SQLite fills a page that was cut with zeros, so what is wrong in a cut file is its end.
        if self._strict and not self._cut:
            raise error
        self._note(error)

    def _ended(self, error: Exception, row: int) -> None:
        """SQLite can read no further. That is damage, except in a bag that a crash left: there it is the end."""
        what = Malformed(f"{self.path} cannot be read behind row {row}: SQLite says {str(error)!r}", field="VLinkDatas")
        if self._strict and self.complete:
            raise what
        self._note(what)

    def _note(self, error: FerryError) -> None:
        if str(error) not in {str(known.error) for known in self._damage}:
            self._damage.append(Damage(0, 0, error.with_traceback(None)))


def _cut(path: Path) -> Truncated | None:
    """What to say of a file that is shorter than its header claims; None where it is not."""
    source = ReadFile(path)
    try:
        head, size = source.read(0, _HEADER.size), source.size
    finally:
        source.close()
    if len(head) < _HEADER.size:
        return None
    page, count = _HEADER.unpack(head)
    claimed = (65536 if page == 1 else page) * count
    if claimed <= size:
        return None
    return Truncated(f"{path} was cut: it claims {claimed} bytes and has {size}", need=claimed, have=size)


def _bad(row: int, field: str, value: object, why: str) -> Malformed:
    return Malformed(f"{field} {value!r} in row {row} of VLinkDatas {why}", field=field, value=value)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _ceil(ns: int) -> int:
    """The least whole number of microseconds that is not before ``ns``, within what SQLite has room for."""
    return max(min(-(-ns // _US), (1 << 63) - 1), -(1 << 63))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns

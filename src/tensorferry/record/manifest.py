"""VLink's manifests, ``.vcapx`` and ``.vdbx``: JSON that lists the files of a bag that was split."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from ..errors import FerryError, Malformed, Truncated, Unsupported
from .record import Damage, Record, Recording, TopicInfo
from .source import ReadFile

__all__ = ["ManifestRecording", "read_manifest"]

_MAX_BYTES = 1 << 26
_FILES = "VLinkFiles"


def read_manifest(path: str | os.PathLike[str], suffix: str) -> list[Path]:
    """The files that the manifest at ``path`` lists, in its order; each ends in ``suffix``.

    They stand beside the manifest: Malformed for a name that would lead elsewhere (a path, "..", a link out of the
    folder) or is listed twice, and for what is no manifest. Whether a file is there is not looked at.
    """
    place = Path(path)
    names = _names(place)
    folder = place.resolve().parent
    found: list[Path] = []
    for name in names:
        file = _beside(folder, name, suffix)
        if file in found:
            raise Malformed(f"{place} lists {name!r} twice", field=_FILES, value=name)
        found.append(file)
    return found


def _names(path: Path) -> list[object]:
    source = ReadFile(path)
    try:
        if source.size > _MAX_BYTES:
            raise Unsupported(f"{path} has {source.size} bytes, a manifest at most {_MAX_BYTES}", field="size")
        text = source.read(0, source.size)
    finally:
        source.close()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{path} is no JSON: {error}", field=_FILES) from None
    names = content.get(_FILES) if isinstance(content, dict) else None
    if not isinstance(names, list) or not names:
        raise Malformed(f"{path} is no VLink manifest: it has no list {_FILES}", field=_FILES, value=names)
    return names


def _beside(folder: Path, name: object, suffix: str) -> Path:
    """The file ``name`` in ``folder``. Malformed for anything else than a bare name of a file there."""
    bare = isinstance(name, str) and not set(name) & set('/\\:\0"<>|?*') and name not in ("", ".", "..")
    if not bare or not isinstance(name, str):
        raise Malformed(
            f"{_FILES} names {name!r}: only bare names of files beside the manifest are read", field=_FILES, value=name
        )
    if not name.lower().endswith(suffix):
        raise Malformed(f"{_FILES} names {name!r}, which is no {suffix} bag", field=_FILES, value=name)
    try:
        real = (folder / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise Malformed(f"{_FILES} names {name!r}: {error}", field=_FILES, value=name) from None
    if real.parent != folder:
        raise Malformed(f"{_FILES} names {name!r}, a link that leads to {real.parent}", field=_FILES, value=name)
    return folder / name


class ManifestRecording(Recording):
    """The bags that a manifest lists, one behind the other. Offsets in errors count from each bag's own start."""

    def __init__(self, path: Path, suffix: str, opener: Callable[[Path], Recording], *, strict: bool = True) -> None:
        """``opener`` opens one bag. With ``strict``, a bag that is missing or cannot be opened is raised at once."""
        self.path = path
        self._parts: list[Recording] = []
        self._damage: list[Damage] = []
        files = read_manifest(path, suffix)
        try:
            for i, file in enumerate(files):
                self._open(file, f"{i + 1} of {len(files)}", opener, strict)
        except BaseException:
            self.close()
            raise

    def _open(self, file: Path, which: str, opener: Callable[[Path], Recording], strict: bool) -> None:
        try:
            self._parts.append(opener(file))
        except FileNotFoundError:
            missing = Truncated(f"{file.name}, file {which} of {self.path}, is not beside it", field=_FILES)
            self._refused(missing, strict)
        except FerryError as error:
            self._refused(error, strict)

    def _refused(self, error: FerryError, strict: bool) -> None:
        if strict:
            raise error
        self._damage.append(Damage(0, 0, error.with_traceback(None)))

    def __iter__(self) -> Iterator[Record]:
        return self.select()

    def select(
        self, topics: Collection[str] | None = None, *, start: int | None = None, end: int | None = None
    ) -> Iterator[Record]:
        for part in self._parts:
            yield from part.select(topics, start=start, end=end)

    @property
    def topics(self) -> list[TopicInfo]:
        """Of all the bags together."""
        merged: dict[tuple[str, str | None, str], TopicInfo] = {}
        for part in self._parts:
            for topic in part.topics:
                key = topic.name, topic.kind, topic.encoding
                merged[key] = _sum(merged[key], topic) if key in merged else topic
        return list(merged.values())

    @property
    def damage(self) -> Sequence[Damage]:
        return (*self._damage, *(damage for part in self._parts for damage in part.damage))

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def __enter__(self) -> ManifestRecording:
        return self

    def __repr__(self) -> str:
        return f"<ManifestRecording {str(self.path)!r}, {len(self._parts)} bags>"


def _sum(one: TopicInfo, other: TopicInfo) -> TopicInfo:
    firsts = [time for time in (one.first, other.first) if time is not None]
    lasts = [time for time in (one.last, other.last) if time is not None]
    return one._replace(
        messages=one.messages + other.messages,
        first=min(firsts, default=None),
        last=max(lasts, default=None),
        undecoded=one.undecoded and other.undecoded,
    )

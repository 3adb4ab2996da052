"""Files that commands write: each appears whole or not at all, and takes another's place only where that was asked."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from ..parts import Buffer
from ..record.beside import written_beside
from .ending import BadUsage

__all__ = ["check_target", "made_folder", "write_file"]


def check_target(target: Path, force: bool, *, instead: str = "--force overwrites it") -> None:
    """BadUsage where no file can be made at ``target``, or one is there, which ``force`` allows."""
    if target.is_dir():
        raise BadUsage(f"{target}: it is a directory: name the file to write")
    if not target.parent.is_dir():
        raise BadUsage(f"{target}: there is no directory {target.parent}")
    if target.exists() and not force:
        raise BadUsage(f"{target}: it is there already: {instead}")


def write_file(target: Path, parts: Iterable[Buffer], *, force: bool = True) -> None:
    """Write a file beside ``target`` and put it in its place once it is whole. BadUsage where that cannot be."""
    try:
        # Without waiting for the disk: frames of a live stream would wait too.
        with written_beside(target, sync=False) as file:
            for part in parts:
                file.write(part)
            check_target(target, force)
    except OSError as error:
        raise BadUsage(f"{target}: {(error.strerror or str(error)).lower()}") from None


def made_folder(path: str, option: str) -> Path:
    """The directory at ``path``, made if need be. BadUsage where files cannot be written to it."""
    folder = Path(path)
    try:
        folder.mkdir(exist_ok=True)
        # Asking for permissions would believe file systems that are read-only, and root.
        tempfile.TemporaryFile(dir=folder).close()
    except FileExistsError:
        raise BadUsage(f"{path}: it is a file: {option} needs a directory") from None
    except OSError as error:
        raise BadUsage(f"{path}: it cannot be written to: {(error.strerror or str(error)).lower()}") from None
    return folder

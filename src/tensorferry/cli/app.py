"""The commands, and how each of them ends: with one clear line and the right exit status, never a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from .bridge import bridge
from .check import check
from .convert import convert
from .demo import demo
from .doctor import doctor
from .ending import BAD_DATA, BAD_USAGE, INTERRUPTED, PIPE_CLOSED, BadData, BadUsage, complain
from .extract import extract
from .get import get
from .info import info
from .inspect import inspect
from .ls import ls
from .play import play
from .pub import pub
from .record import record
from .recv import recv
from .repair import repair
from .send import send
from .sub import sub
from .topics import topics

__all__ = ["app"]


class _Commands(TyperGroup):
    """Turns what goes wrong inside a command into its exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BadUsage as error:
            complain(str(error))
            raise typer.Exit(BAD_USAGE) from None
        except BrokenPipeError:
            # Whoever read our output has gone, as `head` does: nobody is left to tell.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except BadData as error:
            complain(str(error))
            raise typer.Exit(BAD_DATA) from None
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError:
            complain("this needs more memory than there is")
            raise typer.Exit(BAD_DATA) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            complain(f"{where}{error.strerror or error}")
            raise typer.Exit(BAD_USAGE) from None

    def main(self, *args: Any, **extra: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            status = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            status = INTERRUPTED
        except Exception as error:
            # Usage errors: click's, or typer's own copy of it, have no base class that both versions export.
            if not hasattr(error, "format_message"):
                raise
            complain(f"{' '.join(error.format_message().split())} (tensorferry --help says more)")
            status = BAD_USAGE
        sys.exit(status if isinstance(status, int) else 0)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(inspect)
app.command()(check)
app.command()(convert)
app.command()(demo)
app.command()(doctor)
app.command()(send)
app.command()(recv)
app.command()(info)
app.command()(ls)
app.command()(extract)
app.command()(record)
app.command()(play)
app.command()(repair)
app.command()(pub)
app.command()(sub)
app.command()(topics)
app.command()(get)
app.command()(bridge)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tensorferry {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def tensorferry(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and leave.")
    ] = False,
) -> None:
    """Look at, check and convert tensors, move them between processes and hosts, record and play them.

    Leaves with 0 when all is well, 1 for bad data, 2 for bad usage.
    """
    if ctx.invoked_subcommand is None:
        help_text = ctx.get_help()
        if help_text:
            print(help_text)
        raise typer.Exit(BAD_USAGE)

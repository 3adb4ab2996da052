"""``tensorferry doctor``: what this machine offers, tried and not guessed."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import ml_dtypes
import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import __version__, memory
from ..errors import FerryError, Unsupported
from ..link import Link
from ..memory import Nature
from ..tensor import Tensor
from ..wire import dumps, loads
from .ending import BAD_DATA, complain, safe
from .look import to_json
from .show import output
from .words import counted

__all__ = ["Finding", "doctor"]

OK, LIMITED, MISSING, BROKEN = "ok", "limited", "missing", "broken"
_STYLES = {OK: "green", LIMITED: "yellow", MISSING: "yellow", BROKEN: "bold red"}

_NEEDS_NUMPY = (1, 26)
_NEEDS_ML_DTYPES = (0, 4)
_NEEDS_DESCRIPTORS = 1024
_HUGE_PAGE = 2 << 20
_MEM_INFO = "/proc/meminfo"

_EXTRAS = {
    "cli": "this command line",
    "record": "recordings: MCAP and VLink bags, safetensors, ONNX, pictures",
    "look": "pictures and plots of tensors",
    "zenoh": "tensors across hosts",
    "iceoryx2": "tensors to many processes of one host",
    "edgefirst": "EdgeFirst's messages to and from tensors",
}
_NOT_FOR_USERS = {"all", "test", "bench", "frameworks"}


@dataclass(frozen=True)
class Finding:
    """One thing that was tried: ``found`` is what there is, ``why`` what it is good for, ``do`` what would help."""

    group: str
    name: str
    status: str
    found: str
    why: str
    do: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")] = False) -> None:
    """Try what this machine offers: formats, shared memory, descriptors, limits, optional packages.

    Leaves with 0 unless the core itself is broken: the rest is there or not, and says what to do.
    """
    findings = list(_examine())
    sound = all(finding.status != BROKEN for finding in findings)
    if as_json:
        facts = {"ok": sound, "tensorferry": __version__, "platform": platform.platform()}
        print(to_json({**facts, "checks": [asdict(finding) for finding in findings]}))
    else:
        _show(output(), findings)
    if not sound:
        complain("the core is broken: nothing can be relied on here before that is mended")
        raise typer.Exit(BAD_DATA)


def _examine() -> Iterator[Finding]:
    yield from (_python(), _numpy(), _ml_dtypes(), _formats())
    for group, name, why, look in _LINUX:
        yield _tried(group, name, why, look)
    yield from _extras()


_Answer = tuple[str, str, str]
"""Status, what was found, what to do."""


def _tried(group: str, name: str, why: str, look: Callable[[], _Answer]) -> Finding:
    """What ``look`` answers; what it raises is an answer too."""
    try:
        status, found, do = look()
    except FerryError as error:
        status, found, do = MISSING, str(error), ""
    except (OSError, ImportError, AttributeError, ValueError, subprocess.SubprocessError) as error:
        status, found, do = MISSING, f"{type(error).__name__}: {error}", ""
    if status == MISSING and not do:
        do = "use inline planes and heap memory" if sys.platform == "linux" else "it takes Linux: use inline planes"
    return Finding(group, name, status, " ".join(found.split()), why, do)


# ---- the core ----


def _python() -> Finding:
    version = platform.python_version()
    little = sys.byteorder == "little"
    found = f"{version}, {platform.python_implementation()}, {platform.machine()}, {sys.byteorder}-endian"
    do = "" if little else "both formats are little-endian: use a little-endian machine"
    return Finding("core", "Python", OK if little else BROKEN, found, "3.10 or newer", do)


def _numpy() -> Finding:
    return _package("NumPy", "numpy", np.__version__, _NEEDS_NUMPY, "arrays at both ends")


def _ml_dtypes() -> Finding:
    return _package("ml_dtypes", "ml_dtypes", ml_dtypes.__version__, _NEEDS_ML_DTYPES, "bfloat16")


def _package(name: str, distribution: str, version: str, needs: tuple[int, int], why: str) -> Finding:
    least = ".".join(map(str, needs))
    is_new_enough = tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= needs
    do = "" if is_new_enough else f"pip install '{distribution}>={least}'"
    return Finding("core", name, OK if is_new_enough else BROKEN, version, f"{why}; {least} or newer", do)


def _formats() -> Finding:
    """Out and back, by both."""
    sent = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    try:
        wrong = [name for name in ("blob", "vlink") if not np.array_equal(loads(dumps(sent, format=name)), sent)]
        status, found = (BROKEN, f"other values came back by {', '.join(wrong)}") if wrong else (OK, "written and read")
    except Exception as error:
        status, found = BROKEN, f"{type(error).__name__}: {error}"
    do = "" if status == OK else "reinstall it: pip install --force-reinstall tensorferry"
    return Finding("core", "both formats", status, found, "everything else carries these", do)


# ---- shared memory ----


def _sealed() -> _Answer:
    with memory.allocate(4096, "uint8", storage="shm") as tensor:
        fd = _descriptor_of(tensor)
        if memory.nature_of(fd) is not Nature.SEALED:
            return MISSING, "memfd_create works, but its seals do not hold", ""
        try:
            os.ftruncate(fd, 0)
        except PermissionError:
            return OK, "made, sealed, and shrinking it is refused", ""
    return MISSING, "a sealed memfd could be shrunk", ""


def _mapping() -> _Answer:
    with memory.allocate(4096, "uint8", storage="shm") as ours, _again(ours) as theirs:
        ours.numpy()[:] = 7
        if theirs.storage != "shm" or int(theirs.numpy().sum()) != 7 * 4096:
            return MISSING, "the second mapping does not see what was written through the first", ""
    return OK, "mapped twice, seen through both", ""


def _huge_pages() -> _Answer:
    total, free = _meminfo("HugePages_Total"), _meminfo("HugePages_Free")
    do = "set some aside: sysctl vm.nr_hugepages=64"
    if not total:
        return MISSING, "none are set aside", do
    try:
        memory.allocate(_HUGE_PAGE, "uint8", storage="shm", huge_pages=True).close()
    except Unsupported as error:
        return MISSING, f"{free} of {total} are free, and none can be had: {error}", do
    return OK, f"{free} of {total} are free", ""


def _dma_heaps() -> _Answer:
    names = memory.heaps()
    if not names:
        do = "use storage='shm'; devices need a kernel with CONFIG_DMABUF_HEAPS" if sys.platform == "linux" else ""
        return MISSING, "/dev/dma_heap is not there, or is empty", do
    refused = {}
    for name in names:
        try:
            memory.allocate(4096, "uint8", storage="dmabuf", heap=name).close()
        except Unsupported as error:
            refused[name] = str(error)
    usable = [name for name in names if name not in refused]
    do = "give your user the group of /dev/dma_heap/*" if refused else ""
    if not usable:
        return MISSING, "; ".join(refused.values()), do
    found = ", ".join(usable) + (f"; refused: {', '.join(refused)}" if refused else "")
    return LIMITED if refused else OK, found, do


def _dev_shm() -> _Answer:
    status = os.statvfs("/dev/shm")
    size, free = (blocks * status.f_frsize for blocks in (status.f_blocks, status.f_bavail))
    found = f"{_bytes(size)}, {_bytes(free)} free"
    if free < 64 << 20:
        return LIMITED, found, "make it larger: mount -o remount,size=1G /dev/shm, or docker run --shm-size=1g"
    return OK, found, ""


# ---- processes ----


def _passing() -> _Answer:
    here, there = Link.pair()
    with here, there, memory.allocate(4096, "uint8", storage="shm") as sent:
        sent.numpy()[:] = 9
        here.send(sent, 5)
        with there.recv(5) as came:
            if came.storage != "shm" or int(came.numpy().sum()) != 9 * 4096:
                return MISSING, "a tensor in shared memory was sent, and came otherwise", ""
    return OK, "sent, received and read by reference", ""


def _fetching() -> _Answer:
    read, write = os.pipe()
    try:
        memory.fetch(os.getpid(), read, allow=True).close()
        # A child with the pipe for stdin; it ends when the pipe does.
        command = [sys.executable, "-S", "-E", "-c", "import sys; sys.stdin.read()"]
        with subprocess.Popen(command, stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            try:
                fetched = memory.fetch(child.pid, 0, allow=True)
                is_same = os.path.sameopenfile(fetched.fileno(), read)
                fetched.close()
            finally:
                child.kill()
    finally:
        os.close(read)
        os.close(write)
    if not is_same:
        return MISSING, "a child's descriptor was fetched, and is another one", ""
    if os.geteuid() and _number("/proc/sys/kernel/yama/ptrace_scope") not in (None, 0):
        do = "for others: CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0"
        return LIMITED, "fetched from this process and a child; Yama refuses processes that are no children", do
    return OK, "fetched from this process and from a child", ""


def _descriptors() -> _Answer:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    found = f"{_limit(soft)}, can be raised to {_limit(hard)}; {used} are open here"
    if soft != resource.RLIM_INFINITY and soft < _NEEDS_DESCRIPTORS:
        return LIMITED, found, f"raise it: ulimit -n {_NEEDS_DESCRIPTORS}, or LimitNOFILE= in a systemd unit"
    return OK, found, ""


_LINUX: tuple[tuple[str, str, str, Callable[[], _Answer]], ...] = (
    ("shared memory", "sealed memfd", "frames by reference live in it: no one can shrink it under a reader", _sealed),
    ("shared memory", "mapping", "what one side writes, the other sees, without a copy", _mapping),
    (
        "shared memory",
        "huge pages",
        "fewer page faults on large frames: allocate(…, huge_pages=True)",
        _huge_pages,
    ),
    ("shared memory", "dma heaps", "buffers that cameras, GPUs and NPUs share", _dma_heaps),
    ("shared memory", "/dev/shm", "shared memory by name, as from_shm reads it; memfds do not count there", _dev_shm),
    ("processes", "descriptors by socket", "frames to other processes without pickling: tensorferry.link", _passing),
    ("processes", "pidfd_getfd", "descriptors that messages name by process id: memory.fetch", _fetching),
    ("processes", "descriptor limit", "each mapped buffer, link and waiting frame takes one", _descriptors),
)
"""Group, name, what it is good for, and how to find out."""


# ---- optional packages ----


def _extras() -> Iterator[Finding]:
    """Each extra that this version declares, with what it asks for."""
    try:
        declared = metadata.metadata("tensorferry").get_all("Provides-Extra") or []
        requirements = metadata.requires("tensorferry") or []
    except metadata.PackageNotFoundError:
        found = "tensorferry runs from its sources and is not installed: its extras are not known"
        yield Finding("extras", "all", MISSING, found, "optional parts", "pip install -e '.[all]'")
        return
    for extra in sorted(set(declared) - _NOT_FOR_USERS, key=lambda name: ([*_EXTRAS, name].index(name), name)):
        packages = [name for name in map(_asked_by(extra), requirements) if name]
        if packages:
            yield _extra(extra, packages)


def _asked_by(extra: str) -> Callable[[str], str | None]:
    """From a requirement to its package, if ``extra`` asks for it."""
    marker = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""")

    def package(requirement: str) -> str | None:
        name = re.match(r"[\w.-]+", requirement)
        is_ours = marker.search(requirement) is not None and name is not None
        return name.group() if name is not None and is_ours and name.group() != "tensorferry" else None

    return package


def _extra(extra: str, packages: list[str]) -> Finding:
    versions = {name: _version(name) for name in packages}
    absent = [name for name, version in versions.items() if version is None]
    there = [f"{name} {version}" for name, version in versions.items() if version is not None]
    found = ", ".join(there + [f"no {name}" for name in absent])
    do = f"pip install 'tensorferry[{extra}]'" if absent else ""
    return Finding("extras", extra, MISSING if absent else OK, found, _EXTRAS.get(extra, ""), do)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# ---- in print ----


def _show(console: Console, findings: list[Finding]) -> None:
    console.print(Text(f"tensorferry {__version__} on {platform.platform()}", "bold"), soft_wrap=True)
    widest = max(len(finding.name) for finding in findings)
    for group in dict.fromkeys(finding.group for finding in findings):
        console.print()
        console.print(Text(group, "bold cyan"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(min_width=max(map(len, _STYLES)))
        table.add_column(min_width=min(widest, console.width // 3))
        table.add_column(ratio=1, overflow="fold")
        for finding in findings:
            if finding.group == group:
                table.add_row(Text(finding.status, _STYLES[finding.status]), finding.name, _said(finding))
        console.print(table)
    console.print()
    console.print(_verdict(findings))


def _said(finding: Finding) -> Text:
    said = Text.assemble(safe(finding.found), (f" – {finding.why}", "dim"))
    return said.append(f"\n→ {finding.do}", _STYLES[finding.status]) if finding.do else said


def _verdict(findings: list[Finding]) -> Text:
    rest = [finding.name for finding in findings if finding.status != OK]
    if not rest:
        return Text("all is there", "green")
    there = len(findings) - len(rest)
    return Text(f"{there} of {counted(len(findings), 'thing')} are there without reserve; not {', '.join(rest)}")


# ---- facts ----


def _descriptor_of(tensor: Tensor) -> int:
    handle = tensor.planes[0].handle
    assert handle is not None
    return handle.fileno()


def _again(tensor: Tensor) -> Tensor:
    """The memory of ``tensor``, mapped once more as another process would."""
    return memory.from_fd(_descriptor_of(tensor), tensor.shape, tensor.dtype)


def _meminfo(name: str) -> int:
    with open(_MEM_INFO, encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _limit(value: int) -> str:
    import resource

    return "no limit" if value == resource.RLIM_INFINITY else f"{value:,}"


def _bytes(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"

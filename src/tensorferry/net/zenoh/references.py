"""Descriptors by pid: how a tensor in shared memory reaches another process of this host without a copy."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ... import blob
from ...errors import NoSuchDescriptor, Unsupported
from ...memory.fetching import fetch
from ...parts import Buffer
from ...tensor import StorageKind, Tensor
from ..attachment import HOST_BYTES, DescriptorId, References

__all__ = ["fetched", "host_id", "references_to", "shareable"]

_SHAREABLE = frozenset({StorageKind.SHM, StorageKind.DMA_BUF})
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")


def shareable(tensor: Tensor) -> bool:
    """Whether the tensor's memory can be reached by a descriptor."""
    return tensor.storage in _SHAREABLE and all(plane.handle is not None for plane in tensor.planes)


@functools.cache
def host_id() -> bytes:
    """16 bytes that two processes share if one's pids mean the same to the other. Unsupported beyond Linux."""
    try:
        facts = _BOOT_ID.read_bytes() + str(_PIDS.stat().st_ino).encode()
    except OSError as error:
        raise Unsupported(f"descriptors by pid need Linux and its /proc: {error}", field="pid") from error
    return hashlib.blake2b(facts, digest_size=HOST_BYTES).digest()


def references_to(descriptors: Sequence[int]) -> References:
    """What a reader needs to fetch ``descriptors`` of this process, and to know that it got the right ones."""
    facts = [(fd, os.fstat(fd)) for fd in descriptors]
    return References(host_id(), tuple(DescriptorId(fd, status.st_dev, status.st_ino) for fd, status in facts))


@contextmanager
def fetched(payload: Buffer, references: References) -> Iterator[list[int]]:
    """The descriptor table of the blob in ``payload``, out of its producer's process, closed at the end.

    Unsupported for a blob of another host; NoSuchDescriptor where a number now stands for other memory; and
    as ``memory.fetch`` raises.
    """
    if references.host != host_id():
        raise Unsupported(
            "this tensor is in the memory of another host or container: have it published inline (reference=False)",
            field="host",
            value=references.host.hex(),
        )
    pid = blob.parse_header(payload).pid
    with ExitStack() as stack:
        table = []
        for wanted in references.descriptors:
            got = fetch(pid, wanted.fd, allow=True)
            stack.callback(got.close)
            status = os.fstat(got.fileno())
            if (status.st_dev, status.st_ino) != (wanted.device, wanted.inode):
                raise NoSuchDescriptor(
                    f"descriptor {wanted.fd} of process {pid} is no longer what was published: receive sooner, or"
                    " have the publisher keep more (keep=)",
                    field="fd",
                    value=wanted.fd,
                )
            table.append(got.fileno())
        yield table

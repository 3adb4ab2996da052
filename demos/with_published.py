"""``make demo``: the demonstration with the published library (``edgefirst-tensor``) beside ours.

That library belongs to the tests, not to the package, so it comes in here: wrapped as ``tests/interop`` has it, and
handed to ``tensorferry.cli.demo`` as its peer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "interop"))

import published

from tensorferry.cli import demo
from tensorferry.cli.ending import BAD_DATA, INTERRUPTED, complain


class EdgeFirst:
    """The published library, as ``demo.Peer``."""

    name = "edgefirst-tensor"

    def read(self, blob: bytes) -> demo.Reading:
        try:
            with published.Published.imported(blob) as tensor:
                return demo.Reading(tensor.dtype, tensor.shape, tensor.format, tensor.copy_out(), tensor.export())
        except published.Refused as error:
            raise demo.PeerRefused(str(error)) from error

    def offers(self) -> Iterator[demo.Offer]:
        random = np.random.default_rng(5)
        logits = random.standard_normal((1, 1000)).astype(np.float16).tobytes()
        kernel = random.bytes(8 * 3 * 3)
        scales = [0.01 * (i + 1) for i in range(8)]
        yield _offer("logits", published.build((1, 1000), published.F16, logits))
        yield _offer("kernel", published.build((8, 3, 3), published.I8, kernel, quantization=(0, scales, None)))
        yield _offer("frame", published.image("NV12", 640, 480, random.bytes))
        yield _offer("planar picture", published.image("rgb8_planar", 320, 240, random.bytes))


def _offer(name: str, tensor: published.Published) -> demo.Offer:
    with tensor:
        return demo.Offer(name, tensor.export(), tensor.dtype, tensor.shape, tensor.format, tensor.copy_out())


def main() -> int:
    peer = EdgeFirst() if published.available() else None
    if peer is None:
        complain("edgefirst-tensor has no wheel for this machine: the demonstration goes without it")
    try:
        return 0 if demo.run(peer) else BAD_DATA
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())

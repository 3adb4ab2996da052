"""docs/frameworks.md, run: each section's blocks are a program, and what it says of memory is checked behind it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "frameworks.md"

STAGE = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
import tensorferry as ferry
from frameworks_peers import GUARD, address, scaling_model
from tensorferry.link import Link, Pool

there, link = Link.pair()
feed = Pool.of_images("rgb8", 48, 32, 4)
pool = Pool((32, 48, 3), "float32", 2)
for k in range(4):
    with feed.acquire(GUARD) as sent:
        sent.numpy()[...] = np.arange(32 * 48 * 3).reshape(32, 48, 3) % 251 + k
        there.send(sent)
        pixels = sent.numpy().copy()
    del sent
"""
"""What the page says is at hand: ``link``, over which images come, and ``pool``, for results."""

CHECKS = {
    "PyTorch": """
assert x.data_ptr() == batch.data_ptr() == received
assert np.array_equal(there.recv(GUARD).numpy(), scores.detach().numpy())
got = there.recv(GUARD)
assert got.storage == "shm" and np.allclose(got.numpy(), x.numpy() / 255)
assert torch.equal(same, weights)
assert flipped.numpy().strides[0] < 0 and np.array_equal(y.numpy(), flipped.numpy())
""",
    "JAX": """
assert address(x) == received
assert np.array_equal(there.recv(GUARD).numpy(), np.asarray(y))
assert address(z) == address(mine)
assert address(aligned) == address(placed)
""",
    "ONNX Runtime": """
assert address(value) == received
assert np.array_equal(there.recv(GUARD).numpy(), y.numpy())
assert address(ferry.Tensor.from_array(y)) == address(y)
got = there.recv(GUARD)
assert got.storage == "shm" and np.array_equal(got.numpy(), y.numpy())
""",
    "multiprocessing and concurrent.futures": """
if __name__ == "__main__":
    assert (t.numpy() == 255 - 7).all()
""",
    "joblib": """
assert sums == [int(pixels_in.sum())] * 4
""",
    "Dask": """
if __name__ == "__main__":
    assert total == int(t.numpy().sum())
    assert sizeof(t) == t.nbytes
""",
    "Ray": """
def mapping(t):
    for line in open("/proc/self/maps"):
        span, _, _, device, inode, *name = line.split()
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= t.numpy().ctypes.data < high:
            return device, inode, *name

assert total == int(t.numpy().sum())
assert address(again) == address(ray.get(ref)) and address(again) % 64 == 0
assert not again.numpy().flags.writeable
assert "plasma" in mapping(again)[2]
assert ray.get(ray.remote(mapping).remote(ref)) == mapping(again)
ray.shutdown()
""",
}


def programs() -> dict[str, str]:
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
        if blocks:
            found[section.splitlines()[0]] = "\n".join(blocks)
    return found


def test_every_section_that_has_code_is_checked() -> None:
    assert set(programs()) == set(CHECKS)


@pytest.mark.parametrize("title", sorted(CHECKS))
def test_a_section_runs(title: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(STAGE.format(here=str(Path(__file__).parent)) + programs()[title] + CHECKS[title])
    # Ray leaves a token in the home, sockets (whose paths must be short) in its own folder, and tells how it is used.
    with tempfile.TemporaryDirectory() as short:
        own = {"HOME": str(tmp_path), "RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            env=os.environ | own,
        )
    assert done.returncode == 0, done.stdout + done.stderr

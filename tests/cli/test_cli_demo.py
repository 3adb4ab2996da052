"""``tensorferry demo`` and ``make demo``: everything that should goes through, and what does not is said."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import published
import pytest

import tensorferry as ferry
from tensorferry.cli import demo, demo_race, demo_tensors

Ferry = Callable[..., Any]

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memory by descriptor is Linux's")
WITH_PUBLISHED = Path(__file__).parents[2] / "demos" / "with_published.py"
LAPS = [demo_race.Lap("one way", 3, 1.0, 0.5, 0.25, 2.0), demo_race.Lap("another", 3, 1.0, 10.0, 0.25, 12.0)]


@pytest.fixture
def no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_race, "race", lambda: LAPS)


class Echo:
    """A peer that understands as we do, by our own reader."""

    name = "echo"

    def read(self, blob: bytes) -> demo.Reading:
        t = ferry.loads(blob)
        shape = t.format.allocation(t.width, t.height) if isinstance(t.format, ferry.PixelFormat) else t.shape
        payload = b"".join(plane.data or b"" for plane in t.planes)
        return demo.Reading(t.dtype.blob or 0, shape, str(t.format or ""), payload, blob)

    def offers(self) -> Iterator[demo.Offer]:
        array = np.arange(6, dtype=np.int16)
        yield demo.Offer("six", ferry.dumps(array), 3, (6,), "", array.tobytes())


# ---- the tensors ----


def test_the_samples_show_what_they_should() -> None:
    samples = {sample.name: sample.tensor for sample in demo_tensors.samples()}
    assert samples["hidden states"].dtype == "bfloat16"
    assert samples["camera frame"].format == "NV12"
    assert (samples["odd-sized frame"].width, samples["odd-sized frame"].height) == (641, 479)
    weights = samples["per-channel weights"].quantization
    assert weights is not None
    assert weights.axis == 0
    assert samples["labelled boxes"].labels is not None
    assert not samples["crop of a picture"].numpy().flags.c_contiguous


@pytest.mark.parametrize(("width", "height"), [(4, 2), (5, 3), (64, 48), (33, 17)])
def test_nv12_is_the_picture(width: int, height: int) -> None:
    grey = np.full((height, width, 3), 255, np.uint8)
    t = demo_tensors.nv12(grey)
    assert (t.width, t.height) == (width, height)
    assert (t.plane(0) == 235).all()  # white, BT.709 limited range: 16 + 219
    assert (t.plane(1) == 128).all()
    blue = np.zeros_like(grey)
    blue[..., 2] = 255
    t = demo_tensors.nv12(blue)
    assert (t.plane(0) == 32).all()  # 16 + 219 × 0.0722
    assert (t.plane(1)[:, 0::2] == 240).all()


def test_the_scene_has_edges_and_gradients() -> None:
    steps = np.abs(np.diff(demo_tensors.scene(320, 240).astype(int), axis=0)).max(axis=-1)
    assert (steps > 40).sum() > 100
    assert ((steps > 0) & (steps < 4)).mean() > 0.1


# ---- act one ----


@pytest.mark.usefixtures("no_race")
def test_all_goes_through(ferry_cli: Ferry) -> None:
    ran = ferry_cli("demo")
    assert (ran.status, ran.err) == (0, "")
    for said in (
        "bit-exact",
        "no code for this element type (Lossy: dtype)",
        "Lossy: format, colorimetry",
        "make demo",
    ):
        assert said in ran.out
    assert "20×" in ran.out


@pytest.mark.usefixtures("no_race")
def test_what_is_damaged_is_refused(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "it was believed" not in ferry_cli("demo").out
    monkeypatch.setattr(demo, "damaged", lambda blob, envelope: [("a sound one", blob)])
    ran = ferry_cli("demo")
    assert ran.status == 1
    assert ran.err == "tensorferry: a sound one was believed\n"


@pytest.mark.usefixtures("no_race")
def test_a_misread_is_a_failure(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    def misread(data: bytes) -> ferry.Tensor:
        tensor = ferry.loads(data, copy=True)
        if tensor.dtype == "float32" and tensor.shape:
            tensor.numpy()[-1] += 1
        return tensor

    monkeypatch.setattr(demo, "loads", misread)
    ran = ferry_cli("demo")
    assert ran.status == 1
    assert "tensorferry: features: tensor blob: other values" in ran.err
    assert "camera frame" not in ran.err


@pytest.mark.usefixtures("no_race")
def test_a_crossing_that_is_not_refused_is_a_failure(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = demo_tensors.Sample("a", ferry.Tensor.from_array(np.zeros(3)), ("blob",))
    monkeypatch.setattr(demo, "samples", lambda: [sample])
    assert "a: VLink tensor: it should have been refused" in ferry_cli("demo").err


@pytest.mark.usefixtures("no_race")
def test_a_peer_that_understands(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.run(Echo())
    assert "made by echo" in capsys.readouterr().out


@pytest.mark.usefixtures("no_race")
def test_a_peer_that_refuses_is_a_failure_unless_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    class Refuses(Echo):
        def read(self, blob: bytes) -> demo.Reading:
            raise demo.PeerRefused("no")

    assert not demo.run(Refuses())
    said = capsys.readouterr()
    assert "it takes NV12 of an odd width only by reference" in said.out
    assert "tensorferry: features: echo: no\n" in said.err
    assert "odd-sized" not in said.err


@pytest.mark.usefixtures("no_race")
def test_a_peer_that_misreads_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    class Misreads(Echo):
        def read(self, blob: bytes) -> demo.Reading:
            return super().read(blob)._replace(shape=(1,), blob=b"")

        def offers(self) -> Iterator[demo.Offer]:
            for offer in super().offers():
                yield offer._replace(dtype=4)
                yield offer._replace(blob=offer.blob[:-1])

    assert not demo.run(Misreads())
    said = capsys.readouterr().err
    assert "features: echo: other shape, written again as other bytes" in said
    assert "echo's six: other dtype" in said
    assert "echo's six: Truncated" in said


# ---- act two ----


@LINUX
def test_the_race_verifies_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_race, "_ROUNDS", 1)
    laps = demo_race.race()
    assert [lap.frames for lap in laps] == [20, 20]
    assert all(min(lap.fill, lap.hand_over, lap.read, lap.whole, lap.megabytes_a_second) > 0 for lap in laps)
    monkeypatch.setattr(demo_race._Picture, "total", lambda self, number: 0)
    with pytest.raises(RuntimeError, match=r"frame 0 by tensorferry\.link came with other bytes"):
        demo_race.race()
    assert multiprocessing.active_children() == []


@LINUX
def test_a_second_process_that_dies_is_a_failure(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_race, "_consume", os._exit)  # for its first argument, which is no number
    ran = ferry_cli("demo")
    assert ran.status == 1
    assert "tensorferry: the second process went wrong" in ran.err
    assert multiprocessing.active_children() == []


@LINUX
@pytest.mark.skipif(not published.available(), reason="the published library has no wheel for this machine")
def test_make_demo() -> None:
    done = subprocess.run(
        [sys.executable, WITH_PUBLISHED],
        env={**os.environ, "PYTHONPATH": str(Path(ferry.__file__).parents[1])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    out = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), out
    assert "made by edgefirst-tensor" in out
    assert "faster by reference" in out
    assert "\x1b" not in out


@LINUX
def test_ctrl_c(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = spawn("demo", stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if line.startswith(b"Two"):
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to every process of it
    process.stdout.read()
    assert process.stderr.read() == b"tensorferry: interrupted\n"
    assert process.wait(60) == 130


def test_elsewhere_the_second_act_is_left_out(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    ran = ferry_cli("demo")
    assert ran.status == 0
    assert "needs Linux, this is darwin: left out" in ran.out

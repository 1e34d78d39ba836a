"""`ImageDecoder`: one encoded image after the other, into pixels of one size.

OpenCV decodes, resizes and turns, without the interpreter lock. It was chosen by measurement, in ms of CPU time for an image of
500 x 375 and one of 1920 x 1080, to 224 x 224, on one core of an Intel Xeon with AVX-512:

| library | 500 x 375 | 1920 x 1080 | licence, wheels |
|---|---|---|---|
| OpenCV 5.0, shrunk while it decodes where that leaves enough | 0.96 | 3.6 | Apache 2.0; for every Python here |
| OpenCV 5.0, whole | 0.95 | 6.2 | |
| simplejpeg 1.9, shrunk, resized by OpenCV | 0.93 | 3.6 | MIT; for every Python here |
| simplejpeg 1.9, whole, colours not smoothed | 0.87 | 5.4 | |
| Pillow 13, shrunk (`draft`) | 2.0 | 4.4 | MIT-CMU; for every Python here |
| torchvision 0.29 (`decode_jpeg`), resized by OpenCV | 0.97 | 6.0 | BSD; for one version of PyTorch each |
| pyvips 8.18 (`thumbnail`) | 3.4 | 8.3 | LGPL; for every Python here |

OpenCV, simplejpeg and torchvision call libjpeg-turbo; whole images of the first two have the same pixels. PyTurboJPEG calls it,
too, but its wheel is without the library. OpenCV reads JPEG, PNG, WebP, BMP and TIFF, and resizes.

A JPEG is shrunk by 2, 4 or 8 while it is decoded (by its DCT), as long as it stays as large as the pixels that are wanted. EXIF
orientation is applied. OpenCV fills the rest of an image that is cut short with grey, so the end of the file is looked for first.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from arrowflow.errors import DataError
from arrowflow.optional import optional

Mode = Literal["RGB", "L"]
Crop = Literal["centre", "random"]
Resize = Literal["nearest", "bilinear", "bicubic", "area", "lanczos"]

Pixels = npt.NDArray[np.uint8]
Draws = npt.NDArray[np.float64]

MODES: Final = {"RGB": 3, "L": 1}
"""Modes, and the bytes of a pixel."""

RESIZES: Final = {
    "nearest": "INTER_NEAREST",
    "bilinear": "INTER_LINEAR",
    "bicubic": "INTER_CUBIC",
    "area": "INTER_AREA",
    "lanczos": "INTER_LANCZOS4",
}

MAX_PIXELS: Final = 1 << 28
"""The most pixels that an image may announce: 256 million, 768 MB. A file of some kB may announce more than there is memory for."""

TRIES: Final = 10
"""Tries for a random part that lies within the image, as in torchvision's `RandomResizedCrop`."""

DRAWS: Final = 2 * TRIES + 3
"""Random numbers for an image: area and shape of each try, the place of the part, and whether it is mirrored."""

FREED_BYTES: Final = 31 << 20
"""The largest block that glibc learns from is one of 32 MiB."""

_JPEG: Final = b"\xff\xd8\xff"
_END: Final = b"\xff\xd9"
_TRAILER_BYTES: Final = 1 << 16
"""Bytes after the end of an image among which the end is looked for."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"


class Header(NamedTuple):
    """The facts that the first bytes of an image tell.

    Attributes:
        width: Pixels a line, before any turn; 0 where the format is not looked into.
        height: Lines.
        is_whole: Whether the file ends as its format says.
        shrinks: Whether it can be decoded in a smaller size, in less time.
    """

    width: int = 0
    height: int = 0
    is_whole: bool = True
    shrinks: bool = False


def header(data: memoryview) -> Header:
    """Returns what the bytes of an image say of its size and end.

    Examples:
        >>> header(memoryview(b"GIF89a"))
        Header(width=0, height=0, is_whole=True, shrinks=False)
    """
    start = bytes(data[:24])
    if start.startswith(_JPEG):
        return _jpeg(data)
    if start.startswith(_PNG):
        width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
        return Header(width, height, b"IEND" in bytes(data[-_TRAILER_BYTES:]))
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return Header(is_whole=len(data) >= int.from_bytes(data[4:8], "little") + 8)
    return Header()


def _jpeg(data: memoryview) -> Header:
    """Walks the segments up to the first scan. The end marker occurs nowhere within a scan."""
    width = height = 0
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # a filling byte
            at += 1
            continue
        if kind == 0xDA:
            is_whole = bytes(data[-2:]) == _END or bytes(data).rfind(_END) > at
            return Header(width, height, is_whole, shrinks=True)
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = (int.from_bytes(data[place : place + 2], "big") for place in (at + 5, at + 7))
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return Header(width, height, is_whole=False)


class Box(NamedTuple):
    """A part of an image: its first column and line, and how many columns and lines it has."""

    left: int
    top: int
    width: int
    height: int


def centre_box(width: int, height: int, to: tuple[int, int]) -> Box:
    """Returns the largest part in the middle of an image that has the shape of `to`, which is (height, width).

    Examples:
        >>> centre_box(500, 375, (224, 224))
        Box(left=62, top=0, width=375, height=375)
    """
    scale = min(width / to[1], height / to[0])
    wide, high = max(1, round(to[1] * scale)), max(1, round(to[0] * scale))
    return Box((width - wide) // 2, (height - high) // 2, wide, high)


def random_box(
    width: int, height: int, draws: Draws, area: tuple[float, float], ratio: tuple[float, float]
) -> Box:
    """Returns a random part of an image, drawn as by `RandomResizedCrop` of torchvision.

    The source of the method is Szegedy et al., Going Deeper with Convolutions, https://arxiv.org/abs/1409.4842. Where no try lies
    within the image, the part is in the middle, as large as the shapes allow.

    Args:
        draws: `DRAWS` numbers from 0 to before 1.
        area: The least and the most share of the image.
        ratio: The least and the most width in parts of the height.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for one, other in draws[: 2 * TRIES].reshape(TRIES, 2).tolist():
        pixels = width * height * (area[0] + one * (area[1] - area[0]))
        shape = math.exp(low + other * (high - low))
        wide, tall = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = draws[2 * TRIES], draws[2 * TRIES + 1]
            return Box(int(left * (width - wide + 1)), int(top * (height - tall + 1)), wide, tall)
    shape = min(max(width / height, ratio[0]), ratio[1])
    wide = max(1, min(width, round(height * shape)))
    tall = max(1, min(height, round(width / shape)))
    return Box((width - wide) // 2, (height - tall) // 2, wide, tall)


@dataclass(frozen=True, slots=True)
class ImageDecoder:
    """How images are decoded. Any thread.

    Attributes:
        size: Height and width of the pixels.
        mode: RGB, or L for grey.
        resize: The interpolation.
        crop: The part of the image that is taken; None for all of it, which may change its shape.
        flip: Whether a half of the images is mirrored.
        area: The least and the most share of the image that a random part has.
        ratio: The least and the most width of a random part, in parts of its height.
    """

    size: tuple[int, int]
    mode: Mode = "RGB"
    resize: Resize = "bilinear"
    crop: Crop | None = None
    flip: bool = False
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return (*self.size, MODES[self.mode])

    @property
    def is_random(self) -> bool:
        """Whether anything is drawn."""
        return self.flip or self.crop == "random"

    def decode(self, data: memoryview, pixels: Pixels, draws: Draws | None = None) -> None:
        """Decodes an image into pixels of `shape`.

        Args:
            data: The encoded image.
            pixels: Where to put it.
            draws: `DRAWS` random numbers, if anything is drawn.

        Raises:
            DataError: The bytes are no image, or not all of one, or announce too many pixels.
        """
        cv2 = opencv()
        known = header(data)
        if known.width * known.height > MAX_PIXELS:
            raise DataError(
                f"the image announces {known.width:,} x {known.height:,} pixels, more than {MAX_PIXELS:,}"
            )
        if not known.is_whole:
            raise DataError("the image is cut short")
        try:
            image = (
                cv2.imdecode(np.frombuffer(data, np.uint8), self._flags(cv2, known)) if len(data) else None
            )
        except cv2.error as error:
            raise DataError(f"the image cannot be decoded: {error}") from error
        if image is None:
            start = bytes(data[:16])
            raise DataError(f"{len(data):,} bytes that begin with {start!r} are no image that OpenCV reads")
        if image.dtype != np.uint8 or image.shape[2:] != ((3,) if self.mode == "RGB" else ()):
            raise DataError(
                f"the image is decoded to {image.shape} of {image.dtype}, and {self.mode} of uint8 was asked for"
            )
        image = self._part(image, draws)
        into = pixels if self.mode == "RGB" else pixels[..., 0]
        is_mirrored = draws is not None and self.flip and draws[-1] < 0.5
        how = getattr(cv2, RESIZES[self.resize])
        made = cv2.resize(image, self.size[::-1], dst=None if is_mirrored else into, interpolation=how)
        if is_mirrored:
            cv2.flip(made, 1, dst=into)

    def _part(self, image: Pixels, draws: Draws | None) -> Pixels:
        height, width = image.shape[:2]
        if self.crop is None:
            return image
        if self.crop == "centre":
            box = centre_box(width, height, self.size)
        else:
            assert draws is not None
            box = random_box(width, height, draws, self.area, self.ratio)
        return image[box.top : box.top + box.height, box.left : box.left + box.width]

    def _flags(self, cv2: Any, known: Header) -> int:
        """Returns how to decode: shrunk by the most that leaves all pixels which are wanted, also if the image is turned."""
        colours = cv2.IMREAD_GRAYSCALE if self.mode == "L" else cv2.IMREAD_COLOR_RGB
        if known.shrinks and self.crop != "random":
            most = min(known.width, known.height) // max(self.size)
            for factor in (8, 4, 2):
                if most >= factor:
                    return int(getattr(cv2, f"IMREAD_REDUCED_GRAYSCALE_{factor}") | colours)
        return int(colours)


@functools.cache
def opencv() -> Any:
    """Imports OpenCV. Its own threads would not count in the CPU budget, so it gets one, unless the program imported it before.

    Raises:
        MissingPackageError: It is not installed.
    """
    is_own = "cv2" not in sys.modules
    cv2 = optional("cv2", user="decode_image", extra="images")
    if is_own:
        cv2.setNumThreads(1)
    # OpenCV frees two buffers of an image at once. glibc gives free memory back to the system where it is more than twice the
    # largest block that was freed (`mallopt(3)`, M_TRIM_THRESHOLD), so each image took its pages anew: 130 page faults, a
    # tenth of its time. A block that is freed without being touched raises this limit; other allocators take no notice.
    np.empty(FREED_BYTES, np.uint8)
    return cv2

"""The arguments of augmentations: images, a number for all or for each, and ranges of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowflow.errors import PlanError

Images = npt.NDArray[np.uint8]
PerImage = float | Sequence[float] | npt.NDArray[np.floating[Any]]
"""One number for all images, or one for each."""


def checked(name: str, images: Images) -> Images:
    """Returns the images, if their shape and dtype are those of RGB images.

    Raises:
        PlanError: They are not; the message says what was found.
    """
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        raise PlanError(
            f"image.{name}: expected (n, height, width, 3) of uint8, got {images.shape} of {images.dtype}; "
            "decode_image(…, mode='RGB') makes such images"
        )
    return images


def per_image(name: str, images: Images, argument: str, value: PerImage) -> tuple[Images, list[float]]:
    """Returns the images, and a number for each.

    Raises:
        PlanError: As of `checked`, or there is neither one number nor one for each image.
    """
    images = checked(name, images)
    count = len(images)
    values = np.asarray(value, np.float64)
    if values.shape not in ((), (count,)):
        raise PlanError(
            f"image.{name}: {argument} is a number, or one for each of {count} images, got {values.shape}"
        )
    return images, np.broadcast_to(values, count).tolist()


def check_range(
    name: str, lower: float, upper: float, *, least: float = -np.inf, most: float = np.inf
) -> None:
    """Checks that random numbers can be drawn between two limits, which lie within two others.

    Raises:
        PlanError: They cannot.
    """
    if not least <= lower <= upper <= most:
        raise PlanError(
            f"image.{name}: values are drawn between {lower} and {upper}: no such range within {least} and {most}"
        )

"""Brightness, contrast, saturation and hue of images.

Brightness and contrast are a table of 256 values for each image. OpenCV applies it, and works without the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from arrowflow.image.arguments import Images, PerImage, check_range, per_image
from arrowflow.optional import optional

_LEVELS: Final = np.arange(256, dtype=np.float64)


def adjust_brightness(images: Images, delta: PerImage) -> Images:
    """Returns the images with `delta` added to each value, where 1 is the way from black to white.

    Examples:
        >>> adjust_brightness(np.array([0, 100, 250], np.uint8).reshape(1, 1, 1, 3), 0.1).ravel().tolist()
        [26, 126, 255]
    """
    images, deltas = per_image("adjust_brightness", images, "delta", delta)
    return _mapped(images, [_table(_LEVELS + 255 * value) for value in deltas])


def random_brightness(images: Images, max_delta: float, rng: np.random.Generator) -> Images:
    """Returns the images, each with a number between `-max_delta` and `max_delta` added, see `adjust_brightness`.

    Examples:
        >>> images = np.full((2, 1, 1, 3), 100, np.uint8)
        >>> bool((abs(random_brightness(images, 0.1, np.random.default_rng(0)) - 100.0) <= 26).all())
        True
    """
    check_range("random_brightness", -max_delta, max_delta)
    return adjust_brightness(images, rng.uniform(-max_delta, max_delta, len(images)))


def adjust_contrast(images: Images, factor: PerImage) -> Images:
    """Returns the images with the distance of each value from the mean of its channel multiplied by `factor`.

    Examples:
        >>> images = np.array([[90, 0, 0], [110, 0, 0]], np.uint8).reshape(1, 1, 2, 3)
        >>> adjust_contrast(images, 2).ravel().tolist()
        [80, 0, 0, 120, 0, 0]
    """
    images, factors = per_image("adjust_contrast", images, "factor", factor)
    means = images.mean(axis=(1, 2)) if images.size else np.zeros((len(images), 3))
    tables = [
        np.stack([_table((_LEVELS - mean) * value + mean) for mean in each], axis=-1)
        for each, value in zip(means, factors, strict=True)
    ]
    return _mapped(images, tables)


def random_contrast(images: Images, lower: float, upper: float, rng: np.random.Generator) -> Images:
    """Returns the images, each with a contrast drawn between `lower` and `upper`, see `adjust_contrast`.

    Examples:
        >>> images = np.full((2, 1, 1, 3), 100, np.uint8)
        >>> random_contrast(images, 0.5, 2, np.random.default_rng(0)).ravel().tolist()
        [100, 100, 100, 100, 100, 100]
    """
    check_range("random_contrast", lower, upper, least=0)
    return adjust_contrast(images, rng.uniform(lower, upper, len(images)))


def adjust_saturation(images: Images, factor: PerImage) -> Images:
    """Returns the images with the distance of each value from the largest one of its pixel multiplied by `factor`.

    This multiplies the saturation of HSV, and keeps hue and value. Where the result would have more than the whole saturation,
    it has the whole one: the smallest value of the pixel becomes 0.

    Examples:
        >>> adjust_saturation(np.array([200, 100, 0], np.uint8).reshape(1, 1, 1, 3), 0.5).ravel().tolist()
        [200, 150, 100]
    """
    cv2 = optional("cv2", user="image.adjust_saturation", extra="images")
    images, factors = per_image("adjust_saturation", images, "factor", factor)
    out = np.empty_like(images)
    for image, value, into in zip(images, factors, out, strict=True) if images.size else ():
        red, green, blue = cv2.split(image)
        largest = cv2.max(cv2.max(red, green), blue)
        if value <= 1:
            cv2.addWeighted(image, value, cv2.merge((largest, largest, largest)), 1 - value, 0, dst=into)
            continue
        range_of_pixel = cv2.subtract(largest, cv2.min(cv2.min(red, green), blue))
        scale = cv2.divide(largest, cv2.max(range_of_pixel, 1), dtype=cv2.CV_32F)  # to the whole saturation
        np.minimum(scale, np.float32(value), out=scale)
        for number, channel in enumerate((red, green, blue)):
            distance = cv2.multiply(cv2.subtract(largest, channel), scale, dtype=cv2.CV_32F)
            cv2.insertChannel(cv2.subtract(largest, distance, dtype=cv2.CV_8U), into, number)  # which rounds
    return out


def random_saturation(images: Images, lower: float, upper: float, rng: np.random.Generator) -> Images:
    """Returns the images, each with a saturation drawn between `lower` and `upper`, see `adjust_saturation`.

    Examples:
        >>> images = np.full((2, 1, 1, 3), 100, np.uint8)
        >>> random_saturation(images, 0.5, 2, np.random.default_rng(0)).ravel().tolist()
        [100, 100, 100, 100, 100, 100]
    """
    check_range("random_saturation", lower, upper, least=0)
    return adjust_saturation(images, rng.uniform(lower, upper, len(images)))


def adjust_hue(images: Images, delta: PerImage) -> Images:
    """Returns the images with the hue of each pixel turned by `delta`, where 1 is the whole circle.

    Examples:
        >>> adjust_hue(np.array([200, 0, 0], np.uint8).reshape(1, 1, 1, 3), 1 / 3).ravel().tolist()
        [0, 200, 0]
    """
    cv2 = optional("cv2", user="image.adjust_hue", extra="images")
    images, deltas = per_image("adjust_hue", images, "delta", delta)
    out = np.empty_like(images)
    for image, value, into in zip(images, deltas, out, strict=True) if images.size else ():
        channels = cv2.cvtColor(image.astype(np.float32), cv2.COLOR_RGB2HSV)  # hue in degrees
        channels[..., 0] = (channels[..., 0] + 360 * value) % 360
        cv2.convertScaleAbs(cv2.cvtColor(channels, cv2.COLOR_HSV2RGB), dst=into)  # which rounds
    return out


def random_hue(images: Images, max_delta: float, rng: np.random.Generator) -> Images:
    """Returns the images, each with its hue turned by a number between `-max_delta` and `max_delta`, see `adjust_hue`.

    Examples:
        >>> images = np.full((2, 1, 1, 3), 100, np.uint8)
        >>> random_hue(images, 0.5, np.random.default_rng(0)).ravel().tolist()
        [100, 100, 100, 100, 100, 100]
    """
    check_range("random_hue", -max_delta, max_delta)
    return adjust_hue(images, rng.uniform(-max_delta, max_delta, len(images)))


def _mapped(images: Images, tables: Sequence[npt.NDArray[np.uint8]]) -> Images:
    """Returns the images with each value replaced by its entry in the table of its image, and of its channel."""
    cv2 = optional("cv2", user="image", extra="images")
    out = np.empty_like(images)
    for image, table, into in zip(images, tables, out, strict=True) if images.size else ():
        cv2.LUT(image, table.reshape(1, 256, -1), dst=into)
    return out


def _table(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)

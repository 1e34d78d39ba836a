"""Images mirrored, all of them or some."""

from __future__ import annotations

import numpy as np

from arrowflow.image.arguments import Images, check_range, checked


def flip_left_right(images: Images) -> Images:
    """Returns the images mirrored, left for right.

    Examples:
        >>> flip_left_right(np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)).ravel().tolist()
        [3, 4, 5, 0, 1, 2]
    """
    return np.ascontiguousarray(checked("flip_left_right", images)[:, :, ::-1])


def flip_up_down(images: Images) -> Images:
    """Returns the images upside down.

    Examples:
        >>> flip_up_down(np.arange(6, dtype=np.uint8).reshape(1, 2, 1, 3)).ravel().tolist()
        [3, 4, 5, 0, 1, 2]
    """
    return np.ascontiguousarray(checked("flip_up_down", images)[:, ::-1])


def random_flip_left_right(images: Images, rng: np.random.Generator, probability: float = 0.5) -> Images:
    """Returns the images, each mirrored left for right with this probability.

    Examples:
        >>> images = np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)
        >>> random_flip_left_right(images, np.random.default_rng(0), 1.0).ravel().tolist()
        [3, 4, 5, 0, 1, 2]
    """
    return _some("random_flip_left_right", images, rng, probability, axis=2)


def random_flip_up_down(images: Images, rng: np.random.Generator, probability: float = 0.5) -> Images:
    """Returns the images, each upside down with this probability.

    Examples:
        >>> images = np.arange(6, dtype=np.uint8).reshape(1, 2, 1, 3)
        >>> random_flip_up_down(images, np.random.default_rng(0), 0.0).ravel().tolist()
        [0, 1, 2, 3, 4, 5]
    """
    return _some("random_flip_up_down", images, rng, probability, axis=1)


def _some(name: str, images: Images, rng: np.random.Generator, probability: float, axis: int) -> Images:
    check_range(name, 0, probability, least=0, most=1)
    out = checked(name, images).copy()
    chosen = rng.random(len(images)) < probability
    out[chosen] = np.flip(out[chosen], axis)
    return out

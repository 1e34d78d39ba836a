"""Augmentations of image batches, for `map(fn, format="numpy", seed=…)`. They take tf.image's names and meanings.

Each function takes `(n, height, width, 3)` uint8 in RGB, as `decode_image` makes it, and returns a new array like it. A
`random_…` function draws one value for each image from `rng`, so that a resumed run repeats the same values. NumPy and OpenCV (extra
`images`) compute without the interpreter lock in everything that takes long. Results of OpenCV are rounded to whole levels, and
levels beyond 0 and 255 become 0 and 255.

Examples:
    >>> import arrowflow as af
    >>> import numpy as np
    >>> def augment(batch, rng):
    ...     image = af.image.random_flip_left_right(batch["image"], rng)
    ...     image = af.image.random_brightness(image, 0.1, rng)
    ...     return {"image": af.image.random_saturation(image, 0.8, 1.2, rng)}
    >>> images = np.full((4, 8, 8, 3), 100, np.uint8)
    >>> ds = af.from_numpy({"image": images}).map(augment, format="numpy", seed=1).batch(4)
    >>> next(iter(ds.to_numpy()))["image"].shape
    (4, 8, 8, 3)
"""

from arrowflow.image.colours import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    random_brightness,
    random_contrast,
    random_hue,
    random_saturation,
)
from arrowflow.image.flips import flip_left_right, flip_up_down, random_flip_left_right, random_flip_up_down

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "flip_left_right",
    "flip_up_down",
    "random_brightness",
    "random_contrast",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_saturation",
]

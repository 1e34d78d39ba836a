"""Images in JAX: JPEGs from Parquet are decoded, cropped, flipped and changed in colour, and a small network learns them.

Everything between the file and the network is a user function over a batch: `decode` calls Pillow, which lets go of the
interpreter lock, so that threads decode at the same time; `augment` gets a generator from `map(..., seed=...)`, so that
what it draws depends on seed, epoch and place alone, at any number of threads, and is NumPy over all images at once.

The pictures are circles, squares, triangles and crosses of any colour and size, anywhere on a noisy ground. A fifth of
them are kept to judge by, in their middle and as they are.

    python examples/images.py         # needs JAX, the extra `jax`, and Pillow, the dependency group `examples`
"""

from __future__ import annotations

import argparse
import functools
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageDraw

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
SHARDS: Final = 5
STORED: Final = 56
SIZE: Final = 48
BATCH_ROWS: Final = 32
SCHEMA: Final = pa.schema(
    [("image", pa.fixed_shape_tensor(pa.uint8(), [SIZE, SIZE, 3])), ("label", pa.int32())]
)
CORNERS: Final[dict[str, list[tuple[float, float]]]] = {
    "circle": [(1, step / 20) for step in range(20)],
    "square": [(1, step / 4) for step in range(4)],
    "triangle": [(1, step / 3) for step in range(3)],
    "cross": [(far, step / 4 + at) for step in range(4) for far, at in ((0.48, 0), (1, 0.07), (1, 0.18))],
}
"""How far from the middle corners are, and in which part of a turn."""
SHAPES: Final = list(CORNERS)

Arrays = dict[str, Any]
Pixels = NDArray[np.float32]

# ---------------------------------------------------------------- made-up pictures


def picture(rng: np.random.Generator, label: int) -> bytes:
    """Returns a JPEG of a shape, anywhere in the middle of a noisy ground."""
    colour = rng.integers(256, size=3)
    ground = colour + rng.normal(0, 15, (STORED, STORED, 3))
    image = Image.fromarray(ground.clip(0, 255).astype(np.uint8))
    x, y = rng.uniform(0.4, 0.6, 2) * STORED
    radius, turn = rng.uniform(0.2, 0.35) * STORED, rng.random()
    points = [
        (
            x + radius * far * math.cos(2 * math.pi * (turn + at)),
            y + radius * far * math.sin(2 * math.pi * (turn + at)),
        )
        for far, at in CORNERS[SHAPES[label]]
    ]
    ImageDraw.Draw(image).polygon(points, fill=tuple(((colour + 128) % 256).tolist()))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def make(folder: Path, images: int) -> None:
    """Writes made-up pictures as Parquet shards."""
    rng = np.random.default_rng(1)
    labels = rng.integers(len(SHAPES), size=images)
    frame = pl.DataFrame(
        {"jpeg": [picture(rng, label) for label in labels], "label": labels.astype(np.int32)}
    )
    af.from_arrow(frame).write_parquet(folder, shard_rows=-(-images // SHARDS), row_group_rows=256)


# ---------------------------------------------------------------- user functions: batches in, batches out


def decode(batch: Arrays) -> Arrays:
    """Returns the pixels of JPEGs, `(B, STORED, STORED, 3)`."""
    pixels = [np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")) for jpeg in batch["jpeg"]]
    return {"image": np.stack(pixels), "label": batch["label"]}


def middle(batch: Arrays) -> Arrays:
    """Cuts out the middle."""
    edge = (STORED - SIZE) // 2
    return {"image": batch["image"][:, edge : edge + SIZE, edge : edge + SIZE], "label": batch["label"]}


def augment(batch: Arrays, rng: np.random.Generator) -> Arrays:
    """Cuts out a part of each image, flips every other one, and changes how it looks."""
    part = crop(batch["image"], rng)
    flipped = np.where(rng.random((len(part), 1, 1, 1)) < 0.5, part[:, :, ::-1], part)
    image: Pixels = flipped.astype(np.float32) / np.float32(255)
    for change in (brightness, saturation, hue, contrast):
        image = change(image, rng).clip(0, 1)
    return {"image": (image * 255).round().astype(np.uint8), "label": batch["label"]}


def crop(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Cuts a random part of `(SIZE, SIZE)` out of each image."""
    parts = np.lib.stride_tricks.sliding_window_view(image, (SIZE, SIZE), axis=(1, 2))
    top, left = rng.integers(STORED - SIZE + 1, size=(2, len(image)))
    return np.moveaxis(parts[np.arange(len(image)), top, left], 1, 3)


def factor(image: Pixels, rng: np.random.Generator, most: float) -> Pixels:
    """Returns a random number around 1 for each image."""
    return rng.uniform(1 - most, 1 + most, (len(image), 1, 1, 1)).astype(np.float32)


def grey(image: Pixels) -> Pixels:
    """Returns how bright pixels look."""
    return image @ np.array([[0.299], [0.587], [0.114]], np.float32)


def brightness(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Makes images brighter or darker."""
    return image * factor(image, rng, 0.3)


def saturation(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Makes images more or less colourful."""
    colourless = grey(image)
    return colourless + (image - colourless) * factor(image, rng, 0.5)


def hue(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Turns the colours of images around grey, by up to 60 degrees: in the plane of YIQ, where grey stays grey."""
    angle = rng.uniform(-math.pi / 3, math.pi / 3, len(image))
    turn = np.zeros((len(image), 3, 3))
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = np.cos(angle)
    turn[:, 1, 2], turn[:, 2, 1] = np.sin(angle), -np.sin(angle)
    yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]]).T
    change = (yiq @ turn @ np.linalg.inv(yiq)).astype(np.float32)
    return (image.reshape(len(image), -1, 3) @ change).reshape(image.shape)


def contrast(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Takes images nearer to their mean, or away from it."""
    mean = grey(image).mean(axis=(1, 2), keepdims=True)
    return mean + (image - mean) * factor(image, rng, 0.3)


# ---------------------------------------------------------------- a convolutional network in plain JAX

Weights = list[tuple[jax.Array, jax.Array]]


def network(key: jax.Array) -> Weights:
    """Returns random weights: three convolutions, and what makes scores of the most that each found."""
    shapes = [(5, 5, 3, 16), (3, 3, 16, 32), (3, 3, 32, 64), (64, len(SHAPES))]
    return [
        (jax.random.normal(key, shape) * math.sqrt(2 / math.prod(shape[:-1])), jnp.zeros(shape[-1]))
        for key, shape in zip(jax.random.split(key, len(shapes)), shapes, strict=True)
    ]


def scores(weights: Weights, image: jax.Array) -> jax.Array:
    """Returns a score for each shape, `(B, 4)`."""
    x = image.astype(jnp.float32)
    x = (x - x.mean((1, 2), keepdims=True)) / (x.std((1, 2), keepdims=True) + 1)
    for kernel, bias in weights[:-1]:
        x = jax.lax.conv_general_dilated(
            x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + bias)
    kernel, bias = weights[-1]
    return x.max((1, 2)) @ kernel + bias


def loss(weights: Weights, image: jax.Array, label: jax.Array) -> jax.Array:
    """Returns the cross entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(weights, image)), label[:, None], 1).mean()


@functools.partial(jax.jit, donate_argnums=0)
def train(state: Any, image: jax.Array, label: jax.Array) -> Any:
    """Returns weights, moments and step after one step of Adam."""
    weights, first, second, step = state
    gradient = jax.grad(loss)(weights, image, label)
    step = step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)
    rate = 2e-3 * jnp.sqrt(1 - 0.99**step) / (1 - 0.9**step)
    weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
    return weights, first, second, step


def accuracy(weights: Weights, batches: Sequence[dict[str, jax.Array]]) -> float:
    """Returns the share of pictures whose shape is found."""
    find = jax.jit(scores)
    right = [find(weights, batch["image"]).argmax(1) == batch["label"] for batch in batches]
    return float(jnp.concatenate(right).mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the data, trains and tells what was learnt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder for the data, which is made once")
    parser.add_argument("--images", type=int, default=4_000)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args(arguments)

    folder = options.data / f"shapes-{options.images}"
    if not folder.exists():  # it gets its name when all of it is written
        make(folder, options.images)
    *files, last = sorted(folder.glob("*.parquet"))

    loader = (
        af.read_parquet(files)
        .shuffle(1024, seed=7)
        .batch(BATCH_ROWS, drop_remainder=True)
        .map(decode, format="numpy")
        .map(augment, format="numpy", schema=SCHEMA, seed=7)
        .with_options(af.Options(progress=True))
        .to_jax()
    )
    unseen = af.read_parquet(last).batch(256).map(decode, format="numpy")
    test = list(unseen.map(middle, format="numpy", schema=SCHEMA).to_jax())

    weights = network(jax.random.key(1))
    before = after = accuracy(weights, test)
    print(f"chance {1 / len(SHAPES):.1%} right, before training {before:.1%}", flush=True)
    state = (weights, *(jax.tree.map(jnp.zeros_like, weights) for _ in range(2)), 0)
    for epoch in range(options.epochs):
        for batch in loader:
            # JAX computes behind the loop: without waiting here, `next` would, and it would seem to be for its input.
            state = jax.block_until_ready(train(state, batch["image"], batch["label"]))
        after = accuracy(state[0], test)
        print(f"after epoch {epoch} {after:.1%} right", flush=True)
    print()
    print(loader.explain())
    if after < before + 0.1:
        sys.exit(f"learnt nothing: {before:.1%} right before, {after:.1%} after")


if __name__ == "__main__":
    main()

"""Writes the files in `data/` with TensorFlow: `python -m tests.formats.make_tfrecords`, where it is installed.

What they hold is told here, in plain Python, so that tests can compare without TensorFlow.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parent / "data"

Example = dict[str, list[Any] | None]
"""Values by feature; None for a feature that has no list."""

TYPES: Final[list[Example]] = [
    {
        "whole": [0],
        "real": [0.5],
        "text": ["plain"],
        "blob": [b"\x00\xff"],
        "numbers": [1, 2, 3],
        "vector": [1.0, 2.0],
        "words": ["a", "", "ccc"],
        "rare": [7],
    },
    {
        "whole": [-1],
        "real": [math.inf],
        "text": ["grüße, 你好, \U0001f600"],
        "blob": [b""],
        "numbers": [],
        "vector": [-0.0, 1e-45],
        "words": [],
    },
    {
        "whole": [2**63 - 1],
        "real": [3.4028234663852886e38],
        "text": [""],
        "blob": [bytes(range(256))],
        "numbers": [-(2**63), 2**63 - 1, -1, 0, 127, 128, 2**14 - 1, 2**14, 2**56 - 1, 2**56],
        "vector": [math.nan, 3.0],
        "words": ["x" * 300],
    },
    {"whole": [-(2**63)], "rare": None, "words": ["y"]},
    {},
    {
        "whole": [300],
        "real": [-1.5],
        "text": ["end"],
        "blob": [b"z"],
        "numbers": list(range(-200, 200)),
        "vector": [4.0, 5.0],
        "words": [str(number) for number in range(40)],
        "rare": [8],
        "": [1],
    },
]

PAD_BYTES: Final = 120_000
NUM_BLOCKS_ROWS: Final = 80


def blocks() -> list[Example]:
    """Returns examples that fill more than one block, though they compress to a few KB."""
    return [{"id": [number], "pad": [bytes(PAD_BYTES)]} for number in range(NUM_BLOCKS_ROWS)]


FILES: Final[dict[str, str]] = {
    "types.tfrecord": "",
    "types.tfrecord.gz": "GZIP",
    "types.tfrecord.zlib": "ZLIB",
    "blocks.tfrecord.gz": "GZIP",
    "empty.tfrecord": "",
}
"""Compression by file, as TensorFlow calls it."""


def feature(tf: Any, values: list[Any] | None, name: str) -> Any:
    """Returns a feature as people write it."""
    if values is None:
        return tf.train.Feature()
    kind = {
        "whole": int,
        "numbers": int,
        "rare": int,
        "id": int,
        "": int,
        "real": float,
        "vector": float,
    }.get(name)
    if kind is int:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if kind is float:
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))


def main() -> None:
    """Writes the files."""
    import tensorflow as tf

    DATA.mkdir(exist_ok=True)
    contents = {"types": TYPES, "blocks": blocks(), "empty": []}
    for file, compression in FILES.items():
        options = tf.io.TFRecordOptions(compression_type=compression)
        with tf.io.TFRecordWriter(str(DATA / file), options) as writer:
            for example in contents[file.partition(".")[0]]:
                features = {name: feature(tf, values, name) for name, values in example.items()}
                message = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(message.SerializeToString())


if __name__ == "__main__":
    main()

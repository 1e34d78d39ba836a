"""tf.data: `from_generator` over a loop of pyarrow, for it reads no Parquet; its own batches and its own shuffle."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # read when it is imported

import tensorflow as tf

from benchmarks import data, images, stream, wide
from benchmarks.by_hand import Chunk
from benchmarks.peers import epochs

Loop = Callable[[list[str]], Iterator[Chunk]]


def _of(paths: Callable[[], list[str]], loop: Loop, *, shuffle: bool) -> epochs.Epoch:
    import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`)

    found = paths()
    data.read_through(found)
    first = next(loop(found))
    signature = {name: tf.TensorSpec((None, *array.shape[1:]), array.dtype) for name, array in first.items()}
    chunks = tf.data.Dataset.from_generator(lambda: loop(found), output_signature=signature)
    if shuffle:
        rows = chunks.unbatch().shuffle(stream.WINDOW_ROWS, seed=7)
        batches: Any = rows.batch(stream.BATCH_ROWS, drop_remainder=True)
    else:
        batches = chunks.rebatch(stream.BATCH_ROWS, drop_remainder=True)
    batches = batches.prefetch(tf.data.AUTOTUNE)
    made: epochs.Epoch = batches.as_numpy_iterator
    return made


def _cached(*, on_disk: bool) -> epochs.Epoch:
    import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`)

    paths = data.wide()
    data.read_through(paths)
    signature = {
        name: tf.TensorSpec((None, *array.shape[1:]), array.dtype)
        for name, array in next(wide.scanner_two_files(paths)).items()
    }
    chunks = tf.data.Dataset.from_generator(lambda: wide.scanner_two_files(paths), output_signature=signature)
    batches = chunks.rebatch(stream.BATCH_ROWS, drop_remainder=True)
    kept = batches.cache(f"{tempfile.mkdtemp()}/cache") if on_disk else batches.cache()
    return lambda: kept.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def _images() -> epochs.Epoch:
    def image(jpeg: Any) -> Any:
        whole = tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_ACCURATE", fancy_upscaling=False)
        return tf.cast(tf.image.resize(whole, (images.SIZE, images.SIZE)), tf.uint8)

    paths = images.tfrecords()
    data.read_through(paths)
    made = tf.data.TFRecordDataset(paths).map(image, num_parallel_calls=tf.data.AUTOTUNE)
    batches = iter(made.repeat().batch(images.BATCH_ROWS).prefetch(tf.data.AUTOTUNE))
    # An iterator waits for up to a second when it ends, for the thread that tunes: here it goes on instead.
    length = data.IMAGES // images.BATCH_ROWS
    return lambda: ({"image": batch.numpy()} for batch in itertools.islice(batches, length))


WORKLOADS: Final[epochs.Workloads] = {
    "stream": partial(_of, data.lineitem, stream.scanner_two_files, shuffle=False),
    "stream-shuffled": partial(_of, data.lineitem, stream.scanner_two_files, shuffle=True),
    "wide": partial(_of, data.wide, wide.scanner_two_files, shuffle=False),
    "wide-shuffled": partial(_of, data.wide, wide.scanner_two_files, shuffle=True),
    "images": _images,
    "cached-memory": partial(_cached, on_disk=False),
    "cached-disk": partial(_cached, on_disk=True),
}

if __name__ == "__main__":
    epochs.main("tensorflow_cpu", WORKLOADS)

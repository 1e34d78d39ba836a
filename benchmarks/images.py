"""JPEGs of 500 x 375 from Parquet, decoded to 224 x 224, in batches of 100: two epochs, behind one that is not measured.

`pool` is the loop that anybody would write with threads: record batches of 100 in order, each decoded by one of two
threads, a few ahead. It calls the very `decode` that arrowflow's `map` calls: simplejpeg decodes all of the pixels, with
plain upsampling of colours, as half of them are about to go; OpenCV shrinks them by bilinear interpolation. Both let go
of the interpreter lock. (Nothing is scaled while it is decoded: 4/8 would be too small, and 5/8 takes longer than 8/8.)

`tf.data` does the same work, with the same DCT, upsampling and interpolation, and reads from TFRecord files that hold
nothing but JPEGs. It is measured where TensorFlow is installed (`pip install tensorflow-cpu`).

`dataloader` is what tutorials of PyTorch do: a dataset by index, Pillow, `num_workers=2`. Pillow smooths colours, and its
bilinear filter looks at every pixel: what it delivers is better, and takes twice as long.

`decode_image` is arrowflow's operator, and `opencv-pool` the loop by hand with the same decoder: OpenCV decodes and resizes.
Both decode straight into a batch (in front of `batch` the operator is 5 % slower: pixels are copied). Both smooth colours,
as `tf.data, smooth` does, which is what `tf.io.decode_jpeg` does by default. All of them decode in each epoch;
`benchmarks.keep` has the epochs that take pixels from memory.
"""

from __future__ import annotations

import importlib.util
import io
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks import data, harness

BATCH_ROWS: Final = 100
EPOCHS: Final = 2
SIZE: Final = 224
THREADS: Final = 2
NEEDED: Final = {
    "arrowflow": {"tf.data": 1.0, "dataloader": 2.5, "pool": 0.95},
    "decode_image": {"opencv-pool": 1.0, "tf.data, smooth": 1.5, "dataloader": 2.5},
}
SCHEMA: Final = pa.schema([("image", pa.fixed_shape_tensor(pa.uint8(), [SIZE, SIZE, 3]))])

Batch = Mapping[str, NDArray[np.uint8]]


def decode(jpegs: Sequence[bytes]) -> NDArray[np.uint8]:
    """Returns the pixels of JPEGs, `(B, 224, 224, 3)`."""
    import cv2
    import simplejpeg

    out = np.empty((len(jpegs), SIZE, SIZE, 3), np.uint8)
    for pixels, jpeg in zip(out, jpegs, strict=True):
        whole = simplejpeg.decode_jpeg(jpeg, fastupsample=True)
        cv2.resize(whole, (SIZE, SIZE), dst=pixels)
    return out


def _measured(paths: list[str], epoch: Callable[[], Iterable[Batch]]) -> harness.Measurement:
    """Measures `EPOCHS` epochs behind one that starts threads and processes, and that tunes."""
    data.read_through(paths)
    for _ in epoch():
        pass
    return harness.drain(lambda: (batch for _ in range(EPOCHS) for batch in epoch()), batch_rows=BATCH_ROWS)


def one_thread_a_call() -> None:
    """Keeps OpenCV from threads of its own."""
    import cv2

    cv2.setNumThreads(0)


def arrowflow() -> harness.Measurement:
    """Measures arrowflow."""
    import arrowflow as af

    one_thread_a_call()
    paths = data.images()

    def image(batch: dict[str, Any]) -> dict[str, Any]:
        return {"image": decode(batch["jpeg"])}

    loader = af.read_parquet(paths).batch(BATCH_ROWS).map(image, format="numpy", schema=SCHEMA).to_numpy()
    return _measured(paths, lambda: loader)


def pool() -> harness.Measurement:
    """Measures two threads around `decode`."""
    one_thread_a_call()
    paths = data.images()
    with ThreadPoolExecutor(THREADS) as threads:
        return _measured(paths, lambda: by_threads(threads, paths))


def operator() -> harness.Measurement:
    """Measures `decode_image`."""
    import arrowflow as af

    one_thread_a_call()
    paths = data.images()
    images = af.read_parquet(paths).batch(BATCH_ROWS).decode_image("jpeg", SIZE).rename({"jpeg": "image"})
    loader = images.with_options(af.Options(keep=False)).to_numpy()
    return _measured(paths, lambda: loader)


def opencv_pool() -> harness.Measurement:
    """Measures two threads around OpenCV."""
    one_thread_a_call()
    paths = data.images()
    with ThreadPoolExecutor(THREADS) as threads:
        return _measured(paths, lambda: by_threads(threads, paths, by_opencv))


def by_opencv(jpegs: Sequence[bytes]) -> NDArray[np.uint8]:
    """Returns the pixels of JPEGs, decoded and resized by OpenCV."""
    import cv2

    out = np.empty((len(jpegs), SIZE, SIZE, 3), np.uint8)
    for pixels, jpeg in zip(out, jpegs, strict=True):
        whole = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)
        cv2.resize(whole, (SIZE, SIZE), dst=pixels)
    return out


def by_threads(
    threads: ThreadPoolExecutor,
    paths: list[str],
    decoded: Callable[[Sequence[bytes]], NDArray[np.uint8]] = decode,
) -> Iterator[Batch]:
    """Yields the batches of all files, which threads decode a few ahead."""

    def image(batch: pa.RecordBatch) -> Batch:
        return {"image": decoded(batch["jpeg"].to_pylist())}

    pending: deque[Future[Batch]] = deque()
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(BATCH_ROWS, columns=["jpeg"]):
            pending.append(threads.submit(image, batch))
            if len(pending) > 2 * THREADS:
                yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


# ---------------------------------------------------------------- PyTorch


class Images:
    """A dataset by index, as PyTorch's `DataLoader` takes it; each worker reads the files for itself."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._jpegs: list[Any] = []

    def __len__(self) -> int:
        return data.IMAGES

    def __getitem__(self, index: int) -> Any:
        """Returns the pixels of an image."""
        import torch
        from PIL import Image

        if not self._jpegs:
            self._jpegs = [jpeg for path in self._paths for jpeg in pq.read_table(path)["jpeg"]]
        image = Image.open(io.BytesIO(self._jpegs[index].as_py())).convert("RGB")
        resized = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(resized))


def dataloader() -> harness.Measurement:
    """Measures PyTorch's `DataLoader` with two workers and Pillow."""
    from torch.utils.data import DataLoader

    paths = data.images()
    loader: Any = DataLoader(Images(paths), BATCH_ROWS, num_workers=2, persistent_workers=True)
    return _measured(paths, lambda: ({"image": batch.numpy()} for batch in loader))


# ---------------------------------------------------------------- TensorFlow


def tf_data(*, smooth: bool) -> harness.Measurement:
    """Measures tf.data."""
    import tensorflow as tf

    def image(jpeg: Any) -> Any:
        whole = tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_ACCURATE", fancy_upscaling=smooth)
        return tf.cast(tf.image.resize(whole, (SIZE, SIZE)), tf.uint8)

    paths = tfrecords()
    images = tf.data.TFRecordDataset(paths).map(image, num_parallel_calls=tf.data.AUTOTUNE)
    batches = iter(images.repeat().batch(BATCH_ROWS).prefetch(tf.data.AUTOTUNE))
    # An iterator waits for up to a second when it ends, for the thread that tunes: here it goes on instead.
    length = data.IMAGES // BATCH_ROWS
    return _measured(paths, lambda: ({"image": batch.numpy()} for batch in islice(batches, length)))


def tfrecords() -> list[str]:
    """Returns the paths of the images as TFRecord files."""
    folder = data.DATA / "images-tfrecord"
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        for path in data.images():
            records = map(_record, pq.read_table(path)["jpeg"].to_pylist())
            (unfinished / Path(path).with_suffix(".tfrecord").name).write_bytes(b"".join(records))
        unfinished.rename(folder)
    return sorted(map(str, folder.iterdir()))


def _record(stored: bytes) -> bytes:
    from arrowflow.formats.tfrecord.framing import masked_crc

    length = struct.pack("<Q", len(stored))
    return b"".join(
        [length, struct.pack("<I", masked_crc(length)), stored, struct.pack("<I", masked_crc(stored))]
    )


# ---------------------------------------------------------------- bars


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []
    pairs = [(ours, name, needed) for ours, others in NEEDED.items() for name, needed in others.items()]
    for ours, name, needed in pairs:
        if ours not in rounds or name not in rounds:
            continue
        got = harness.ratio(rounds, ours, name)
        speeds = (harness.median_speed(rounds[each]) for each in (ours, name))
        shown = "{:,.0f} against {:,.0f} images/s".format(*speeds)
        bars.append(
            harness.Bar(f"images, {ours} and {name}", f">= {needed:.2f} x", shown, got >= needed, got)
        )
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "arrowflow": arrowflow,
    "pool": pool,
    "decode_image": operator,
    "opencv-pool": opencv_pool,
    "dataloader": dataloader,
}
if importlib.util.find_spec("tensorflow"):
    CONTENDERS["tf.data"] = partial(tf_data, smooth=False)
    CONTENDERS["tf.data, smooth"] = partial(tf_data, smooth=True)

if __name__ == "__main__":
    harness.main("images", CONTENDERS, judge)

"""arrowflow itself. Each epoch decodes, as it does in other libraries; `arrowflow_kept` has later epochs as they are by default."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import arrowflow as af
from benchmarks import data, images, stream, wide
from benchmarks.peers import epochs, packing


def _of(paths: Callable[[], list[str]], make: Callable[[list[str]], Any]) -> epochs.Epoch:
    found = paths()
    data.read_through(found)
    loader = make(found).with_options(af.Options(keep=False)).to_numpy()
    return lambda: loader


def wide_plain(paths: list[str]) -> Any:
    """Returns the batches of `wide` without a shuffle."""
    return wide.rows(paths).batch(wide.BATCH_ROWS, drop_remainder=True)


def tokens(paths: list[str]) -> Any:
    """Returns batches of packed documents."""
    rows = af.read_parquet(paths).select("tokens").pack_sequences("tokens", packing.LENGTH)
    return rows.batch(packing.ROWS, drop_remainder=True)


def _images(paths: list[str]) -> Any:
    def image(batch: dict[str, Any]) -> dict[str, Any]:
        return {"image": images.decode(batch["jpeg"])}

    images.one_thread_a_call()
    batches = af.read_parquet(paths).batch(images.BATCH_ROWS)
    return batches.map(image, format="numpy", schema=images.SCHEMA)


def _cached_in_memory(paths: list[str]) -> Any:
    return wide.rows(paths).cache().batch(wide.BATCH_ROWS, drop_remainder=True)


def _cached_on_disk(paths: list[str]) -> Any:
    return wide.rows(paths).cache(tempfile.mkdtemp()).batch(wide.BATCH_ROWS, drop_remainder=True)


WORKLOADS: Final[epochs.Workloads] = {
    "stream": partial(_of, data.lineitem, partial(stream.pipeline, shuffle=False)),
    "stream-shuffled": partial(_of, data.lineitem, partial(stream.pipeline, shuffle=True)),
    "wide": partial(_of, data.wide, wide_plain),
    "wide-shuffled": partial(_of, data.wide, wide.pipeline),
    "tokens": partial(_of, data.documents, tokens),
    "images": partial(_of, data.images, _images),
    "embeddings-parquet": partial(
        _of, data.embeddings_parquet, lambda paths: af.read_parquet(paths).batch(wide.BATCH_ROWS)
    ),
    "embeddings-ipc": partial(_of, data.embeddings, lambda paths: af.read_ipc(paths).batch(wide.BATCH_ROWS)),
    "cached-memory": partial(_of, data.wide, _cached_in_memory),
    "cached-disk": partial(_of, data.wide, _cached_on_disk),
}

if __name__ == "__main__":
    epochs.main("arrowflow", WORKLOADS)

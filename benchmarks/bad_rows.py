"""What leaving bad rows out costs: nothing where no row is bad, and little where one in a hundred is.

    python -m benchmarks.bad_rows
    python -m benchmarks.bad_rows --only csv json --rounds 5

Each contender takes turns between three ways to bad rows: `raise` and `none` read rows without a bad one, the second with
`on_error="skip"`; `skip` reads them with 1 % of bad ones, of the kinds that `_spoilt` makes. The bars compare epochs that follow
each other. They do so by the CPU time of a row, good or bad, since other load disturbs it less than wall time. The first epoch
of each way imports modules and does not count.
"""

from __future__ import annotations

import functools
import json
import statistics
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import harness

ROWS: Final = {"csv": 2_000_000, "json": 2_000_000, "tfrecord": 400_000}
FUNCTION_ROWS: Final = 200_000
BATCH_ROWS: Final = 1_000
EVERY: Final = 100
"""One row in so many is bad."""
EPOCHS: Final = 7
WAYS: Final = ("raise", "none", "skip")
NEEDED_NONE: Final = 0.98
NEEDED_SKIP: Final = 0.9
FORMATS: Final = ("csv", "json", "tfrecord")
FUNCTIONS: Final = ("map_rows", "map")


def _rows(count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    import random

    draws = random.Random(0)
    for number in range(count):
        yield (
            number,
            {
                "id": number,
                "price": round(draws.random() * 1000, 4),
                "user": draws.randrange(10**6),
                "name": f"name{number % 1000}",
                "score": round(draws.random(), 6),
                "count": draws.randrange(100),
            },
        )


def _spoilt(format: str, row: dict[str, Any]) -> bytes:
    """Returns a bad row: in turns one of the kinds that are met in practice."""
    kind = row["id"] // EVERY % 2
    if format == "tfrecord":
        return _example({**row, "user": "none"} if kind else {**row, "score": [0.5, 0.5]})
    if kind:
        return _stored(format, {**row, "user": "none"})
    whole = _stored(format, row)
    return whole[: len(whole) // 2]


def _stored(format: str, row: dict[str, Any]) -> bytes:
    if format == "tfrecord":
        return _example(row)
    return (json.dumps(row) if format == "json" else ",".join(map(str, row.values()))).encode()


def _example(row: dict[str, Any]) -> bytes:
    from arrowflow.formats.tfrecord.proto import example_class

    example = example_class()()
    for name, value in row.items():
        feature = example.features.feature[name]
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int):
                feature.int64_list.value.append(each)
            elif isinstance(each, float):
                feature.float_list.value.append(each)
            else:
                feature.bytes_list.value.append(str(each).encode())
    return bytes(example.SerializeToString())


def _framed(record: bytes) -> bytes:
    from arrowflow.formats.tfrecord.framing import masked_crc

    length = struct.pack("<Q", len(record))
    return b"".join(
        [length, struct.pack("<I", masked_crc(length)), record, struct.pack("<I", masked_crc(record))]
    )


def _path(format: str, *, spoilt: bool) -> str:
    """Returns the path of a file, which is written once."""
    from benchmarks import data

    path = data.DATA / f"bad_rows-{ROWS[format]}-{'bad' if spoilt else 'good'}.{format}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path.with_suffix(".unfinished"), format, spoilt=spoilt)
        path.with_suffix(".unfinished").rename(path)
    data.read_through([str(path)])
    return str(path)


def _write(path: Path, format: str, *, spoilt: bool) -> None:
    with path.open("wb") as file:
        if format == "csv":
            file.write(b"id,price,user,name,score,count\n")
        for number, row in _rows(ROWS[format]):
            bad = spoilt and number % EVERY == EVERY - 1
            stored = _spoilt(format, row) if bad else _stored(format, row)
            file.write(_framed(stored) if format == "tfrecord" else stored + b"\n")


def _schema(format: str) -> dict[str, Any]:
    import pyarrow as pa

    numbers = pa.float32() if format == "tfrecord" else pa.float64()
    text = pa.binary() if format == "tfrecord" else pa.string()
    return {
        "id": pa.int64(),
        "price": numbers,
        "user": pa.int64(),
        "name": text,
        "score": numbers,
        "count": pa.int64(),
    }


def _reading(format: str, way: str) -> tuple[Any, int]:
    """Returns a pipeline that reads a file, and how many rows the file has."""
    import arrowflow as af

    path = _path(format, spoilt=way == "skip")
    on_error: Any = "raise" if way == "raise" else "skip"
    return af.read(path, format=format, schema=_schema(format), on_error=on_error), ROWS[format]


def _row(bad: int, row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] % EVERY == bad:
        raise ValueError("a bad row")
    return {"x": row["id"] * 0.5, "y": row["id"] % 7}


def _batch(bad: int, batch: dict[str, Any]) -> dict[str, Any]:
    first = int(batch["id"][0])
    if first // BATCH_ROWS % EVERY == bad:
        raise ValueError("a bad batch")
    x = batch["id"] * 0.5
    for _ in range(50):
        x = x * 0.99 + 1.0
    return {"x": x}


def _calling(name: str, way: str) -> tuple[Any, int]:
    """Returns a pipeline that calls a function, and how many rows it gets."""
    import arrowflow as af

    bad = EVERY - 1 if way == "skip" else -1
    on_error: Any = "raise" if way == "raise" else "skip"
    if name == "map_rows":
        ds = af.range(FUNCTION_ROWS)
        return ds.map_rows(functools.partial(_row, bad), on_error=on_error), FUNCTION_ROWS
    ds = af.range(20 * FUNCTION_ROWS).batch(BATCH_ROWS)
    return ds.map(functools.partial(_batch, bad), format="numpy", on_error=on_error), 20 * FUNCTION_ROWS


def _measured(name: str) -> harness.Measurement:
    """Measures epochs of all ways in turn."""
    made = {way: (_reading if name in FORMATS else _calling)(name, way) for way in WAYS}
    epochs = [{way: _epoch(ds, rows, way) for way, (ds, rows) in made.items()} for _ in range(1 + EPOCHS)]
    counted = {way: [epoch[way] for epoch in epochs[1:]] for way in WAYS}
    ratios = {
        ours: statistics.median(
            a.cpu_seconds / b.cpu_seconds for a, b in zip(counted[theirs], counted[ours], strict=True)
        )
        for ours, theirs in (("none", "raise"), ("skip", "none"))
    }
    skipping = counted["skip"]
    return harness.Measurement(
        sum(one.rows for one in skipping),
        sum(one.seconds for one in skipping),
        sum(one.cpu_seconds for one in skipping),
        ratios,
    )


def _epoch(ds: Any, rows: int, way: str) -> harness.Measurement:
    """Measures an epoch, and checks that the bad rows, and no others, were left out."""
    watch = harness.Stopwatch()
    with iter(ds) as batches:
        delivered = sum(batch.num_rows for batch in batches)
        measured = watch.measurement(rows)
        expected = rows // EVERY if way == "skip" else 0
        if (delivered, batches.stats().skipped_rows) != (rows - expected, expected):
            raise AssertionError(f"expected {expected:,} rows to be left out of {rows:,}, got {delivered:,}")
    return measured


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []
    for name, measured in rounds.items():
        for way, title, needed, theirs in (
            ("none", "none bad", NEEDED_NONE, "raise"),
            ("skip", "1 % bad", NEEDED_SKIP, "none bad"),
        ):
            got = harness.median_extra(measured, way)
            bars.append(
                harness.Bar(
                    f"{name}, {title}", f">= {needed:g} x {theirs}", f"{got:.2f} x", got >= needed, got
                )
            )
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    name: functools.partial(_measured, name) for name in (*FORMATS, *FUNCTIONS)
}

if __name__ == "__main__":
    harness.main("bad_rows", CONTENDERS, judge, rounds=3)

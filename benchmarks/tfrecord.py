"""TFRecord files decoded into columns, against the plain loop over `protobuf` messages."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Final

from benchmarks import harness

RECORDS: Final = 120_000
FILES: Final = 4
NEEDED_SPEED: Final = 3.0
NUMBERS: Final = 4
VECTOR: Final = 16
CHECKED: Final = ("int_0", "float_1", "tokens", "vector")


def _paths() -> list[str]:
    """Returns the paths of records of four whole numbers, four floats, a name, 5 to 60 tokens and a vector of 16."""
    from benchmarks import data

    folder = data.DATA / f"tfrecord-{RECORDS}"
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        for number in range(FILES):
            (unfinished / f"{number}.tfrecord").write_bytes(_file(number, RECORDS // FILES))
        unfinished.rename(folder)
    paths = sorted(map(str, folder.iterdir()))
    data.read_through(paths)
    return paths


def _file(seed: int, num_records: int) -> bytes:
    import numpy as np

    from arrowflow.formats.tfrecord.framing import masked_crc
    from arrowflow.formats.tfrecord.proto import example_class

    rng = np.random.default_rng(seed)
    parts = []
    for record in range(num_records):
        example = example_class()()
        features = example.features.feature
        for number in range(NUMBERS):
            features[f"int_{number}"].int64_list.value.append(int(rng.integers(0, 1 << (12 * number + 3))))
            features[f"float_{number}"].float_list.value.append(float(rng.random()))
        features["name"].bytes_list.value.append(b"user-%d" % record)
        features["tokens"].int64_list.value.extend(rng.integers(0, 50_000, int(rng.integers(5, 60))).tolist())
        features["vector"].float_list.value.extend(rng.random(VECTOR).tolist())
        stored = example.SerializeToString()
        length = struct.pack("<Q", len(stored))
        parts += [
            length,
            struct.pack("<I", masked_crc(length)),
            stored,
            struct.pack("<I", masked_crc(stored)),
        ]
    return b"".join(parts)


def loop() -> harness.Measurement:
    """Reads the records one by one, without a look at their CRCs, and appends each feature's values to a list."""
    from arrowflow.formats.tfrecord.proto import example_class

    paths, parse = _paths(), example_class().FromString
    columns: dict[str, list[Any]] = {}
    watch = harness.Stopwatch()
    for path in paths:
        with Path(path).open("rb") as file:
            while header := file.read(12):
                record = file.read(struct.unpack_from("<Q", header)[0])
                file.read(4)
                for name, feature in parse(record).features.feature.items():
                    values = getattr(feature, feature.WhichOneof("kind")).value
                    columns.setdefault(name, []).append(values[:])
    found = watch.measurement(len(columns["name"]))
    if harness.CHECKING in os.environ:
        for name in CHECKED:
            found.extra[f"sum of {name}"] = float(sum(sum(values) for values in columns[name]))
    return found


def arrowflow(*, cpu_budget: int | None = None) -> harness.Measurement:
    """Reads them with arrowflow."""
    import pyarrow as pa

    import arrowflow as af

    paths = _paths()
    rows, sums = 0, dict.fromkeys(CHECKED, 0.0)
    watch = harness.Stopwatch()
    ds = af.read_tfrecord(paths)
    if cpu_budget is not None:
        ds = ds.with_options(af.Options(cpu_budget=cpu_budget))
    for batch in ds:
        rows += batch.num_rows
        for name in CHECKED if harness.CHECKING in os.environ else ():
            column = batch.column(name)
            values = column.flatten() if pa.types.is_list(column.type) else column
            sums[name] += float(values.to_numpy().sum(dtype="float64"))
    return watch.measurement(rows, **{f"sum of {name}": value for name, value in sums.items() if value})


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []
    for ours in ("arrowflow", "arrowflow-1"):
        title = "records a second" + (" with cpu_budget=1" if ours == "arrowflow-1" else "")
        bars += harness.race_bar(rounds, title, ours=ours, theirs=("loop",), needed=NEEDED_SPEED)
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "loop": loop,
    "arrowflow": arrowflow,
    "arrowflow-1": lambda: arrowflow(cpu_budget=1),
}

if __name__ == "__main__":
    harness.main("tfrecord", CONTENDERS, judge)

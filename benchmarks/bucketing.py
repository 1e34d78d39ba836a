"""`bucket_by_sequence_length` on documents of long-tailed length: how much of its batches is padding, and rows a second.

Waste is padding per real token. Both contenders hand out padded `(B, L)` arrays; buckets have batches of some 32,000
tokens, and the others as many rows a batch as buckets have on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from benchmarks import harness

ROWS: Final = 1_000_000
MEDIAN_TOKENS: Final = 33
MAX_TOKENS: Final = 600
BOUNDARIES: Final = [16, 32, 48, 64, 96, 128, 192, 256, 384]
BATCH_SIZES: Final = [2048, 1024, 682, 512, 341, 256, 170, 128, 85, 54]
PLAIN_BATCH_ROWS: Final = 512
NEEDED_WASTE_RATIO: Final = 1 / 3
NEEDED_ROWS_PER_SECOND: Final = 1e6


def documents() -> Any:
    """Returns a table of token lists in random order; lengths are lognormal, as those of texts are."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(7)
    lengths = np.clip(rng.lognormal(np.log(MEDIAN_TOKENS), 0.9, ROWS), 1, MAX_TOKENS).astype(np.int64)
    offsets = np.zeros(ROWS + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    tokens = rng.integers(1, 50_000, int(offsets[-1]), dtype=np.int32)
    columns = [pa.ListArray.from_arrays(offsets, tokens), pa.array(np.arange(ROWS))]
    return pa.table(columns, names=["tokens", "label"])


def measured(batches: Iterable[Mapping[str, Any]], num_tokens: int) -> harness.Measurement:
    """Measures the batches to the last one, and what of them is padding."""
    watch = harness.Stopwatch()
    rows = slots = 0
    for batch in batches:
        rows += len(batch["label"])
        slots += batch["tokens"].size
    if rows != ROWS:
        raise AssertionError(f"expected {ROWS} rows, got {rows}")
    return watch.measurement(rows, waste=slots / num_tokens - 1)


def bucketed() -> harness.Measurement:
    """Measures batches of rows of similar length."""
    import arrowflow as af

    table = documents()
    dataset = af.from_arrow(table).bucket_by_sequence_length("tokens", BOUNDARIES, BATCH_SIZES)
    return measured(dataset.to_numpy(), _num_tokens(table))


def plain() -> harness.Measurement:
    """Measures batches of rows as they come."""
    import arrowflow as af

    table = documents()
    return measured(
        af.from_arrow(table).padded_batch(PLAIN_BATCH_ROWS).to_numpy(),
        _num_tokens(table),
    )


def _num_tokens(table: Any) -> int:
    return sum(len(chunk.values) for chunk in table["tokens"].chunks)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []
    if "bucketed" in rounds and "padded_batch" in rounds:
        ours, theirs = (harness.median_extra(rounds[name], "waste") for name in ("bucketed", "padded_batch"))
        got = ours / theirs
        text = f"{ours:.2f} against {theirs:.2f} padding a token"
        bars.append(harness.Bar("waste", "<= 1/3 of unbucketed", text, got <= NEEDED_WASTE_RATIO, got))
    if "bucketed" in rounds:
        speed = harness.median_speed(rounds["bucketed"])
        text = f"{speed / 1e6:.2f} M rows/s"
        bars.append(harness.Bar("speed", ">= 1 M rows/s", text, speed >= NEEDED_ROWS_PER_SECOND))
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {"bucketed": bucketed, "padded_batch": plain}

if __name__ == "__main__":
    harness.main("bucketing", CONTENDERS, judge)

"""`DecoderChoice`: which of two decoders reads the runs of a kind of files."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats.parquet import polars_decoder
from arrowflow.formats.parquet.decoder_choice import DecoderChoice


class Clock:
    """A clock that decoders move by what they take."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def decode(self, choice: DecoderChoice, kind: str, polars: float, arrow: float, values: int = 1) -> str:
        """Returns which decoder read a run, if they take so many seconds; infinite if Polars cannot."""

        def by_polars() -> str | None:
            self.at += 0.0 if math.isinf(polars) else polars
            return None if math.isinf(polars) else "polars"

        def by_arrow() -> str:
            self.at += arrow
            return "arrow"

        return choice.by_polars(kind, values, by_polars) or choice.by_arrow(kind, values, by_arrow)


@pytest.mark.parametrize(("polars", "arrow", "faster"), [(1.0, 2.0, "polars"), (2.0, 1.0, "arrow")])
def test_both_decode_first_and_then_the_faster_one(polars: float, arrow: float, faster: str) -> None:
    clock = Clock()
    choice = DecoderChoice(clock.now)
    used = [clock.decode(choice, "zstd", polars, arrow) for _ in range(100)]
    assert used[0] == "polars"
    assert {*used[:4]} == {"polars", "arrow"}
    assert used.count(faster) == 93, "the other one has a chance after 4, 8, 16, 32 and 64 runs, too"
    assert choice.facts() == [f"decoded by {faster}, 2.0 x as fast as the other decoder"]


def test_times_count_for_each_value_and_the_best_of_each_decoder_counts() -> None:
    clock = Clock()
    choice = DecoderChoice(clock.now)
    times = [("polars", 6.0, 3), ("arrow", 4.0, 1), ("arrow", 12.0, 1), ("polars", 9.0, 1)]
    for decoder, seconds, values in times:
        assert clock.decode(choice, "zstd", seconds, seconds, values) == decoder
    assert choice.facts() == ["decoded by polars, 2.0 x as fast as the other decoder"], (
        "2 seconds a value against 4"
    )


def test_kinds_are_told_apart_and_a_decoder_that_cannot_is_not_asked_again() -> None:
    clock = Clock()
    choice = DecoderChoice(clock.now)
    for _ in range(5):
        clock.decode(choice, "broken", math.inf, 1.0)
        clock.decode(choice, "zstd", 1.0, 2.0)
    asked = []
    choice.by_polars("broken", 1, lambda: asked.append(1))
    assert not asked
    assert clock.decode(choice, "zstd", 1.0, 2.0) == "polars"


def test_a_copy_begins_anew() -> None:
    clock = Clock()
    choice = DecoderChoice(clock.now)
    for _ in range(9):
        clock.decode(choice, "zstd", 2.0, 1.0)
    assert choice.facts()
    assert pickle.loads(pickle.dumps(choice)).facts() == []


def test_rows_are_the_same_whichever_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats that are split by bytes: there Arrow is the faster one, as a rule."""
    monkeypatch.setattr(polars_decoder, "_MIN_VALUES", 1)
    monkeypatch.setattr(polars_decoder, "_FOOTER_SHARE", 0)
    values = np.random.default_rng(0).standard_normal(64_000)
    rows = pa.table({"x": values, "y": pa.array(values, mask=values > 1)})
    for number in range(4):
        part = rows.slice(number * 16_000, 16_000)
        pq.write_table(
            part,
            tmp_path / f"{number}.parquet",
            row_group_size=500,
            use_dictionary=False,
            use_byte_stream_split=True,
        )
    ds = af.read_parquet(tmp_path)
    for _ in range(3):
        assert pa.Table.from_batches(ds).equals(rows)
    assert ("as fast as the other decoder" in ds.explain()) == polars_decoder.fits(
        af.Options().resolved().cpu_budget
    )

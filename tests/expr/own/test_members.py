"""`is_in` with a long list of texts or binaries has the answers that Polars gives, and one index for all chunks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.expr.own import members
from arrowflow.expr.parse.many import ManyTexts
from arrowflow.expr.run import looked_up
from arrowflow.lookup import keys as lookup_keys
from arrowflow.lookup.key_index import KeyIndex
from tests.effort import scaled

KEYS = 2_000
"""As many as make a constant long (`expr/parse/lifted.py`)."""
ROWS = 1_500
TEXTS: dict[str, Callable[[int], str]] = {
    "short": lambda number: f"k{number}",
    "long": lambda number: f"{number} is a text of more than twelve bytes",
    "unicode": lambda number: f"ÿ{'é' * (number % 9)}{number}🙂",
    "mixed": lambda number: f"{number}" * (1 + number % 40),
}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked_up, "MIN_KEYS", 100)
    looked_up._KNOWN.clear()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the indexes that were made; sets live as long as the test, whenever garbage is collected."""
    monkeypatch.setattr(looked_up, "_KNOWN", {})
    sizes: list[int] = []

    def counted(keys: pa.RecordBatch) -> Any:
        sizes.append(keys.num_rows)
        return KeyIndex(keys)

    monkeypatch.setattr(members, "KeyIndex", counted)
    return sizes


def drawn(text: Callable[[int], str], seed: int, *, nulls: bool = True) -> tuple[pl.Series, pl.DataFrame]:
    """Returns keys, some of them twice, and a column of which every second value is one of them."""
    rng = random.Random(seed)
    long = "x" * 5_000
    keys: list[str | None] = [text(rng.randrange(KEYS)) for _ in range(KEYS)]
    keys += ["", "é", long, *([None] if nulls else [])]
    values: list[str | None] = [text(rng.randrange(2 * KEYS)) for _ in range(ROWS)]
    values += ["", "e", long, f"{long}x", None]
    rng.shuffle(keys)
    rng.shuffle(values)
    return pl.Series(keys, dtype=pl.String), pl.DataFrame(
        {"s": pl.Series(values, dtype=pl.String), "x": range(len(values))}
    )


def check(frame: pl.DataFrame, expr: pl.Expr, *, rows: Any = None, chunk: int = 397) -> None:
    """Compares answers and passing rows with those of Polars, over several chunks."""
    arrow = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    chunks = pa.Table.from_batches(arrow.combine_chunks().to_batches(chunk), arrow.schema)
    source = af.from_arrow(chunks if rows is None else rows)
    expected = frame.select(y=expr)["y"]
    assert source.select(y=expr).to_table()["y"].to_pylist() == expected.to_list()
    if expected.dtype == pl.Boolean:
        assert source.filter(expr).to_table()["x"].to_pylist() == frame.filter(expr)["x"].to_list()


# Of each kind of texts, and with every other setting.
SETTINGS = [flags for flags in product((True, False), repeat=3) if flags != (False, True, False)]
ANSWERS = [*((kind, False, True, False) for kind in TEXTS), *(("mixed", *flags) for flags in SETTINGS)]


@pytest.mark.parametrize(("kind", "nulls_equal", "nulls", "binary"), ANSWERS)
def test_answers_are_those_of_polars(
    kind: str, nulls_equal: bool, nulls: bool, binary: bool, made: list[int]
) -> None:
    keys, frame = drawn(TEXTS[kind], seed=7, nulls=nulls)
    if binary:
        keys, frame = keys.cast(pl.Binary), frame.with_columns(pl.col("s").cast(pl.Binary))
    expr = pl.col("s").is_in(keys.implode(), nulls_equal=nulls_equal)
    check(frame, expr)
    assert made == [len(keys)]
    check(frame, ~expr & (pl.col("x") > 700))
    check(frame[:1], expr)
    check(frame[:0], expr)
    check(frame.with_columns(s=pl.lit(None, frame["s"].dtype)), expr)


@pytest.mark.parametrize("seed", range(scaled(40)))
def test_parts_of_expressions(seed: int, made: list[int]) -> None:
    keys, frame = drawn(TEXTS["mixed"], seed)
    s, other = pl.col("s"), keys.str.to_uppercase().head(500)
    inside = s.is_in(keys.implode())
    for expr in (
        inside | s.is_in(other.implode(), nulls_equal=True),
        s.str.to_uppercase().is_in(keys.implode()),
        pl.when(inside).then(s).otherwise(pl.lit("none")),
        pl.struct(inside, "x"),
        pl.struct(inside.alias("a"), inside.alias("b")),
        pl.struct(inside.name.suffix("_in"), "x"),
        inside.name.suffix("_in"),
        inside.alias("x").name.keep(),
        inside.is_null(),
        s.is_in([*keys.to_list(), "more"]),
        s.is_in(pl.lit(keys).implode()),
        s.str.split("1").list.eval(pl.element().is_in(keys.to_list())),
        pl.concat_list(s, s).list.first().is_in(keys.implode()),
        pl.col("x").cast(pl.String).is_in(keys.implode()) & inside,
    ):
        check(frame, expr)
    assert made


def test_columns_of_other_types(made: list[int]) -> None:
    keys, frame = drawn(TEXTS["mixed"], seed=3)
    expr = pl.col("s").is_in(keys.implode())
    arrow = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    for type in (pa.string(), pa.large_string(), pa.string_view()):
        texts = arrow.column("s").cast(pa.string()).cast(type)
        check(frame, expr, rows=pa.table({"s": texts, "x": arrow.column("x")}))
    assert made == [len(keys)]
    words = sorted({text for text in (*keys, *frame["s"]) if text is not None})
    for dtype in (pl.Enum(words), pl.Categorical()):
        coded = frame.with_columns(pl.col("s").cast(dtype))
        rows = af.from_arrow(coded).filter(expr)
        found = rows.to_table()["x"].to_pylist()
        if dtype == pl.Enum:  # categoricals come as texts
            assert made == [len(keys)]
        assert found == coded.filter(expr)["x"].to_list()
    with pytest.raises(af.PlanError, match="is_in"):
        _ = af.from_arrow(frame).filter(pl.col("x").is_in(keys.implode())).schema


def test_fields_of_structs(tmp_path: Path, made: list[int]) -> None:
    keys, frame = drawn(TEXTS["mixed"], seed=9)
    frame = frame.select(pl.struct("s", z=pl.lit(1)).alias("parts"), "x")
    frame.write_parquet(tmp_path / "x.parquet", row_group_size=500)
    expr = pl.col("parts").struct.field("s").is_in(keys.implode())
    rows = af.read_parquet(tmp_path / "x.parquet")
    assert rows.filter(expr).select("x").to_table()["x"].to_pylist() == frame.filter(expr)["x"].to_list()
    check(frame, expr | (pl.col("parts").struct.field("z") > 1))
    assert made == [len(keys)]


def test_messages_name_the_column_and_the_list() -> None:
    keys, frame = drawn(TEXTS["mixed"], seed=9)
    expr = pl.col("s").is_in(keys.implode()) & pl.col("s").cast(pl.Int8).is_null()
    with pytest.raises(af.DataError, match=r'col\("is_in list [0-9a-f]{24}"\)\.alias\("s"\)'):
        af.from_arrow(frame).filter(expr).to_table()


def test_empty_and_short_lists_are_left_to_polars(made: list[int]) -> None:
    _, frame = drawn(TEXTS["short"], seed=3)
    for keys in ([], [None], ["k1", None]):
        for nulls_equal in (False, True):
            listed = pl.Series(keys, dtype=pl.String).implode()
            check(frame, pl.col("s").is_in(listed, nulls_equal=nulls_equal))
    assert not made


@pytest.mark.parametrize("kept", [0, 3, 61])
@pytest.mark.parametrize("nulls_equal", [False, True])
def test_hashes_that_collide(kept: int, nulls_equal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some bits of each hash count: keys collide with keys, and values with keys."""
    hashes = lookup_keys.hashes

    def weak(keys: pa.RecordBatch) -> Any:
        return tuple(half & np.uint64((1 << kept) - 1) for half in hashes(keys))

    monkeypatch.setattr(lookup_keys, "hashes", weak)
    keys, frame = drawn(TEXTS["mixed"], seed=5)
    check(frame, pl.col("s").is_in(keys.implode(), nulls_equal=nulls_equal))


def test_values_that_collide_with_one_key_each(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is the number at the begin of a text, so no two keys collide, and half of the values do."""

    def by_number(keys: pa.RecordBatch) -> Any:
        numbers = np.array([int((text or "0 ").split()[0]) for text in keys.column(0).to_pylist()], np.uint64)
        return numbers, numbers

    monkeypatch.setattr(lookup_keys, "hashes", by_number)
    keys = pl.Series([TEXTS["long"](number) for number in range(KEYS)])
    values = [f"{keys[row]}{'!' * (row % 2)}" for row in range(ROWS)]
    frame = pl.DataFrame({"s": values, "x": range(ROWS)})
    check(frame, pl.col("s").is_in(keys.implode()))
    assert made == [KEYS]


def test_keys_are_prepared_once_for_chunks_epochs_and_plans(made: list[int]) -> None:
    keys, frame = drawn(TEXTS["mixed"], seed=11)
    parts = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks().to_batches(25)
    assert len(parts) > 50
    expr = pl.col("s").is_in(keys.implode())
    rows = af.from_arrow(parts).filter(expr).with_columns(y=expr | pl.lit(value=False))
    for _ in range(3):
        assert rows.to_table().num_rows == frame.filter(expr).height
    assert rows.repeat(2).to_table().num_rows == 2 * frame.filter(expr).height
    assert made == [len(keys)]


def test_threads_make_one_index(made: list[int]) -> None:
    keys, frame = drawn(TEXTS["long"], seed=13)
    found = members.Members(keys, nulls_equal=False)
    array = frame["s"].to_arrow(compat_level=pl.CompatLevel.oldest())
    barrier = threading.Barrier(4)

    def look(_: int) -> list[bool | None]:
        barrier.wait()
        return found(array).to_pylist()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(look, range(4)))
    assert answers == [frame["s"].is_in(keys.implode()).to_list()] * 4
    assert made == [len(keys)]


@pytest.mark.parametrize("binary", [False, True])
def test_files_are_pruned_by_long_lists(binary: bool, tmp_path: Path) -> None:
    keys = pl.Series([f"{number:05}" for number in range(0, 100_000, 10)]).sample(
        fraction=1, shuffle=True, seed=1
    )
    # Row groups of five texts between two keys, and of ten texts with one.
    values = [f"{number:05}" for number in (*range(11, 16), *range(95, 105), *range(55_551, 55_556))]
    frame = pl.DataFrame({"s": values, "x": range(len(values))})
    if binary:
        keys, frame = keys.cast(pl.Binary), frame.with_columns(pl.col("s").cast(pl.Binary))
    frame.write_parquet(tmp_path / "x.parquet", row_group_size=5)
    for expr in (pl.col("s").is_in(keys.implode()), ~pl.col("s").is_in(keys.implode())):
        found = af.read_parquet(tmp_path / "x.parquet").filter(expr).to_table()
        assert found["x"].to_pylist() == frame.filter(expr)["x"].to_list()


def test_many_texts_know_their_gaps() -> None:
    numbers = [number for number in range(0, 100_000, 10) if not 5_000 < number < 6_000]
    texts = ManyTexts(pl.Series([f"{number:05}" for number in numbers]).reverse())
    assert texts.any_between("00000", "99999") and texts.any_between("00011", "00020")
    assert not texts.any_between("00011", "00019") and not texts.any_between("05001", "05999")
    assert not texts.any_between("99991", "99999") and texts.any_between("", "00000")
    with pytest.raises(TypeError):
        texts.any_between(b"0", b"1")

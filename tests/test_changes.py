"""States that go on although something has changed: with `strict=False`, and with neither a row lost nor one twice."""

from __future__ import annotations

import itertools
import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.combine import mixing, sample_from_datasets
from tests.ops.tables import OPERATORS, Apply, counted, identity, refused, two_thirds

pytestmark = pytest.mark.any_version

State = dict[str, Any]
Make = Callable[[], af.Dataset]

NAMES = sorted(OPERATORS.keys() - {"assert_cardinality", "split_by_rank"})
"""Operators without one that names the number of rows, and the one that has to come last."""
BLOCK = 4096


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[int]:
    """Returns the numbers of rows, or the tokens that are such numbers."""
    found = []
    for batch in batches:
        name = next(name for name in ("row", "tokens", "id") if name in batch.schema.names)
        values = batch.column(name)
        while isinstance(values, pa.ListArray | pa.FixedSizeListArray):
            values = values.flatten()
        found += values.to_pylist()
    return found


def delivered(make: Make) -> tuple[list[pa.RecordBatch], list[State]]:
    """Returns the batches of an epoch, and the state before each of them and after the last one."""
    with iter(make()) as run:
        batches, states = [], [run.state_dict()]
        for batch in run:
            batches.append(batch)
            states.append(json.loads(json.dumps(run.state_dict())))
    return batches, states


def resumed(ds: af.Dataset, state: State, **options: Any) -> list[pa.RecordBatch]:
    with iter(ds) as run, warnings.catch_warnings(action="ignore"):
        run.load_state_dict(state, **options)
        return list(run)


def is_safe(before: af.Dataset, after: af.Dataset) -> bool:
    """Whether a state of one goes on in the other; if not, the error says why."""
    with iter(before) as run, iter(after) as other:
        state = run.state_dict()
        with warnings.catch_warnings(action="ignore"):
            try:
                other.load_state_dict(state, strict=False)
            except af.StateError:
                refused(af.StateError, lambda: other.load_state_dict(state), "strict=False would not go on")
                return False
        refused(af.StateError, lambda: other.load_state_dict(state), "strict=False) goes on")
    return True


# ------------------------------------------------------------------------------------------ more files

SHARDS = [[5, 4], [3], [6, 2, 1], [4]]


def write(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes some of four files with 25 rows."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        first = sum(map(sum, SHARDS[:number]))
        rows = range(first, first + sum(SHARDS[number]))
        columns = {"row": rows, "text": ["x" * (row % 8) for row in rows], "list": [[row] for row in rows]}
        table = pa.table({name: list(values) for name, values in columns.items()})
        with pq.ParquetWriter(folder / f"{number}.parquet", table.schema) as writer:
            for rows_of_group in SHARDS[number]:
                writer.write_table(table.slice(0, rows_of_group))
                table = table.slice(rows_of_group)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders with the same first files, of which the second has two more."""
    folder = tmp_path_factory.mktemp("files")
    return write(folder / "short", [0, 1]), write(folder / "long", [0, 1, 2, 3])


LONGER = {
    "select",
    "with_columns",
    "drop",
    "rename",
    "cast",
    "fill_null",
    "stack",
    "decode_image",
    "join",
    "filter",
    "map",
    "map_rows",
}
LONGER |= {
    "take",
    "skip",
    "repeat",
    "enumerate",
    "explode",
    "scan",
    "prefetch",
    "cache",
    "with_options",
    "apply",
}
LONGER |= {"batch", "padded_batch", "unbatch"}
"""Operators after which a source of files may have more of them."""
CUT = {"batch", "padded_batch", "unbatch", "repeat", "cache"}
"""Those after which it may not, if batches are cut after the operator."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [None, 2])
def test_a_source_goes_on_with_more_files(folders: tuple[Path, Path], name: str, size: int | None) -> None:
    def make(folder: Path) -> af.Dataset:
        ds = OPERATORS[name](af.read_parquet(folder))
        return ds if size is None else ds.batch(size)

    short, long = folders
    safe = name in LONGER and not (size and name in CUT)
    assert is_safe(make(short), make(long)) == safe, (
        f"{name} is in LONGER by mistake, or is missing there or in CUT"
    )
    if not safe:
        return
    check_every_file(lambda: make(short), lambda: make(long), passes=2 if name == "repeat" else 1)


def check_every_file(short: Make, long: Make, passes: int = 1) -> None:
    batches, states = delivered(short)
    old, new = Counter(rows_of(batches)), Counter(rows_of(list(long())))
    for step, state in enumerate(states):
        before = rows_of(batches[:step])
        found = Counter(before) + Counter(rows_of(resumed(long(), state, strict=False)))
        is_late = len(before) * passes > old.total()  # the first pass was over without the new files
        missed = Counter((new - old).keys()) if is_late and passes > 1 else Counter[int]()
        assert found == new - missed, step


def test_no_more_than_the_split_at_the_position_comes_again(folders: tuple[Path, Path]) -> None:
    short, long = map(af.read_parquet, folders)
    assert is_safe(short.batch(4), long.batch(4))
    # These would have to see one row more.
    assert not is_safe(short.batch(1).batch(4), long.batch(1).batch(4))
    assert not is_safe(short.shuffle(1, seed=1), long.shuffle(1, seed=1))


def test_text_files_go_on_with_more_of_them(tmp_path: Path) -> None:
    def make(folder: Path) -> af.Dataset:
        return af.read_csv(folder / "*.csv").filter(pl.col("row") % 5 != 0).batch(4)

    for name, files in {"short": 2, "long": 5}.items():
        (tmp_path / name).mkdir()
        for number in range(files):
            rows = "".join(f"{10 * number + row}\n" for row in range(10))
            (tmp_path / name / f"{number}.csv").write_text(f"row\n{rows}")
    check_every_file(lambda: make(tmp_path / "short"), lambda: make(tmp_path / "long"))


# ------------------------------------------------------------------------------------------ other weights


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mixing, sample_from_datasets):
        monkeypatch.setattr(module, "BLOCK_ROWS", BLOCK)


SOURCES = [
    af.range(first, first + rows)
    .select(row="id")
    .with_columns(text=pl.lit("xxxxxxxx").str.slice(0, pl.col("row") % 8), list=pl.concat_list("row"))
    for first, rows in [(0, 5 * BLOCK), (10 * BLOCK, 2 * BLOCK), (20 * BLOCK, BLOCK)]
]


def mix(weights: Sequence[float], *, stop: bool = False) -> af.Dataset:
    return af.sample_from_datasets(
        SOURCES, weights, seed=1, stop="first_exhausted" if stop else "all_exhausted_without_replacement"
    )


OLD, NEW, LAST = (0.5, 0.4, 0.1), (0.1, 0.1, 0.8), (0.8, 0.2, 0.1)
WEIGHED = LONGER | {"shuffle", "bucket_by_sequence_length", "pack_sequences"}
"""Operators after which a mix may have other weights."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [None, 700])
def test_where_a_mix_may_have_other_weights(name: str, size: int | None) -> None:
    def make(weights: Sequence[float]) -> af.Dataset:
        ds = OPERATORS[name](mix(weights))
        return ds if size is None else ds.batch(size)

    assert is_safe(make(OLD), make(NEW)) == (name in WEIGHED and not (size and name in {"cache", "repeat"}))


MIXED: dict[str, Apply] = {
    "chunks": lambda ds: ds,
    "batches": lambda ds: ds.select("row").batch(700),
    "batches of batches": lambda ds: ds.batch(5_000).batch(700),
    "batches repeated": lambda ds: ds.batch(700).repeat(2),
    "padded": lambda ds: ds.padded_batch(700),
    "a filter": lambda ds: ds.filter(pl.col("row") % 3 != 1).batch(500),
    "functions": lambda ds: ds.map(two_thirds).filter(odd).batch(300),
    "rows in and out": lambda ds: ds.explode("list").enumerate().skip(100).take(40_000).batch(700),
    "a scan": lambda ds: ds.scan(0, counted, schema=ds.schema).batch(700),
    "a cache": lambda ds: ds.batch(700).cache(),
    "windows": lambda ds: ds.shuffle(6_000, seed=3).batch(700),
    "windows of windows": lambda ds: (
        ds.shuffle(900, seed=3).map(identity, keeps_rows=True).shuffle(5_000, seed=4).batch(700)
    ),
    "buckets": lambda ds: ds.bucket_by_sequence_length("text", [3, 6], [900, 1_500, 700], max_lag_rows=3_000),
    "buckets cut": lambda ds: ds.bucket_by_sequence_length(
        "text", [3, 6], [900, 1_500, 700], max_lag_rows=6_000
    ).batch(700),
    "packed": lambda ds: (
        ds.select(tokens="list")
        .map(identity, keeps_rows=True)
        .pack_sequences("tokens", 16, window_rows=3_000)
        .batch(40)
    ),
}
"""Pipelines after a mix whose rows come once, whatever the weights are."""


def odd(batch: pa.RecordBatch) -> Any:
    return batch.column("row").to_numpy() % 2 == 1


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", MIXED)
def test_no_row_is_lost_where_weights_change(name: str) -> None:
    def make(weights: Sequence[float], *, stop: bool = False) -> af.Dataset:
        return MIXED[name](mix(weights, stop=stop))

    batches, states = delivered(lambda: make(OLD))
    expected = Counter(rows_of(batches))
    for step in sorted({1, 2, *range(4, len(states), -(-len(states) // 5)), len(states) - 1}):
        with iter(make(NEW)) as run:
            with pytest.warns(UserWarning, match=r"weights of now, after at most [\d,]+ rows"):
                run.load_state_dict(states[step], strict=False)
            begun = list(itertools.islice(run, min(step % 4, len(batches) - step)))
            state = run.state_dict()
            rest = list(run)
        before = Counter(rows_of(batches[:step])) + Counter(rows_of(begun))
        assert before + Counter(rows_of(rest)) == expected, step
        assert rows_of(resumed(make(NEW), state)) == rows_of(rest), step
        other = rows_of(resumed(make(LAST), state, strict=False))
        assert before + Counter(other) == expected, step


@pytest.mark.usefixtures("small_blocks")
def test_the_choices_follow_the_new_weights_soon() -> None:
    def shares(batch: pa.RecordBatch) -> list[float]:
        rows = rows_of([batch])
        return [
            round(sum(row // (10 * BLOCK) == source for row in rows) / len(rows), 2) for source in range(3)
        ]

    _, states = delivered(lambda: mix(OLD, stop=True).batch(1_024))
    found = [shares(batch) for batch in resumed(mix(NEW, stop=True).batch(1_024), states[5], strict=False)]
    assert found[:4] == [[0.5, 0.4, 0.1]] * 3 + [[0.1, 0.1, 0.8]]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("stop", [False, True])
def test_weights_come_and_go(stop: bool) -> None:
    """A dataset that has no weight any more is read to the end of the rows that come by the old weights, not further."""

    def make(*weights: float) -> af.Dataset:
        return mix(weights, stop=stop).batch(1_000)

    batches, states = delivered(lambda: make(0.5, 0.5, 0))
    for step in (1, len(states) // 3, len(states) - 1):
        rows = rows_of(batches[:step]) + rows_of(resumed(make(0, 0.5, 0.5), states[step], strict=False))
        assert len(set(rows)) == len(rows)
        if not stop:
            assert set(range(10 * BLOCK, 12 * BLOCK)) | set(range(20 * BLOCK, 21 * BLOCK)) <= set(rows)


# ------------------------------------------------------------------------------------------ errors


def test_lanes_do_not_go_on(folders: tuple[Path, Path]) -> None:
    short, long = (af.read_parquet(folder).batch(4).split_by_rank(0, 1) for folder in folders)
    assert not is_safe(short, long)
    old, new = (mix(weights).batch(16).split_by_rank(0, 1) for weights in (OLD, NEW))
    with iter(old) as run:
        refused(
            af.StateError,
            lambda: iter(new).load_state_dict(run.state_dict(), strict=False),
            "another pipeline",
            "weights=[0.5, 0.4, 0.1]",
            "strict=False would not go on either: split_by_rank comes after sample_from_datasets",
        )


def test_the_error_tells_what_would_follow(folders: tuple[Path, Path]) -> None:
    short, long = (af.read_parquet(folder) for folder in folders)
    with iter(short.batch(4)) as run:
        state = run.state_dict()
    refused(
        af.StateError,
        lambda: iter(long.batch(4)).load_state_dict(state),
        "another pipeline",
        "files=2",
        "load_state_dict(…, strict=False) goes on: read has 2 new files after its 2 old ones",
    )
    with iter(short.shuffle(4, seed=1).batch(4)) as run:
        state = run.state_dict()
    refused(
        af.StateError,
        lambda: iter(long.shuffle(4, seed=1).batch(4)).load_state_dict(state),
        "strict=False would not go on either: shuffle comes after read",
        "some would be lost and some would come twice",
    )


def test_other_differences_stay_errors(tmp_path: Path) -> None:
    short, long = write(tmp_path / "short", [0, 1]), write(tmp_path / "long", [0, 1, 2, 3])

    def attempt(before: af.Dataset, after: af.Dataset) -> None:
        with iter(before) as run, iter(after) as other:
            state = run.state_dict()
            with pytest.raises(af.StateError, match="another pipeline") as caught:
                other.load_state_dict(state, strict=False)
            assert "strict" not in str(caught.value)

    attempt(af.read_parquet(long).batch(4), af.read_parquet(short).batch(4))
    attempt(af.read_parquet(short).batch(4), af.read_parquet(long).batch(5))
    attempt(mix(OLD).batch(4), mix(NEW).batch(5))
    attempt(af.read_parquet(short).batch(4), af.read_ipc(write_ipc(long)).batch(4))
    attempt(mix(OLD).batch(4), af.sample_from_datasets(SOURCES, NEW, seed=2).batch(4))
    attempt(mix(OLD).batch(4), af.sample_from_datasets(SOURCES[:2], NEW[:2], seed=1).batch(4))
    write(short, [3])
    (short / "1.parquet").unlink()  # another file is not a new one after the old ones
    attempt(af.read_parquet(long).take(9).batch(4), af.read_parquet(short).take(9).batch(4))


def write_ipc(folder: Path) -> Path:
    af.read_parquet(folder).write_ipc(folder.parent / "ipc")
    return folder.parent / "ipc"


def test_loaders_go_on(folders: tuple[Path, Path]) -> None:
    short, long = (af.read_parquet(folder).select("row").batch(2).to_numpy() for folder in folders)
    for _ in zip(range(2), short, strict=False):
        pass
    refused(af.StateError, lambda: long.load_state_dict(short.state_dict()), "strict=False) goes on")
    with pytest.warns(UserWarning, match="2 new files") as given:
        long.load_state_dict(short.state_dict(), strict=False)
    assert given[0].filename == __file__
    assert [row for batch in long for row in batch["row"].tolist()] == list(range(4, 25))

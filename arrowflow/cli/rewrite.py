"""`arrowflow rewrite`: the same rows in another layout.

A local target is made in a hidden folder beside it, shard by shard. Each shard is one call of a writer, so a shard that is
there is whole. The folder takes its name once it has all rows. A command that is stopped leaves its whole shards, and says
so. The same command goes on behind them, and another one to the same target removes them.

A remote target, and one of partitions, is made by one call of a writer: a file of a partition has rows of all shards.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from arrowflow.caching.store.claim import claim
from arrowflow.cli.files import columns_of, dataset_of
from arrowflow.cli.output import size, write_json, write_text
from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError, WriteError, closest, counted, printable
from arrowflow.executor.workers.together import together
from arrowflow.ops.sources.files.read import Read
from arrowflow.optional import optional
from arrowflow.options import Options
from arrowflow.sources import from_arrow
from arrowflow.storage import flush, locate
from arrowflow.write import CSV, IPC, JSON, PARQUET, writer_of
from arrowflow.write.shards import explained
from arrowflow.write.targets import LocalFolder

SHARD_BYTES: Final = 256 << 20

KINDS: Final = {"parquet": PARQUET, "ipc": IPC, "csv": CSV, "json": JSON}
_GROUP: Final = {"parquet": "row_group_rows", "ipc": "batch_rows"}


def run(
    sources: Sequence[str],
    target: str,
    *,
    to: str,
    group_rows: int | None,
    shard_rows: int | None,
    compression: str | None,
    sort: Sequence[str],
    fixed: Sequence[str],
    partition_by: Sequence[str],
    format: str | None,
    overwrite: bool,
    as_json: bool,
) -> bool:
    """Writes rows anew; finds nothing to stop at."""
    if to not in KINDS:
        raise PlanError(f"rewrite: --to names a format; {closest(to, KINDS, kind='formats')}")
    options = writer_options(to, group_rows, compression, partition_by)
    read = dataset_of("rewrite", sources, format)
    files = columns_of("rewrite", read)
    dataset = with_lists(read, fixed)
    rows = dataset.num_rows
    if not isinstance(rows, int):
        raise PlanError("rewrite: the rows of the source are not known before it is read")
    shard_rows = shard_rows or _shard_rows(files, rows, group_rows or KINDS[to].default_rows)
    place = _local(target)
    for source in sources:
        _check_apart(source, place, files)
    writer = writer_of(
        KINDS[to],
        target,
        shard_bytes=None,
        shard_rows=shard_rows,
        compression=options.get("compression"),
        partition_by=options.get("partition_by"),
        filesystem=None,
        overwrite=overwrite,
    )
    try:
        writer.check()
        if sort:
            dataset = _sorted(dataset, sort)
        local = writer.shards.target if isinstance(writer.shards.target, LocalFolder) else None
        if local is not None and not partition_by:
            identity = [[file.path, file.size, file.mtime_ns] for file in files.files]
            what = [identity, to, shard_rows, options, list(sort), list(fixed)]
            hidden = Path(local.path).with_name(_prefix(Path(local.path)) + _digest(what))
            written = _Job(local, hidden, dataset, rows, shard_rows, to, options).run()
        else:
            if local is not None:
                _sweep(Path(local.path), None)
            if Options.of_environment().progress is None:
                dataset = dataset.with_options(Options(progress=True))
            found = getattr(dataset, f"write_{to}")(
                target, shard_rows=shard_rows, overwrite=overwrite, **options
            )
            written = (len(found.files), found.num_rows, found.num_bytes)
    except WriteError as error:  # advice names the option of the command, and not the argument of the writer
        words = str(error.args[0]).replace("overwrite=True", "--overwrite")
        error.args = (words.replace("partition_by", "--partition-by"),)
        raise
    facts = dict(zip(("files", "rows", "bytes"), written, strict=True))
    if as_json:
        write_json({"path": target, **facts})
    else:
        write_text(
            f"{counted(facts['rows'], 'row')} in {counted(facts['files'], 'file')}, {size(facts['bytes'])}: {target}"
        )
    return False


def writer_options(
    to: str, group_rows: int | None, compression: str | None, partition_by: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the arguments of the writer of a format.

    Raises:
        PlanError: The format has no such argument.
    """
    given: dict[str, Any] = {}
    for name, value in (("--group-rows", group_rows), ("--compression", compression)):
        if value is not None and to not in _GROUP:
            raise PlanError(f"rewrite: {name} is for parquet and ipc, and --to is {to}")
    if partition_by and to != "parquet":
        raise PlanError(f"rewrite: --partition-by is for parquet, and --to is {to}")
    if group_rows is not None:
        given[_GROUP[to]] = group_rows
    if compression is not None:
        given["compression"] = None if compression == "none" else compression
    if partition_by:
        given["partition_by"] = list(partition_by)
    return given


def with_lists(dataset: Dataset, fixed: Sequence[str]) -> Dataset:
    """Returns a dataset whose named columns of lists have lists of a fixed size."""
    types = {}
    for text in fixed:
        name, _, number = text.rpartition(":")
        if not name or not number.isdecimal():
            raise PlanError(f"rewrite: --fixed takes COLUMN:SIZE, such as tokens:512, got {text!r}")
        index = dataset.schema.get_field_index(name)
        if index < 0:
            raise PlanError(f"rewrite: unknown column {name!r}; {closest(name, dataset.schema.names)}")
        type = dataset.schema.field(index).type
        if not has_lists(type):
            raise PlanError(f"rewrite: column {name!r} has no lists, but {type}")
        types[name] = pa.list_(type.value_type, int(number))
    return dataset.cast(types) if types else dataset


def has_lists(type: pa.DataType) -> bool:
    """Returns whether a type is one of lists of any length."""
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def _sorted(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Returns the rows in memory, in the order of some columns; equal ones keep their order, and nulls come last."""
    for name in names:
        if name not in dataset.schema.names:
            raise PlanError(
                f"rewrite: unknown column {name!r} in --sort; {closest(name, dataset.schema.names)}"
            )
    try:
        return from_arrow(dataset.to_table().sort_by([(name, "ascending") for name in names]))
    except pa.ArrowException as error:
        raise PlanError(f"rewrite: --sort cannot order by {', '.join(names)}: {str(error)[:200]}") from error


def _shard_rows(files: Read, rows: int, group_rows: int) -> int:
    """Returns how many rows take some 256 MiB as they are stored now: whole row groups of them."""
    stored = sum(file.size for file in files.files)
    most = max(1, rows * SHARD_BYTES // max(1, stored))
    return max(most - most % group_rows, min(most, group_rows))


def _local(target: str) -> Path | None:
    filesystem, place = locate(target, operator="rewrite")
    return Path(place) if filesystem.type_name == "local" else None


def _check_apart(source: str, place: Path | None, files: Read) -> None:
    """Raises `PlanError` if the source would then have all rows twice, or if it would go with what the target holds."""
    folder = None if place is None else _local(source)
    if place is None or folder is None:
        return
    if folder.resolve() in place.resolve().parents:
        raise PlanError(
            f"rewrite: the target {str(place)!r} lies in the source, which would have all rows twice; choose a place outside"
        )
    if any(place.resolve() in Path(file.path).resolve().parents for file in files.files):
        raise PlanError(
            f"rewrite: the source lies in the target {str(place)!r}; choose another place, and rename it afterwards"
        )


@dataclass(slots=True)
class _Job:
    """One rewrite into a local folder.

    Attributes:
        target: The folder.
        hidden: The folder beside it for what is whole. All that decides its content decides its name.
        dataset: The rows, in their order.
        rows: Their number.
        shard_rows: Those of a shard.
        to: The format.
        options: Further arguments of the writer.
    """

    target: LocalFolder
    hidden: Path
    dataset: Dataset
    rows: int
    shard_rows: int
    to: str
    options: dict[str, Any]

    @property
    def data(self) -> Path:
        return self.hidden / "data"

    def run(self) -> tuple[int, int, int]:
        """Writes what is missing, and gives the folder its name; returns files, rows and bytes.

        Raises:
            WriteError: Another process does the same, or the target is taken.
        """
        with explained("rewrite", self.target):
            self.target.prepare()
            _sweep(Path(self.target.path), self.hidden)
            self.data.mkdir(parents=True, exist_ok=True)
            held = claim(self.hidden / "lock")
            if held is None:
                raise WriteError("another process rewrites the same source to this place; wait for it")
            starts = range(0, max(1, self.rows), self.shard_rows)
            suffix = KINDS[self.to].encoder.suffix
            files = [self.data / f"part-{number:05}{suffix}" for number in range(len(starts))]
            try:
                self._write_all(files, starts)
                num_bytes = sum(file.stat().st_size for file in files)
                self.target.take(self.data)
            except BaseException:
                self.target.discard()
                self._keep(files)
                raise
            finally:
                held.release()
            shutil.rmtree(self.hidden, ignore_errors=True)
        return len(files), self.rows, num_bytes

    def _keep(self, files: list[Path]) -> None:
        """Says that the same command goes on behind the whole shards; without any, nothing stays."""
        whole = sum(file.exists() for file in files)
        if whole:
            sys.stderr.write(
                printable(
                    f"{whole} of {counted(len(files), 'file')} are whole: the same command goes on behind them; "
                    f"to give up, delete {str(self.hidden)!r}\n"
                )
            )
        else:
            shutil.rmtree(self.hidden, ignore_errors=True)

    def _write_all(self, files: list[Path], starts: Sequence[int]) -> None:
        with _bar(self.rows) as advance:

            def write(file: Path, start: int) -> None:
                rows = min(self.shard_rows, self.rows - start)
                if not file.exists():
                    self._write(file, start, rows)
                advance(rows)

            # An encoder has one thread: for each core one shard is in the making.
            cores = Options.of_environment().resolved().cpu_budget
            together([partial(write, *each) for each in zip(files, starts, strict=True)], cores)

    def _write(self, file: Path, start: int, rows: int) -> None:
        """Writes one shard. It gets its name once it is whole and on the disk."""
        part = self.dataset.skip(start).take(rows)
        folder = self.hidden / file.stem
        written = getattr(part, f"write_{self.to}")(
            folder, shard_rows=self.shard_rows, overwrite=True, **self.options
        )
        if written.num_rows != rows or len(written.files) != 1:
            raise WriteError(
                f"expected {rows:,} rows from row {start:,} on, found {written.num_rows:,}: the source changed"
            ).locate(operator="rewrite", file=self.target.path)
        Path(written.files[0]).rename(file)
        flush(self.data)


def _prefix(target: Path) -> str:
    return f".rewriting-{_digest(target.name)}-"


def _sweep(target: Path, own: Path | None) -> None:
    """Removes what other commands to this target have left; those that still run hold their locks."""
    for hidden in target.parent.glob(f"{_prefix(target)}*"):
        if hidden != own:
            with suppress(OSError):
                held = claim(hidden / "lock")
                if held is not None:
                    shutil.rmtree(hidden, ignore_errors=True)
                    held.release()


def _digest(what: Any) -> str:
    return hashlib.blake2b(json.dumps(what).encode(), digest_size=8).hexdigest()


@contextmanager
def _bar(rows: int) -> Iterator[Any]:
    """Shows how many rows are written, where a person looks."""
    progress = optional("rich.progress", user="arrowflow", extra="cli")
    screen = optional("rich.console", user="arrowflow", extra="cli").Console(stderr=True)
    shown = progress.Progress(
        *progress.Progress.get_default_columns(),
        progress.MofNCompleteColumn(),
        console=screen,
        disable=not sys.stderr.isatty() or Options.of_environment().progress is False,
        transient=True,
    )
    with shown:
        task = shown.add_task("rewrite", total=rows)
        yield lambda written: shown.advance(task, written)

"""Evaluation by the engine that owns an expression: Polars in its own pool, pyarrow through Acero.

Both engines see only the columns that an expression reads, without a copy. The one table of types normalises their
results. The same calls on a batch without rows say which types an expression yields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, closest
from arrowflow.expr.parse.arrow_tree import shown
from arrowflow.expr.parse.lifted import Text
from arrowflow.expr.parse.polars_tree import Subexpression, struct_fields
from arrowflow.lazy import compute as pc
from arrowflow.types import (
    WITHOUT_ARRAYS,
    UntypedError,
    convert,
    enum_field,
    is_untyped,
    normalise,
    polars_reads,
)
from arrowflow.workarounds.forks import check_polars
from arrowflow.workarounds.slices import concatenable, polars_frame

T = TypeVar("T")

# A Polars kernel that lacks a type panics, and a panic is no `Exception`.
_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException, TypeError, ValueError)
_OLDEST = pl.CompatLevel.oldest()
_NOT_IN_ARROW = tuple(
    getattr(pl, name) for name in ("Int128", "UInt128", "Object", "Unknown") if hasattr(pl, name)
)
_FILLER = "\x00rows"


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch of `schema` without rows."""
    # `pa.array` would import pandas.
    return pa.RecordBatch.from_arrays([pa.nulls(0, type) for type in schema.types], schema=schema)


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    """Returns a Polars frame without rows. Columns that Polars cannot read are in the frame by name, as nulls.

    Raises:
        UntypedError: The types are not known.
    """
    if is_untyped(schema):
        raise UntypedError
    fields = [field if polars_reads(field.type) else pa.field(field.name, pa.null()) for field in schema]
    return _frame(empty_batch(pa.schema(fields)))


def evaluate_empty(exprs: pl.Expr | Sequence[pl.Expr], frame: pl.DataFrame) -> pl.Schema:
    """Returns the types of Polars expressions on `frame`. One call takes several, since each call looks at all columns.

    Raises:
        PlanError: Polars cannot evaluate the expressions on such columns.
    """
    return _guard(PlanError, exprs, lambda: frame.select(exprs).schema)


def run_polars(
    exprs: Sequence[tuple[pl.Expr, pa.DataType]], batch: pa.RecordBatch, *, inside_lists: bool = False
) -> list[pa.Array]:
    """Returns the result of each Polars expression on `batch`, as the type it is paired with.

    Args:
        exprs: The expressions.
        batch: The columns that they read. The metadata of the field of an enum hold its values.
        inside_lists: Whether an expression is also evaluated on the values inside of lists.

    Raises:
        DataError: Polars cannot evaluate an expression on these values.
    """
    # With one row, or one value in all lists, Polars cannot tell a column from a constant, and rounds a division
    # otherwise. Such a chunk would then differ from its neighbours.
    twice = batch.num_rows == 1 or inside_lists

    def run() -> list[pa.Array]:
        arrays = _run_polars(exprs, pa.concat_batches([batch, batch]) if twice else batch)
        return [array.slice(0, batch.num_rows) for array in arrays] if twice else arrays

    return _guard(DataError, [expr for expr, _ in exprs], run)


def _run_polars(exprs: Sequence[tuple[pl.Expr, pa.DataType]], batch: pa.RecordBatch) -> list[pa.Array]:
    frame = _frame(_legible(batch))
    named = [expr.alias(str(index)) for index, (expr, _) in enumerate(exprs)]
    return [
        convert(_one(series.to_arrow(compat_level=_OLDEST)), type)
        for series, (_, type) in zip(_evaluated(frame, named), exprs, strict=True)
    ]


def _evaluated(frame: pl.DataFrame, exprs: Sequence[pl.Expr]) -> list[pl.Series]:
    """A constant yields a single row, however many the frame has; so does an expression that Polars finds constant."""
    try:
        found = frame.select(*exprs)
        if found.height == frame.height:
            return found.get_columns()
    except pl.exceptions.ShapeError:
        pass  # a single row beside columns
    single = [frame.select(expr).to_series() for expr in exprs]
    return [
        series if len(series) == frame.height else series.new_from_index(0, frame.height) for series in single
    ]


def _one(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return concatenable(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)


def _frame(batch: pa.RecordBatch) -> pl.DataFrame:
    if not batch.num_columns:
        check_polars()
        return pl.DataFrame({_FILLER: pl.repeat(0, batch.num_rows, dtype=pl.Int8, eager=True)})
    return polars_frame(batch)


@dataclass(frozen=True, slots=True)
class _Question:
    """The question which type an expression has on some columns: equal text and types have an equal answer."""

    text: str
    # No part of the hash, as in `program`. The metadata of an enum hold its values, which equal fields need not share.
    fields: tuple[tuple[pa.Field, Mapping[bytes, bytes] | None], ...] = field(hash=False)
    expr: pl.Expr = field(compare=False)


def polars_type(part: Subexpression, schema: pa.Schema) -> pa.DataType:
    """Returns the normalised type that the Polars expression yields on `schema`; raises as `polars_field`."""
    return polars_field(part, schema).type


def polars_field(part: Subexpression, schema: pa.Schema) -> pa.Field:
    """Returns the field that the Polars expression yields on `schema`; an enum's metadata hold the values of its codes.

    The answer is kept for each JSON form of an expression and types of columns: a plan is compiled several times
    while rules rewrite it, and a dry run takes 0.3 ms.

    Raises:
        PlanError: Polars cannot evaluate the expression on such columns.
    """
    return _answer(_question(part, schema))


def has_single_type(part: Subexpression, schema: pa.Schema) -> bool:
    """Returns whether Polars knows the type of the expression for any rows; else the rows decide. Raises as `polars_field`."""
    return _is_settled(_question(part, schema))


@lru_cache(maxsize=4096)
def _is_settled(question: _Question) -> bool:
    planned = _empty(question).lazy().select(question.expr.alias("0"))
    return not _is_unknown(_guard(PlanError, question.expr, planned.collect_schema)["0"])


def _is_unknown(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(map(_is_unknown, dtype.to_schema().values()))
    return bool(dtype == pl.Unknown)


def _question(part: Subexpression, schema: pa.Schema) -> _Question:
    fields = map(schema.field, part.columns)
    return _Question(part.text, tuple((field, field.metadata) for field in fields), part.expr)


def _empty(question: _Question) -> pl.DataFrame:
    schema = pa.schema([column for column, _ in question.fields])
    for name, type in zip(schema.names, schema.types, strict=True):
        if not polars_reads(type) and not _reads_fields(question.text, name, type):
            raise PlanError(
                f"Polars cannot read column {name!r} of type {type}: cast it first, or write the expression with"
                " pyarrow.compute"
            )
    return _frame(_legible(empty_batch(schema)))


def _reads_fields(text: str, name: str, type: pa.DataType) -> bool:
    """Returns whether an expression reads of a struct fields alone that Polars can read."""
    wanted = struct_fields(text).get(name, frozenset()) if pa.types.is_struct(type) else frozenset()
    return bool(wanted) and all(polars_reads(each.type) for each in type.fields if each.name in wanted)


def _legible(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch whose structs lack the fields that Polars cannot read, and that no expression reads then."""
    for index, type in enumerate(batch.schema.types):
        if pa.types.is_struct(type) and not polars_reads(type):
            column, name = batch.column(index), batch.schema.names[index]
            kept = [number for number, each in enumerate(type.fields) if polars_reads(each.type)]
            part = pa.StructArray.from_arrays(
                [column.field(number) for number in kept],
                fields=[type.field(number) for number in kept],
                mask=column.is_null(),
            )
            batch = batch.set_column(index, name, part)
    return batch


@lru_cache(maxsize=4096)
def _answer(question: _Question) -> pa.Field:
    frame = _empty(question)

    def dry_run() -> pa.Field:
        asked = question.expr.alias("0")
        if isinstance(question.text, Text):  # Polars makes a mapping of a million values anew in each run
            series = pl.Series([], dtype=frame.lazy().select(asked).collect_schema()["0"])
        else:
            series = frame.select(asked).to_series()
        if series.dtype in _NOT_IN_ARROW:
            raise PlanError(
                f"{question.expr} gives {series.dtype}, a type that Arrow does not have: add a cast"
            )
        if isinstance(series.dtype, pl.Enum):
            return enum_field("", series.dtype.categories.to_list())
        return pa.field("", normalise(_one(series.clear().to_arrow(compat_level=_OLDEST)).type))

    return _guard(PlanError, question.expr, dry_run)


def run_arrow(exprs: Sequence[tuple[pc.Expression, pa.DataType]], batch: pa.RecordBatch) -> list[pa.Array]:
    """Returns the result of each pyarrow expression on `batch`, as the type it is paired with.

    Raises:
        DataError: pyarrow cannot evaluate an expression on these values.
    """
    sources = [expr for expr, _ in exprs]
    table = _guard(DataError, sources, lambda: _acero(sources, batch))
    return [convert(_one(table.column(index)), type) for index, (_, type) in enumerate(exprs)]


def arrow_type(expr: pc.Expression, names: Sequence[str], schema: pa.Schema) -> pa.DataType:
    """Returns the normalised type that the pyarrow expression, which reads `names`, yields on `schema`.

    Raises:
        PlanError: pyarrow cannot evaluate the expression on such columns.
    """
    read = empty_batch(pa.schema([schema.field(name) for name in names]))
    table = _guard(PlanError, expr, lambda: _acero([expr], read))
    type = table.schema.field(0).type
    if type.id in WITHOUT_ARRAYS:
        raise PlanError(
            f"{shown(expr)} yields {type}, of which pyarrow has no arrays; compute a number or a duration"
        )
    return normalise(type)


def _acero(exprs: Sequence[pc.Expression], batch: pa.RecordBatch) -> pa.Table:
    acero = pc.acero
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    project = acero.ProjectNodeOptions(list(exprs), [str(index) for index in range(len(exprs))])
    plan = acero.Declaration.from_sequence(
        [acero.Declaration("table_source", source), acero.Declaration("project", project)]
    )
    return plan.to_table(use_threads=False)


def check_columns(columns: Sequence[str], schema: pa.Schema) -> None:
    """Raises `PlanError` with the closest names if a name in `columns` is not in `schema`."""
    for name in columns:
        if not schema.get_all_field_indices(name):  # `schema.names` is a new list each time
            raise PlanError(f"unknown column {name!r}: {closest(name, schema.names)}")


_ADVICE: Final = {
    "to `enum` failed": "list all values in pl.Enum([…]), or make the others null with pl.col(…).cast(…, strict=False)",
    "cannot cast categorical types to": "to_physical() gives the codes of an enum",
    "to enum is not supported": "an Enum is made of texts: cast the column to pl.String before",
}
"""The advice, by a part of Polars' text. Polars itself advises `cat.to` for numbers, which is refused as not element-wise."""


def _guard(kind: type[PlanError] | type[DataError], what: object, run: Callable[[], T]) -> T:
    try:
        return run()
    except _ERRORS as error:
        if isinstance(error, PlanError | DataError):
            raise
        listed = what if isinstance(what, list) else [what]
        text = ", ".join(" ".join(shown(expr).split()) for expr in listed)[:300].replace(
            "strict_cast(", "cast("
        )
        raise kind(f"cannot evaluate {text}: {_explained(str(error))}") from error


def _explained(text: str) -> str:
    """Returns an engine's error without the expression, which comes before it, and with advice on Enums."""
    text = text.split("\n\nThis error occurred in the following expression:", maxsplit=1)[0].strip()
    for part, advice in _ADVICE.items():
        if part in text:
            return f"{text.splitlines()[0].rstrip('.')}; {advice}"
    return text

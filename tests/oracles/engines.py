"""The engines on a whole table: the reference for expressions and filters that run chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

Source = Any
"""A `pl.Expr` or a `pc.Expression`."""
ENGINE_ERRORS: Final = (Exception, pl.exceptions.PanicException)

_SPELLED: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_ROWS: Final = "row number"


def plain_type(type: pa.DataType) -> pa.DataType:
    """Returns the type that a column has in a pipeline: no views, no large offsets, no dictionaries.

    Example:
        >>> plain_type(pa.large_list(pa.dictionary(pa.int8(), pa.large_string())))
        ListType(list<item: string>)
    """
    if pa.types.is_dictionary(type):
        return plain_type(type.value_type)
    if pa.types.is_fixed_size_list(type):
        return pa.list_(pa.field(type.value_field.name, plain_type(type.value_type)), type.list_size)
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_list_view(type):
        return pa.list_(pa.field(type.value_field.name, plain_type(type.value_type)))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in type.fields])
    return _SPELLED.get(type, type)


def plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns a column in one piece, and as the type that it has in a pipeline."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    wanted = plain_type(array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary.cast(wanted).take(array.indices)
    return array if array.type.equals(wanted) else array.cast(wanted)


def plain_table(table: pa.Table) -> pa.Table:
    return pa.table([plain(column) for column in table.columns], names=table.column_names)


def values(table: pa.Table, source: Source) -> pa.Array:
    """Returns what the engine of `source` makes of the whole table, as a plain column."""
    if isinstance(source, pl.Expr) and source.meta.undo_aliases().meta.is_column():
        return plain(table.column(source.meta.root_names()[0]))  # no engine ever sees it
    return plain(_polars(table, source) if isinstance(source, pl.Expr) else _acero(table, source))


def with_columns(table: pa.Table, sources: Mapping[str, Source]) -> pa.Table:
    """Returns the table with more columns, or others of the same names."""
    made = {name: values(table, source) for name, source in sources.items()}
    for name, array in made.items():
        at = table.column_names.index(name) if name in table.column_names else None
        table = table.append_column(name, array) if at is None else table.set_column(at, name, array)
    return table


def filtered(table: pa.Table, source: Source) -> pa.Table:
    flags = values(table, source)
    if not pa.types.is_boolean(flags.type):
        raise TypeError(f"a filter needs flags, not {flags.type}")
    return table.filter(flags)


def _polars(table: pa.Table, source: pl.Expr) -> pa.ChunkedArray:
    if table.num_rows == 1:
        # Polars divides one row by a constant, and multiplies more than one by its reciprocal. A chunk is not the
        # column, so that one row is computed as more than one are.
        return _polars(pa.concat_tables([table, table]), source).slice(0, 1)
    frame = pl.DataFrame({_ROWS: pl.int_range(table.num_rows, eager=True)})
    needed = [name for name in table.column_names if name in source.meta.root_names()]
    if needed:
        read = pl.from_arrow(table.select(needed))
        assert isinstance(read, pl.DataFrame)
        frame = frame.hstack(read)
    found = _spread(frame, source).to_arrow(compat_level=pl.CompatLevel.oldest())
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


def _spread(frame: pl.DataFrame, source: pl.Expr) -> pl.Series:
    """Returns the values of `source`, one for each row.

    All rows may take one branch of a `when`. If that is a constant, Polars may make one value of it, and refuse to put
    that into a frame. Whether it does depends on the data.
    """
    try:
        return frame.with_columns(source.alias("out")).get_column("out")
    except pl.exceptions.PolarsError as error:
        if "length 1 doesn't match" not in str(error):
            raise
        return frame.select(source.alias("out")).get_column("out").new_from_index(0, frame.height)


def _acero(table: pa.Table, source: pc.Expression) -> pa.ChunkedArray:
    table = table.append_column(_ROWS, pa.array(range(table.num_rows), pa.int64())).combine_chunks()
    if "year_month_day(" in str(source):
        # It writes outside of its memory beyond 32 rows (pyarrow 26), and gets no more at a time.
        table = pa.Table.from_batches(table.to_batches(max_chunksize=32), table.schema)
    read = acero.TableSourceNodeOptions(table)
    project = acero.ProjectNodeOptions([source], ["out"])
    plan = [acero.Declaration("table_source", read), acero.Declaration("project", project)]
    return acero.Declaration.from_sequence(plan).to_table(use_threads=False).column(0)


def difference(found: pa.Array, expected: pa.Array, ulps: int = 0) -> str | None:
    """Returns how two columns differ in type, validity or value, None if they do not.

    Floats are compared bit by bit (any NaN is a NaN), or within `ulps`.

    Example:
        >>> difference(pa.array([1, 2]), pa.array([1, None]))
        'row 1 is 2, expected None'
        >>> difference(pa.array([0.0]), pa.array([-0.0]))
        'row 0 is 0.0, expected -0.0'
    """
    if not found.type.equals(expected.type):
        return f"found {found.type}, expected {expected.type}"
    if len(found) != len(expected):
        return f"found {len(found)} rows, expected {len(expected)}"
    wrong = _wrong(found, expected, ulps)
    if not wrong.any():
        return None
    row = int(np.argmax(wrong))
    return f"row {row} is {_shown(found[row])}, expected {_shown(expected[row])}"


def _shown(value: pa.Scalar) -> str:
    if pa.types.is_temporal(value.type) and value.is_valid:
        return f"{value.type} of {value.value}"  # Python has no nanoseconds, and no years after 9999
    return repr(value.as_py())


def _wrong(found: pa.Array, expected: pa.Array, ulps: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Says of each row whether it differs; both have the same type and length."""
    absent, missing = (np.asarray(array.is_null()) for array in (found, expected))
    wrong: np.ndarray[Any, np.dtype[np.bool_]] = absent != missing
    valid = np.flatnonzero(~absent & ~missing)
    mine, theirs = (array.take(pa.array(valid)) for array in (found, expected))
    wrong[valid] = _unequal(mine, theirs, ulps)
    return wrong


def _unequal(mine: pa.Array, theirs: pa.Array, ulps: int) -> Any:
    type = mine.type
    if pa.types.is_floating(type):
        return _unequal_floats(np.asarray(mine), np.asarray(theirs), ulps)
    if pa.types.is_struct(type):
        parts = [_wrong(mine.field(at), theirs.field(at), ulps) for at in range(type.num_fields)]
        return np.any(parts, axis=0) if parts else np.zeros(len(mine), np.bool_)
    if pa.types.is_fixed_size_list(type) or pa.types.is_list(type):
        return np.array(
            [_unequal_lists(one, two, ulps) for one, two in zip(mine, theirs, strict=True)], np.bool_
        )
    return np.array([not one.equals(two) for one, two in zip(mine, theirs, strict=True)], np.bool_)


def _unequal_lists(one: Any, two: Any, ulps: int) -> bool:
    return len(one.values) != len(two.values) or bool(_wrong(one.values, two.values, ulps).any())


def _unequal_floats(one: Any, two: Any, ulps: int) -> Any:
    bits = np.dtype(f"i{one.dtype.itemsize}")
    same = (one.view(bits) == two.view(bits)) | (np.isnan(one) & np.isnan(two))
    if ulps:
        with np.errstate(invalid="ignore", over="ignore"):
            same |= np.abs(one - two) <= ulps * np.spacing(np.maximum(np.abs(one), np.abs(two)))
        same |= one == two
    return ~same

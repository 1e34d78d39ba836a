"""The requests of users to a loader, and their effect on each column.

A request for one column by name is fulfilled or refused. A request for all columns is fulfilled for the columns that
allow it. All other columns stay as they are, so their nulls are an error. Types follow from the schema and never from
data. With `null="mask"` each column that may have nulls gets a mask, and with `"nan"` its integers become float64,
whether there are nulls or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa

from arrowflow.errors import PlanError, SchemaError, closest, shown
from arrowflow.interchange.converted import ColumnRequest, ListLayout, converted_export, mask_export
from arrowflow.interchange.dtypes import dtype_named, is_policy
from arrowflow.interchange.to_numpy import ColumnExport
from arrowflow.ops.columns.column_program import given_names
from arrowflow.options import check_choice, check_flag

Dtype = Any
"""The result of a framework's resolver for the dtype that a user named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The requests to a loader, checked as far as no schema is needed.

    Attributes:
        columns: Names of the columns in the wanted order, or None for all.
        dtypes: Dtype by column.
        dtype: Dtype of all columns that can have it, or None; columns in `dtypes` have their own.
        nulls: The treatment of nulls by column: a policy or a value.
        null: That of the nulls of all columns that can have it; columns in `nulls` have their own.
        lists: The layout for lists of any length.
        strict_zero_copy: Whether a copy is an error.
    """

    columns: tuple[str, ...] | None = None
    dtypes: Mapping[str, Dtype] = field(default_factory=dict)
    dtype: Dtype | None = None
    nulls: Mapping[str, Any] = field(default_factory=dict)
    null: Any = "error"
    lists: ListLayout = "dense"
    strict_zero_copy: bool = False

    def null_of(self, field: pa.Field) -> Any:
        """Returns what becomes of the nulls of a column."""
        return self.nulls.get(field.name, self.null if field.nullable else "error")


PLAIN: Final = ExportRequest()
"""Asks for nothing."""


def export_request(
    operator: str, lists: str, arguments: Mapping[str, Any], resolve: Callable[[Any], Dtype] = dtype_named
) -> ExportRequest:
    """Returns the requests for the arguments of a loader as users write them.

    Raises:
        PlanError: An argument has a wrong type or value.
    """
    columns = given_names(operator, arguments.get("columns"))
    dtypes, null = arguments.get("dtypes"), arguments.get("null", "error")
    of_all, by_name = (None, dtypes) if isinstance(dtypes, Mapping) else (dtypes, {})
    null, nulls = ("error", null) if isinstance(null, Mapping) else (null, {})
    for named, meaning in (
        (by_name, "dtypes is a mapping from names of columns to dtypes"),
        (nulls, "null maps names of columns to what becomes of nulls"),
    ):
        if not all(isinstance(name, str) for name in named):
            raise PlanError(f"{operator}: {meaning}, got {shown(named)}")
    for value in (null, *nulls.values()):
        if value is None or isinstance(value, list | tuple | dict | set | np.ndarray):
            raise PlanError(
                f"{operator}: null is 'error', 'nan', 'mask' or a value to put in place of nulls, got {shown(value)}"
            )

    def resolved(dtype: Any, before: str = "", after: str = "") -> Dtype:
        try:
            return resolve(dtype)
        except PlanError as error:
            raise PlanError(f"{operator}: dtypes: {before}{error}{after}") from error

    return ExportRequest(
        columns=columns,
        dtypes={name: resolved(dtype, f"column {name!r}: ") for name, dtype in by_name.items()},
        dtype=None
        if of_all is None
        else resolved(of_all, after=", or a mapping from names of columns to dtypes"),
        nulls=dict(nulls),
        null=null,
        lists=check_choice(operator, "lists", lists, get_args(ListLayout)),
        strict_zero_copy=check_flag(operator, "strict_zero_copy", arguments.get("strict_zero_copy", False)),
    )


def by_column(request: ExportRequest, schema: pa.Schema, carrier: Dtype | None = None) -> ExportRequest:
    """Returns the request with its dtype of all columns as a dtype of each column that can have it.

    Binaries keep their own dtype: nobody has said what their bytes mean. Where NumPy lacks the dtype, `carrier` carries it.

    Raises:
        PlanError: No column can have the dtype.
    """
    if request.dtype is None:
        return request
    names = frozenset(schema.names if request.columns is None else request.columns)
    fields = [each for each in schema if each.name in names]
    wanted = ColumnRequest(dtype=request.dtype if carrier is None else carrier, lists=request.lists)
    found = {}
    for each in fields:
        with suppress(SchemaError):
            if not pa.types.is_fixed_size_binary(each.type):
                converted_export(each.name, each.type, wanted)
                found[each.name] = request.dtype
    if not found:
        columns = ", ".join(f"{each.name}: {each.type}" for each in fields)
        raise PlanError(f"dtypes: no column can be {request.dtype}; columns are {columns}")
    return replace(request, dtypes=found, dtype=None)


def requested_exports(schema: pa.Schema, request: ExportRequest) -> list[tuple[int, ColumnExport]]:
    """Returns the exports of columns, then of masks, each with the number of its column in a batch.

    Raises:
        PlanError: A request names a column that does not exist, or a mask has a name that is taken.
        SchemaError: A column has no array, or no array of the requested dtype.
    """
    request = by_column(request, schema)
    names = list(schema.names) if request.columns is None else list(request.columns)
    check_known("columns", names, schema.names)
    check_known("dtypes", request.dtypes, names)
    check_known("null", request.nulls, names)
    taken = frozenset(names)
    found: list[tuple[int, ColumnExport]] = []
    held = False
    for name in names:
        number = schema.get_field_index(name)
        field = schema.field(number)
        column, fulfilled = _export(field, request)
        held = held or fulfilled
        found.append((number, column))
        if fulfilled and is_policy(request.null_of(field), "mask"):
            mask = mask_export(name, field.type, request.lists)
            if mask.name in taken:
                raise PlanError(
                    f"the mask of {name!r} is named {mask.name!r}, and so is a column: rename that"
                )
            found.append((number, mask))
    asked = not is_policy(request.null, "error") and any(schema.field(number).nullable for number, _ in found)
    if asked and not held:
        raise PlanError(
            f"no column can hold {shown(request.null)} in place of nulls; columns are "
            + ", ".join(f"{column.name}: {column.type} as {column.dtype}" for _, column in found)
        )
    return found


def check_known(argument: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raises `PlanError` for a name in an argument that no column has."""
    columns = frozenset(known)
    for name in given:
        if name not in columns:
            raise PlanError(f"{argument}: unknown column {name!r}; {closest(name, known)}")


def _export(field: pa.Field, request: ExportRequest) -> tuple[ColumnExport, bool]:
    """Returns the export of a column, and whether its nulls are replaced."""
    plain = ColumnRequest(dtype=request.dtypes.get(field.name), lists=request.lists)
    full = replace(plain, null=request.null_of(field))
    if full.keeps_nulls:
        try:
            return converted_export(field.name, field.type, full), True
        except SchemaError:
            if field.name in request.nulls:
                raise
    return converted_export(field.name, field.type, plain), False

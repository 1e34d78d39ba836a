"""`PolarsExport`: record batches as Polars data frames."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import polars as pl
import pyarrow as pa

from arrowflow.errors import SchemaError
from arrowflow.interchange.to_numpy import is_text
from arrowflow.loaders.export_request import PLAIN, ExportRequest, check_known
from arrowflow.workarounds.slices import polars_frame

_REFUSED: Final = {
    ("decimal256",): "cast it before to pa.decimal128(38, scale) or pa.float64()",
    ("run_end_encoded",): "decode it with map",
    ("month_day_nano_interval", "dense_union", "sparse_union"): "drop it, or convert it with map",
}
_COPIED: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (is_text, "16 bytes a value, Polars keeps views of strings; their bytes are shared"),
    (lambda kind: str(kind).startswith(("timestamp[s", "duration[s")), "Polars has no unit of seconds"),
    (lambda kind: pa.types.is_date64(kind) or pa.types.is_time(kind), "Polars has another unit or width"),
    (lambda kind: pa.types.is_float16(kind) and not hasattr(pl, "Float16"), "this Polars has no float16"),
    (pa.types.is_fixed_size_binary, "Polars has no binaries of fixed width"),
    (pa.types.is_dictionary, "Polars keeps its own categories"),
    (lambda kind: pa.types.is_list(kind) or pa.types.is_map(kind), "only the offsets: 64 bits in Polars"),
)


class PolarsExport:
    """Turns record batches of one schema into Polars data frames, nulls and all.

    Columns share Arrow's memory if Polars has the type. Extension types, including tensors, arrive as their storage
    type. Data frames are immutable, so it does not matter who else shares the memory.

    Examples:
        >>> import pyarrow as pa
        >>> batch = pa.RecordBatch.from_pydict({"x": [1, None]}, pa.schema({"x": pa.int64()}))
        >>> PolarsExport(batch.schema)(batch)["x"].null_count()
        1
    """

    def __init__(self, schema: Any, *, owned: bool = False, request: ExportRequest = PLAIN) -> None:
        """Decides on every column of `schema`; only the columns of the request have an effect here."""
        self._columns = None if request.columns is None else list(request.columns)
        if self._columns is not None:
            check_known("columns", self._columns, schema.names)
            schema = pa.schema([schema.field(name) for name in self._columns])
        for field in schema:
            for part, (refused, remedy) in itertools.product(_parts(field.type), _REFUSED.items()):
                if str(part).startswith(refused):
                    raise SchemaError(
                        f"column {field.name!r} has type {field.type}, which Polars cannot hold; {remedy}"
                    )
        self._schema = schema
        self._extensions = [i for i, each in enumerate(schema) if isinstance(each.type, pa.BaseExtensionType)]

    def __call__(self, batch: Any) -> pl.DataFrame:
        if self._columns is not None:
            batch = batch.select(self._columns)
        for i in self._extensions:
            batch = batch.set_column(i, self._schema.field(i).name, batch.column(i).storage)
        return polars_frame(batch, rechunk=False)

    def chunk(self, batch: Any) -> Callable[[int, int], pl.DataFrame]:
        """Converts a large batch once, to cut data frames out of it."""
        frame = self(batch)
        return lambda start, stop: frame.slice(start, stop - start)

    def explain(self) -> list[str]:
        """Returns one line per column: zero-copy, or the reason for a copy."""
        return [f"{field.name}: {field.type}: {_fate(field.type)}" for field in self._schema]


def _fate(kind: Any) -> str:
    reasons = [reason for part in _parts(kind) for matches, reason in _COPIED if matches(part)]
    return f"copied: {reasons[0]}" if reasons else "zero-copy"


def _parts(kind: Any) -> Iterator[Any]:
    """Yields the type and all the types inside it."""
    kind = getattr(kind, "storage_type", kind)
    yield kind
    for i in range(kind.num_fields):
        yield from _parts(kind.field(i).type)

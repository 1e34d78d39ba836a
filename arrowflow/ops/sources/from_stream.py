"""Rows of an object that streams Arrow: read anew in each epoch, or once."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.errors import ArrowflowError, SchemaError, SourceError, said
from arrowflow.kernels.items import Made, Origin, Task
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.sources.files.file_identity import dataset_identity
from arrowflow.ops.sources.from_memory import normalised, normalised_schema
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Code, Node, Unknown
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Resume, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class FromStream(Operator):
    """The rows of an object that streams Arrow, asked for a new stream in each epoch.

    Row order: as streamed. Memory: one record batch, and the stream's own memory. Resume: runs the stream again and
    drops the delivered rows.
    """

    name: ClassVar[str] = "from_arrow"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, resume=Resume.REPLAY, repeatable=False)

    source: Any = field(hash=False)

    def arguments(self) -> Mapping[str, Any]:
        return {"source": type(self.source).__name__}

    def identity(self) -> dict[str, Any]:
        return {"source": Code(self.source)}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        schema = normalised_schema(self.stream().schema)
        return dataclasses.replace(self, bound=True, schema=schema)

    def stream(self) -> Any:
        """Returns a stream, whose schema tells the columns."""
        return _open(self.source)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        return self.schema

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "source",
            lambda context: StreamKernel(self),
            position=Shape(tuple[int]),
            cost="unknown",
            phase="read",
            max_calls=1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FromDataset(FromStream):
    """The rows of a `pyarrow.dataset.Dataset`, which reads the same files in each epoch."""

    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, resume=Resume.REPLAY)

    def identity(self) -> dict[str, Any]:
        return dataset_identity(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromOneShot(FromStream):
    """The rows of a stream that can be read once. The second epoch is an error, and so is a state."""

    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, resume=Resume.NONE, repeatable=False)

    def stream(self) -> Any:
        """Returns the stream itself, which is not read."""
        return self.source

    def identity(self) -> dict[str, Any]:
        reason = "is gone once it has been read, so nothing tells it from others"
        unknown = Unknown("a one-shot stream", reason, instead="pass a table or a list of batches")
        return {"source": unknown, "schema": self.source.schema}


class StreamKernel(SourceKernel):
    """One task, the whole stream; the position is (rows read,).

    The position counts rows, not record batches: the same query may cut the same rows elsewhere the next time. So the whole
    stream is one split, too, and functions see the same rows in a call wherever its batches end.
    """

    def __init__(self, node: FromStream) -> None:
        assert node.schema is not None
        self._source, self._schema = node.source, node.schema

    def tasks(self, position: Position) -> Iterator[Task]:
        yield Task(0 if position is None else position[0], Origin(0), streams=True)

    def read(self, task: Task) -> Iterator[Made]:
        number = rows = 0
        try:
            stream = _open(self._source)
            if stream.schema.names != self._schema.names:
                raise SchemaError(
                    f"expected a stream of the columns {self._schema.names}, as when it was asked for its schema, "
                    f"found {stream.schema.names}"
                )
            for batch in stream:
                number += 1
                rows += batch.num_rows
                left = min(rows - task.payload, batch.num_rows)
                if left > 0:
                    yield Made(
                        normalised(batch.slice(batch.num_rows - left), self._schema), (rows,), last=False
                    )
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, ArrowflowError):
                raise
            raise SourceError(f"the stream broke off after {number} record batches: {said(error)}") from error


class OneShot:
    """A reader that can be read once; a second time it raises an error instead of yielding nothing."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.schema = reader.schema
        self._reader: pa.RecordBatchReader | None = reader

    def open(self) -> pa.RecordBatchReader:
        """Returns the reader once; after that, raises `SourceError`."""
        reader, self._reader = self._reader, None
        if reader is None:
            raise SourceError(
                "a one-shot stream can be read once, and it was; give `from_arrow` something that can be read again "
                "(a table, a list of batches, a dataset), or write it to a file first"
            )
        return reader


def _open(source: Any) -> pa.RecordBatchReader:
    if isinstance(source, OneShot):
        return source.open()
    if is_instance(source, "pyarrow.dataset", "Dataset"):
        return source.scanner().to_reader()
    try:
        return pa.RecordBatchReader.from_stream(source)
    except ArrowflowError:
        raise
    except Exception as error:
        raise SourceError(
            f"{type(source).__name__} gave no stream of rows: {said(error)}. It is asked for one by "
            "each epoch, and for the schema; of what can be read once pass `pyarrow.RecordBatchReader.from_stream(…)`"
        ) from error


def is_instance(source: Any, module: str, name: str) -> bool:
    """Whether a source is of a type of a module, which its owner has imported: `pyarrow.dataset` would import pandas."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(source, kind)

"""`from_generator`: rows or batches that a Python generator yields."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast, get_args

import pyarrow as pa

from arrowflow.errors import FunctionError, PlanError, SchemaError, said, shown
from arrowflow.expr import empty_batch
from arrowflow.interchange.from_columns import batch_from_arrays
from arrowflow.interchange.from_rows import with_names
from arrowflow.interchange.handed_over import TakeOver, copied_from, copied_value, unshared
from arrowflow.kernels.items import Made, Origin, Task
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.functions.function import code_digest, conform, function_name
from arrowflow.ops.sources.from_memory import normalised, normalised_schema
from arrowflow.ops.sources.generated_rows import Row, RowGroup, RowsKernel
from arrowflow.options import ResolvedOptions, check_choice
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Resume, Traits

Elements = Literal["rows", "batches"]

END = object()
"""The mark after the last element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromGenerator(Operator):
    """The elements of `fn()`: record batches and data frames; dicts, which are rows, or batches of columns.

    Row order: as yielded. Memory: a few elements, or as many groups of rows. Deterministic if `fn` is. Resume: runs `fn`
    again and drops the delivered elements. Each element is a split.

    Attributes:
        fn: The generator function.
        types: The schema, if it is declared.
        elements: Whether a dict is a row or a batch of columns.
    """

    name: ClassVar[str] = "from_generator"
    traits: ClassVar[Traits] = Traits(
        borders=Borders.FREE, opaque=True, resume=Resume.REPLAY, repeatable=False
    )

    takes_over: ClassVar[bool] = True
    """Whether the generator may write into an element again after it yielded the element."""

    fn: Callable[[], Iterable[Any]] = field(hash=False)
    types: pa.Schema | None = None
    elements: Elements = "rows"

    @classmethod
    def of(cls, fn: Callable[[], Iterable[Any]], types: pa.Schema | None, elements: str) -> Self:
        given: object = fn
        if not callable(given):
            hint = "; for rows that are there write `lambda: rows`" if isinstance(given, Iterable) else ""
            raise PlanError(
                f"from_generator: expected a function that returns an iterator, got {shown(given)}{hint}"
            )
        check_choice(cls.name, "elements", elements, get_args(Elements))
        return cls(fn=fn, types=types, elements=cast(Elements, elements))

    @property
    def title(self) -> str:
        return f"{self.name}({function_name(self.fn)})"

    def arguments(self) -> Mapping[str, Any]:
        return {"fn": function_name(self.fn), "elements": self.elements}

    def functions(self) -> Mapping[str, str]:
        return {self.name: code_digest(self.fn)}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        return self.types

    def copies(self) -> tuple[str, ...]:
        return (copied_from(self.name),) if self.takes_over else ()

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        name = function_name(self.fn)
        source = KernelSpec(
            "source",
            lambda context: GeneratorKernel(self),
            position=Shape(tuple[int]),
            cost="unknown",
            phase="read",
            max_calls=1,
            facts=f"runs {name}() in order, one element at a time",
        )
        rows = KernelSpec(
            "serial",
            lambda context: RowsKernel(self.types, name),
            fixed=lambda context: RowsKernel(self.types, name, single=True),
            pins_order=True,
            facts="converts all rows that are there together",
        )
        return (source, rows) if self.elements == "rows" else (source,)


class GeneratorKernel(SourceKernel):
    """One task, the whole generator; the position is (elements taken,)."""

    def __init__(self, node: FromGenerator) -> None:
        self._node = node
        self._name = function_name(node.fn)

    def tasks(self, position: Position) -> Iterator[Task]:
        yield Task(0 if position is None else position[0], Origin(0), streams=True)

    def read(self, task: Task) -> Iterator[Made]:
        """Calls the function, and yields what `RowsKernel` or the next operator takes, from the next element on."""
        return (self._groups if self._node.elements == "rows" else self._chunks)(task, self._elements())

    def _groups(self, task: Task, elements: Generator[Any]) -> Iterator[Made]:
        """Yields groups of rows, and the batches among them; without a declared schema also the element that decides."""
        decided = self._node.schema is not None
        group = None
        try:
            for number in itertools.count():
                element = [next(elements, END)]
                if element[0] is END:
                    break
                if isinstance(element[0], Mapping | tuple):
                    if group is None or group.full:
                        group = RowGroup(number)
                    group.add(self._copied(with_names(element[0]), number))
                    if not group.announced and (number >= task.payload or not decided):
                        decided = group.announced = True
                        yield Made(group, (number + 1,), split=number)
                    continue
                group = None
                if number >= task.payload or not decided:
                    chunk = self._batch(element, number, None)
                    decided = decided or chunk.num_rows > 0
                    yield Made(chunk, (number + 1,), split=number)
        finally:
            elements.close()

    def _chunks(self, task: Task, elements: Generator[Any]) -> Iterator[Made]:
        """Yields one batch an element."""
        schema = self._node.schema
        try:
            for number in itertools.count():
                element = [next(elements, END)]  # the only reference to it, so that `unshared` counts
                if element[0] is END:
                    break
                if number < task.payload and schema is not None:
                    continue
                chunk = self._batch(element, number, schema)
                if chunk.num_rows and schema is not None:
                    chunk = conform(chunk, schema, f"element {number} of {self._name}")
                elif chunk.num_rows:  # an empty chunk may have no type: an empty list has none
                    schema = chunk.schema
                if number >= task.payload:
                    yield Made(chunk, (number + 1,), split=number)
        finally:
            elements.close()

    def _elements(self) -> Generator[Any]:
        try:
            yield from iter(self._node.fn())  # a coroutine is none
        except Exception as error:
            raise FunctionError(f"{self._name} raised {said(error)}") from error

    def _copied(self, row: Row, number: int) -> Row:
        try:
            return cast(Row, copied_value(row))
        except Exception as error:  # as of a tensor on another device
            raise SchemaError(f"element {number} of {self._name}: {said(error)}") from error

    def _batch(self, element: list[Any], number: int, schema: pa.Schema | None) -> pa.RecordBatch:
        try:
            return as_batch(element, schema, takes_over=self._node.takes_over)
        except SchemaError as error:
            raise FunctionError(f"element {number} of {self._name}: {error}") from error


def as_batch(holder: list[Any], schema: pa.Schema | None, *, takes_over: bool) -> pa.RecordBatch:
    """Returns one element of a generator as a record batch, with the tensors of its schema if a schema is known.

    Args:
        holder: Holds the element, as the only reference of this library.
        schema: The schema of its columns, as far as known.
        takes_over: Whether the generator may write the element again, so that memory it can write is copied.

    Raises:
        SchemaError: A generator may not yield such an element.
    """
    private = unshared(holder) if takes_over else frozenset()
    element = holder.pop()
    if isinstance(element, Mapping):
        return batch_from_arrays(element, schema, TakeOver(unshared=private) if takes_over else None)
    foreign = not isinstance(element, pa.RecordBatch)
    if foreign:
        if not hasattr(element, "__arrow_c_stream__"):
            raise SchemaError(
                "expected a dict of values (a row), a record batch or a data frame, got "
                f"{type(element).__name__}; name single values, as in {{'x': value}}"
            )
        table = pa.RecordBatchReader.from_stream(element).read_all().combine_chunks()
        batches = table.to_batches()
        element = batches[0] if len(batches) == 1 else empty_batch(table.schema)
    batch = normalised(element, normalised_schema(element.schema))
    return TakeOver(foreign=foreign).batch(batch) if takes_over else batch

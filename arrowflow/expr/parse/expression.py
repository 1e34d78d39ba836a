"""`Expr`: an expression of Polars or of `pyarrow.compute`, checked, named and comparable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from typing import Literal as Choice

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.expr.parse import arrow_tree, lifted, polars_check, polars_tree
from arrowflow.expr.parse.lifted import Json, Text, dumps, items, loads, pieces
from arrowflow.expr.parse.tree import Column, Node, column_names
from arrowflow.expr.run.foreign import empty_frame, evaluate_empty
from arrowflow.lazy import compute as pc

Source: TypeAlias = Any
"""A `pl.Expr` or a `pc.Expression`; pyarrow has no type information."""


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """An element-wise expression and the engine that owns it. Make one with `parse`.

    Attributes:
        engine: The engine that evaluates the expression, and so defines its result for null, NaN and overflow.
        source: The expression as the user wrote it.
        name: The name of its output; None if the name is not known (pyarrow's calls, selectors).
        columns: The columns that it reads, sorted. The columns of a selector are unknown before `expand`.
        form: The engine's own serialised form of `source`, from which `tree` reads; made if it is not given.

    Examples:
        >>> import polars as pl
        >>> expr = parse_expression(pl.col("price") * (1 - pl.col("discount")), operator="select")
        >>> expr.engine, expr.name, expr.columns
        ('polars', 'price', ('discount', 'price'))
    """

    engine: Choice["polars", "arrow"]
    source: Source
    name: str | None
    columns: tuple[str, ...]
    form: str | bytes = field(default="", repr=False)

    def __post_init__(self) -> None:
        # This happens once: a plan is compiled several times while rules rewrite it, and reads this value hundreds of
        # times. That of a million keys takes 0.1 s.
        if not self.form:
            form = (polars_tree if self.engine == "polars" else arrow_tree).serialise(self.source)
            object.__setattr__(self, "form", form)

    def json(self) -> str:
        """Returns the JSON form of an expression of Polars; see `lifted`."""
        assert isinstance(self.form, str)
        return self.form

    @property
    def whole(self) -> polars_tree.Subexpression:
        """All of an expression of Polars, as its parts are."""
        return polars_tree.Subexpression(self.source, self.json(), self.columns)

    def tree(self) -> Node:
        """Returns the library's own form of the expression."""
        return polars_tree.read(self.form) if isinstance(self.form, str) else arrow_tree.read(self.form)

    def digest(self) -> str:
        """Returns a stable text of the expression, equal for equal expressions in every process."""
        # JSON has no NaN and no infinity; the expression's text has.
        more = str(self.source) if isinstance(self.form, str) and '"Float":null' in self.form else ""
        return f"{self.engine}:{_digest(self.form, more)}"

    def key(self) -> str:
        """Returns a text that is equal for equal expressions of one process; a digest of a million keys takes 0.1 s."""
        return self.form if isinstance(self.form, Text) else self.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and (self.name, self.key()) == (other.name, other.key())

    def __hash__(self) -> int:
        return hash((self.name, self.key()))

    @property
    def column(self) -> str | None:
        """The name of the column that the expression is, and nothing else; None of others, and of selectors."""
        # A mapping of a column has its name, too, and perhaps a million keys.
        tree = self.tree() if len(self.form) < 1_000 and self.columns == (self.name,) else None
        return tree.name if isinstance(tree, Column) else None

    def __repr__(self) -> str:
        if self.engine == "polars":
            return f"pl: {lifted.shown(self.source, self.json())}"
        return f"pc: {arrow_tree.shown(self.source)}"


@lru_cache(maxsize=1024)
def _digest(data: str | bytes, more: str) -> str:
    """Returns the digest of a serialised form. That of a million keys takes 20 ms."""
    if isinstance(data, bytes):
        data = arrow_tree.text(data)
    found = hashlib.sha256()
    for piece in (*pieces(data, named=True), more):
        found.update(piece.encode())
    return found.hexdigest()[:32]


def parse_expression(value: object, *, operator: str, allow_name: bool = False) -> Expr:
    """Returns `value` as a checked expression.

    Args:
        value: A Polars or a `pyarrow.compute` expression; with `allow_name` also the name of a column.
        operator: The name of the calling operator, for messages.
        allow_name: Whether a string means a column.

    Raises:
        PlanError: `value` is something else, or is not provably element-wise.

    Examples:
        >>> import polars as pl
        >>> parse_expression(pl.col("x") - pl.col("x").mean(), operator="select")
        Traceback (most recent call last):
        arrowflow.errors.PlanError: select: ...
    """
    try:
        if isinstance(value, pl.Expr):
            return _parse_polars(value)
        if isinstance(value, pc.Expression):
            return _parse_arrow(value)
    except PlanError as error:
        error.locate(operator=operator)
        raise
    if allow_name and isinstance(value, str):
        return Expr("polars", pl.col(value), value, (value,))
    names = ", or the name of a column" if allow_name else ""
    raise PlanError(
        f"{operator}: expected an expression of Polars (pl.col) or of pyarrow.compute (pc.field){names},"
        f" got {shown(value)} ({type(value).__name__})"
    )


def parse_many(value: object, *, operator: str, allow_name: bool = False) -> list[Expr]:
    """Returns the expressions in `value`: one, or any nesting of lists and tuples of them."""
    if isinstance(value, Iterable) and not isinstance(value, str | pl.Expr | pc.Expression):
        return [expr for item in value for expr in parse_many(item, operator=operator, allow_name=allow_name)]
    return [parse_expression(value, operator=operator, allow_name=allow_name)]


def _parse_polars(value: pl.Expr) -> Expr:
    if hasattr(value, "otherwise"):
        value = value.otherwise(
            None
        )  # Polars 1.35 cannot unpickle a `when` without this call, which changes no value
    text = polars_tree.serialise(value)
    kinds = {kind for kind, _ in items(loads(text))}
    if "SelectFields" in kinds:
        raise PlanError(
            "`struct.unnest`, and `struct.field` of several fields, make several columns of one expression; write one "
            'expression for each field, as in pl.col("…").struct.field("a"), pl.col("…").struct.field("b")'
        )
    _refuse(polars_check.check(text), value)
    return Expr("polars", value, None, (), text) if "Selector" in kinds else _named(value, text)


def _named(source: pl.Expr, text: str) -> Expr:
    name = source.meta.output_name(raise_if_undetermined=False)
    return Expr("polars", source, name, column_names(polars_tree.read(text)), text)


def _parse_arrow(value: pc.Expression) -> Expr:
    data = arrow_tree.serialise(value)
    _refuse(arrow_tree.check(data), value)
    node = arrow_tree.read(data)
    return Expr("arrow", value, node.name if isinstance(node, Column) else None, column_names(node), data)


def _refuse(fault: str | None, value: Source) -> None:
    if fault is not None:
        raise PlanError(
            f"the expression is not element-wise: {fault} in {_shown(value)}. A chunk is not the column:"
            " compute such values first, or use `map` if each chunk may be taken alone"
        )


def _shown(value: Source) -> str:
    shown = " ".join(arrow_tree.shown(value).split())
    return shown if len(shown) <= 200 else shown[:199] + "…"


def of_column(expr: Expr, name: str) -> Expr:
    """Returns an expression of one column for another one. `pl.col` takes the names "*" and "^…$" for several columns.

    Examples:
        >>> import polars as pl
        >>> of_column(parse_expression(pl.col("x") + 1, operator="select"), "*").columns
        ('*',)
    """
    selector = dumps({"Column": expr.name})
    found = polars_tree.deserialise(expr.json().replace(selector, dumps({"Column": name})))
    assert found is not None
    return _named(found, polars_tree.serialise(found))


def expand(expr: Expr, schema: pa.Schema) -> list[Expr]:
    """Returns one expression per output of `expr` on `schema`, with selectors, `pl.all()` and regexes resolved.

    Examples:
        >>> import polars as pl, pyarrow as pa
        >>> schema = pa.schema([("a", pa.int32()), ("b", pa.int64())])
        >>> [part.name for part in expand(parse_expression(pl.all() * 2, operator="select"), schema)]
        ['a', 'b']
    """
    if expr.engine == "arrow":
        return [expr]
    text = expr.json()
    tree = loads(text)
    selectors = {dumps({kind: body}) for kind, body in items(tree) if kind == "Selector"}
    if not selectors:
        return [expr]
    frame = empty_frame(schema)
    expected = evaluate_empty(expr.source, frame)
    chosen = {part: frame.select(polars_tree.deserialise(part)).columns for part in selectors}
    aligned = all(len(names) == len(expected) for names in chosen.values())
    parts = [_replaced(tree, chosen, index) for index in range(len(expected))] if aligned else []
    resolved = [polars_tree.deserialise(dumps(part)) for part in parts]
    single = [_named(part, polars_tree.serialise(part)) for part in resolved if part is not None]
    found = evaluate_empty([part.source for part in single], frame)
    if list(found.items()) == list(expected.items()):
        return single
    if len(expected) == 1:  # selectors among the arguments of one function, as in pl.max_horizontal(pl.all())
        columns = set(column_names(polars_tree.read(text))).union(*chosen.values())
        return [Expr("polars", expr.source, next(iter(expected)), tuple(sorted(columns)))]
    raise PlanError(f"write one expression for each column instead of {_shown(expr.source)}")


def _replaced(node: Json, chosen: dict[str, list[str]], index: int) -> Json:
    if isinstance(node, dict):
        if "Selector" in node:
            return {"Column": chosen[dumps(node)][index]}
        return {key: _replaced(part, chosen, index) for key, part in node.items()}
    return [_replaced(part, chosen, index) for part in node] if isinstance(node, list) else node

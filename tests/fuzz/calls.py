"""How the tables of calls are read: one line a call, with every option that the call has.

A line is Python text with places in braces. A place is one of

- a kind of `columns.TYPES` (`{number}`, `{text}`, `{any}` …): a column, or another expression, of such a type;
- `{same}`: an expression of exactly the first operand's type; `{value}`: a literal for that type, up to its edges
  and beyond; `{values}`: a list of those, `{constants}` the same as an array of pyarrow;
- a name in `CHOICES`, or the choices themselves: `{"left"|"right"}`.

`~` in front says that the function is transcendental: equal within `ULPS`, and never inside of another call.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl
import pyarrow.compute as pc

from tests.fuzz.arrow_calls import ARROW
from tests.fuzz.choices import CHOICES
from tests.fuzz.polars_calls import POLARS

Engine = Literal["polars", "arrow"]
ULPS: Final = 2
NAMESPACES: Final = ("str", "dt", "list", "arr", "bin", "struct", "cat", "name")
RELATIVE: Final = ("same", "value", "values", "constants")
_PLACE: Final = re.compile(r"\{([^{}]+)\}")
_NAME: Final = re.compile(r"\w+\??")


@dataclass(frozen=True)
class Call:
    """One line of a table.

    Attributes:
        engine: Who owns the call.
        text: The line.
        exact: Whether the engine and the library agree to the bit.
    """

    engine: Engine
    text: str
    exact: bool

    def __str__(self) -> str:
        return self.text

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yields the line in pieces: ("text", as it is), ("operand", kind), ("choice", texts joined by |)."""
        at = 0
        for place in _PLACE.finditer(self.text):
            yield "text", _unescaped(self.text[at : place.start()])
            yield _part(place[1])
            at = place.end()
        yield "text", _unescaped(self.text[at:])

    def missing_options(self) -> set[str]:
        """Returns the parameters of the function that the line does not give."""
        found = self.function()
        if found is None:
            return set()
        function, given, names = found
        parameters = inspect.signature(function).parameters.values()
        varied = [one.name for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        return {one.name for one in list(parameters)[given:]} - names - _NO_OPTIONS - set(varied)

    def function(self) -> tuple[Callable[..., Any], int, set[str]] | None:
        """Returns the outermost function that the line calls, how many arguments go by place, and which by name.

        None of an operator.
        """
        with_names = _PLACE.sub(lambda place: "_" if place[1][0] not in "+." else "", self.text)
        try:
            node = ast.parse(_unescaped(with_names), mode="eval").body
        except SyntaxError:  # `_ _ _`, of which the middle one is an operator
            return None
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        names = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
        owner, by_place = self._owner(node.func.value)
        if owner is None:
            return None
        return getattr(owner, node.func.attr), by_place + len(node.args), names

    def _owner(self, node: ast.expr) -> tuple[Any, int]:
        """Whose attribute the call is; of a method, its own argument counts."""
        if isinstance(node, ast.Name) and node.id in ("pl", "pc"):
            return {"pl": pl, "pc": pc}[node.id], 0
        if isinstance(node, ast.Attribute) and node.attr in NAMESPACES:
            return type(getattr(pl.col("x"), node.attr)), 1
        method_of_place = isinstance(node, ast.Name)
        return (pl.Expr if self.engine == "polars" else pc.Expression) if method_of_place else None, 1


_NO_OPTIONS: Final = {"memory_pool", "options"}
"""`options` is another way to give all of them."""


def _unescaped(text: str) -> str:
    return text.replace("{{", "{").replace("}}", "}")


def _part(place: str) -> tuple[str, str]:
    if place in RELATIVE:
        return "relative", place
    if place in CHOICES:
        return "choice", place
    return ("operand", place) if _NAME.fullmatch(place) else ("choice", place)


def choices(place: str) -> list[str]:
    """Returns the texts that a place with choices may become."""
    return CHOICES[place] if place in CHOICES else place.split("|")


def _table(engine: Engine, text: str) -> list[Call]:
    lines = [line for line in text.splitlines() if line]
    return [Call(engine, line.removeprefix("~"), not line.startswith("~")) for line in lines]


def _is_known(call: Call) -> bool:
    """Whether this version of the engine has the function, with these options."""
    try:
        found = call.function()
    except AttributeError:
        return False
    if found is None:
        return True
    parameters = inspect.signature(found[0]).parameters.values()
    return found[2] <= {one.name for one in parameters} or any(
        one.kind == one.VAR_KEYWORD for one in parameters
    )


TABLE: Final = [*_table("polars", POLARS), *_table("arrow", ARROW)]
CALLS: Final = [call for call in TABLE if _is_known(call)]
"""The calls that the versions here have; with the newest ones, all of `TABLE`."""

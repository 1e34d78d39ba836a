"""Random expressions as Python text, from the tables of calls."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume
from hypothesis import strategies as st

from tests.fuzz.calls import CALLS, Call, Engine, choices
from tests.fuzz.columns import SCHEMA, TYPES, Pool, Type, kinds_of, spelled
from tests.oracles import engines

NAMES: Final[dict[str, Any]] = {
    "pl": pl,
    "pc": pc,
    "pa": pa,
    "c": pl.col,
    "f": pc.field,
    "datetime": datetime,
    "Decimal": Decimal,
    "nan": float("nan"),
    "inf": float("inf"),
}
"""What the text of an expression may use: `c` is `pl.col`, `f` is `pc.field`."""
NUMBERS: Final = [
    *("0", "1", "-1", "2", "-2", "0.5", "-1.5", "3", "127", "128", "-129", "255", "256", "300", "-32769"),
    *("2**24 + 1", "2**31", "2**32", "2**53 + 1", "2**63 - 1", "2**63", "-(2**63)", "2**64 - 1", "0.1"),
    *("1e39", "-1e300", "0.0", "-0.0", "nan", "inf", "-inf", "True", 'Decimal("1.5")'),
]
"""Literals that any type of number may meet."""
Columns = Mapping[str, pa.DataType]


@dataclass(frozen=True)
class Made:
    """An expression: its text, and the type that its engine gives it (None where it refuses)."""

    text: str
    type: pa.DataType | None
    exact: bool


def source_of(text: str) -> Any:
    """Returns the expression that `text` writes."""
    return eval(text, NAMES)


@lru_cache(maxsize=10_000)
def type_of(engine: Engine, text: str, columns: tuple[tuple[str, pa.DataType], ...]) -> pa.DataType | None:
    """Returns the type of an expression on columns without rows, None where its engine refuses it."""
    try:
        source = source_of(text)
        names = [name for name, _ in columns if f'"{name}"' in text]
        empty = pa.table({name: engines.plain(pa.nulls(0, dict(columns)[name])) for name in names})
        return engines.values(empty, source).type
    except engines.ENGINE_ERRORS:
        return None


@st.composite
def expressions(
    draw: st.DrawFn,
    engine: Engine,
    call: Call | None = None,
    *,
    predicate: bool = False,
    columns: Columns = SCHEMA,
    depth: int = 2,
) -> Made:
    """Draws an expression over some of `columns`: up to `depth` calls that feed each other, and then `call`.

    Args:
        draw: By Hypothesis.
        engine: Who owns it.
        call: The outermost call; any when not given.
        predicate: Whether it gives flags.
        columns: What it may read.
        depth: How many calls it may be made of, besides the outermost one.
    """
    own = [one for one in CALLS if one.engine == engine]
    made: list[Made] = []
    for _ in range(draw(st.integers(0, depth))):
        inner = filled(draw, draw(st.sampled_from([one for one in own if one.exact])), columns, made)
        if inner.type is not None:
            made.append(inner)
    if predicate:
        own = [one for one in own if _is_predicate(one)]
    return filled(draw, call or draw(st.sampled_from(own)), columns, made)


def _is_predicate(call: Call) -> bool:
    """Whether a call gives flags, as far as its text says."""
    return any(mark in call.text for mark in _FLAGS)


_FLAGS: Final = (
    *("{compare}", "} & {", "} | {", "~{bool}", ".is_", "isin", "contains", "starts_with", "eq_missing"),
)


def filled(
    draw: st.DrawFn,
    call: Call,
    columns: Columns,
    made: Sequence[Made],
    near: Mapping[pa.DataType, Pool] | None = None,
) -> Made:
    """Draws what stands in the places of a call; `near` says what literals of a type are drawn from."""
    parts = list(call.parts())
    texts: dict[int, str] = {}
    first: pa.DataType | None = None
    for at, (part, what) in enumerate(parts):
        if part == "operand":
            texts[at], type = _operand(
                draw, call.engine, lambda type, what=what: what in kinds_of(type), columns, made
            )
            first = type if first is None else first
        elif part == "choice":
            texts[at] = draw(st.sampled_from(choices(what)))
        elif part == "text":
            texts[at] = what
    for at, (part, what) in enumerate(parts):
        if part == "relative":
            assert first is not None, call
            if what == "same":
                texts[at] = _operand(draw, call.engine, first.equals, columns, made)[0]
                continue
            known = _known(first)
            known = replace(known, pool=(near or {}).get(known.arrow, known.pool))
            texts[at] = (
                literal(draw, call.engine, known)
                if what == "value"
                else literals(draw, call.engine, known, as_array=what == "constants")
            )
    text = "".join(texts[at] for at in range(len(parts)))
    # Of floats that a uint32 cannot hold, pyarrow's loop makes other numbers in fours than in its last steps.
    unsafe = "safe=False" in text or "allow_float_truncate=True" in text
    assume(not (unsafe and "pa.uint32()" in text and first is not None and pa.types.is_floating(first)))
    return Made(text, type_of(call.engine, text, tuple(columns.items())), call.exact)


def _operand(
    draw: st.DrawFn, engine: Engine, fits: Any, columns: Columns, made: Sequence[Made]
) -> tuple[str, pa.DataType]:
    inner = [one for one in made if one.type is not None and fits(one.type)]
    nested: bool = bool(inner) and draw(st.booleans())
    if nested:
        found: Made = draw(st.sampled_from(inner))
        return f"({found.text})", found.type
    names = [name for name, type in columns.items() if fits(type) and (engine == "arrow" or is_read(type))]
    assume(names)
    name = draw(st.sampled_from(names))
    return f'{"c" if engine == "polars" else "f"}("{name}")', columns[name]


def is_read(arrow: pa.DataType) -> bool:
    """Returns whether Polars reads columns of a type."""
    return "foreign" not in kinds_of(arrow)


def _known(arrow: pa.DataType) -> Type:
    return next((one for one in TYPES.values() if one.arrow.equals(arrow)), TYPES["i64"])


def literal(draw: st.DrawFn, engine: Engine, known: Type) -> str:
    """Draws a literal that a column of a type may meet: of its own type, bare or typed, or of another one."""
    form = draw(st.integers(0, 7))
    if form == 0:
        bare = "None"
    elif form <= 2 and known.kinds & {"number", "span", "bool"}:
        bare = draw(st.sampled_from(NUMBERS))
    else:
        stored = draw(known.pool)
        found = spelled(stored, known.arrow)
        if found is None or form == 3:
            return typed(engine, stored, found, known)
        bare = found
    return f"pl.lit({bare})" if engine == "polars" else f"pc.scalar({bare})"


def typed(engine: Engine, stored: Any, bare: str | None, known: Type) -> str:
    """Returns a literal that names its type; one that no object of Python holds is made from what is stored."""
    if engine == "arrow":
        return f"pc.scalar(pa.scalar({stored!r}, {arrow_text(known.arrow)}))"
    if bare is not None:
        return f"pl.lit({bare}, dtype={known.polars or 'None'})"
    return f"pl.lit({stored}, dtype=pl.Int64).cast({known.polars})"


def literals(draw: st.DrawFn, engine: Engine, known: Type, *, as_array: bool) -> str:
    """Draws a list of constants of a type, with and without a null."""
    stored = draw(st.lists(st.none() | known.pool, max_size=4))
    if engine == "arrow" and (as_array or draw(st.booleans())):
        return f"pa.array({stored!r}, {arrow_text(known.arrow)})"
    bare = [text for value in stored if (text := spelled(value, known.arrow)) is not None]
    if "number" in known.kinds and draw(st.booleans()):
        bare.append(draw(st.sampled_from(NUMBERS)))
    listed = f"[{', '.join(bare)}]"
    return (
        f'pl.Series("", {listed}, dtype={known.polars})'
        if engine == "polars" and draw(st.booleans())
        else listed
    )


def arrow_text(arrow: pa.DataType) -> str:
    """Returns how Python writes a type of pyarrow.

    Example:
        >>> arrow_text(pa.list_(pa.timestamp("us", "UTC"), 2))
        'pa.list_(pa.timestamp("us", "UTC"), 2)'
    """
    if pa.types.is_fixed_size_list(arrow):
        return f"pa.list_({arrow_text(arrow.value_type)}, {arrow.list_size})"
    if pa.types.is_list(arrow):
        return f"pa.list_({arrow_text(arrow.value_type)})"
    if pa.types.is_struct(arrow):
        return f"pa.struct([{', '.join(f'({one.name!r}, {arrow_text(one.type)})' for one in arrow.fields)}])"
    if pa.types.is_map(arrow):
        return f"pa.map_({arrow_text(arrow.key_type)}, {arrow_text(arrow.item_type)})"
    if pa.types.is_timestamp(arrow):
        return f'pa.timestamp("{arrow.unit}"' + (f', "{arrow.tz}")' if arrow.tz else ")")
    if pa.types.is_duration(arrow) or pa.types.is_time(arrow):
        name = "duration" if pa.types.is_duration(arrow) else f"time{arrow.bit_width}"
        return f'pa.{name}("{arrow.unit}")'
    if pa.types.is_decimal(arrow):
        return f"pa.decimal{arrow.bit_width}({arrow.precision}, {arrow.scale})"
    names = {pa.bool_(): "bool_", pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
    names |= {pa.date32(): "date32"}
    return f"pa.{names.get(arrow, arrow)}()"

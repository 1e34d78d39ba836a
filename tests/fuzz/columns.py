"""The types that the fuzzers know: their columns, the values in them, and how literals of them are spelled.

A type is one line in `TYPES`. Values are the numbers that Arrow stores, so that a date may lie beyond year 9999.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

Pool = st.SearchStrategy[Any]

NAN, INF = math.nan, math.inf
DAY: Final = 86_400
LAST_DAY: Final = 94_963_050
"""In the year 261,970. Behind 262,142 the functions of Polars give what stands beside a value in memory."""
MOMENTS: Final = [0, 1, -1, 951_782_400, 981_173_106, 1_711_846_800, 1_729_990_800, 86_399, -86_401]
"""Seconds: the epoch, a leap day, a morning in 2001, both changes of the clock in Berlin in 2024."""
WORDS: Final = [
    *(
        "",
        "a",
        "ab",
        "b",
        "B a",
        " x ",
        "a,b,,c",
        "a.b",
        "aXbX",
        "é",
        "e\u0301",
        "ß",
        "İ",
        "日本",
        "👩‍🚀",
        "\0",
    ),
    *("1", "-7", "007", "1.5", "1e3", "ff", "ZZ", "6161", "YWI=", "2001-02-03", "2001-02-03 04:05:06"),
    *("10:11:12", '{"a": 1, "b": [2]}', "null", "[1, 2]", "%", "a_b", "true", "z" * 40),
]
BYTES: Final = [b"", b"a", b"ab", b"\xff", b"\x00", b"6161", b"YWI=", b"12345678", b"z" * 40]


def integers(type: pa.DataType) -> Pool:
    """Returns the integers of a type, most of them small or at its ends."""
    limits = np.iinfo(type.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)
    near = [
        value for value in (0, 1, 2, 3, 5, 7, -1, -2, 100, 127, 128, 255, 2**24 + 1) if low <= value <= high
    ]
    ends = [low, low + 1, high - 1, high, min(high, 2**53 + 1), max(low, -(2**53) - 1)]
    return st.one_of(st.sampled_from(near), st.sampled_from(ends), st.integers(low, high))


def floats(width: Literal[16, 32, 64]) -> Pool:
    """Returns the floats of a width, most of them special."""
    limits = np.finfo(f"f{width // 8}")
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 2.0, 10.0, 0.1, 100.25, NAN, INF, -INF]
    ends = [float(limits.max), float(limits.min), float(limits.smallest_subnormal), -float(limits.max)]
    ends += [1.0 + float(limits.eps), 2.0**15, 3.0**7]
    narrow = [float(np.dtype(f"f{width // 8}").type(value)) for value in special + ends]
    return st.one_of(st.sampled_from(narrow), st.floats(width=width))


def instants(unit: str, widest: int = 2**63 - 1) -> Pool:
    """Returns stored instants or spans in a unit, most of them days that people write, none beyond `widest`."""
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    plain = [moment * scale for moment in MOMENTS]
    odd = [value + 1 for value in plain] + [scale // 2, 1_500_000_000 * scale // 7]
    ends = [
        *(-(2**63) + 1, 2**63 - 1, 2**62, 10**15, -(10**15), 253_402_300_800 * scale),
        -62_135_596_801 * scale,
    ]
    safe = [max(-widest, min(widest, value)) for value in ends]
    return st.one_of(*[st.sampled_from(plain)] * 3, st.sampled_from(odd), st.sampled_from(safe))


def numbers_below(limit: int) -> Pool:
    """Returns the numbers from 0 up to `limit`, its ends among them."""
    return st.one_of(
        st.sampled_from([0, 1, limit - 1, limit // 2, limit // 24 * 10]), st.integers(0, limit - 1)
    )


def digits(precision: int, scale: int) -> Pool:
    """Returns decimals, most of them small or at the ends of their type."""
    top = 10**precision - 1
    small = [0, 1, -1, 5, 10**scale, -(10**scale), 15 * 10**scale // 10, 25 * 10**scale // 10, top, -top]
    unscaled = st.one_of(st.sampled_from(small), st.integers(-top, top))
    # Not `scaleb`, which rounds to 28 digits.
    return unscaled.map(lambda value: Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale)))


@dataclass(frozen=True)
class Type:
    """A type of column: how Arrow and Polars spell it, which kinds it is of, and which values it has.

    Attributes:
        arrow: The type.
        polars: Its name in Polars, "" where it has none.
        kinds: Names under which a call of the tables may ask for it.
        pool: What its values are drawn from, as what Arrow stores.
    """

    arrow: pa.DataType
    polars: str
    kinds: frozenset[str]
    pool: Pool

    def array(self, values: list[Any]) -> pa.Array:
        """Returns the values as a column of the type."""
        if self.arrow == pa.float16():
            return pa.array([None if value is None else np.float16(value) for value in values], self.arrow)
        if pa.types.is_temporal(self.arrow):
            return pa.array(values, pa.int32() if self.arrow.bit_width == 32 else pa.int64()).view(self.arrow)
        return pa.array(values, self.arrow)


def _kinds(text: str) -> frozenset[str]:
    return frozenset((*text.split(), "any", *(() if "nested" in text else ("flat",))))


def _made() -> dict[str, Type]:
    found: dict[str, Type] = {}

    def add(name: str, arrow: pa.DataType, polars: str, kinds: str, pool: Pool) -> None:
        found[name] = Type(arrow, polars, _kinds(kinds), pool)

    for width in (8, 16, 32, 64):
        for sign, spelled in (("", "Int"), ("u", "UInt")):
            arrow = getattr(pa, f"{sign}int{width}")()
            kinds = f"{'unsigned' if sign else 'signed'} int number ordered{' tiny' if width == 8 else ''}"
            add(f"{sign or 'i'}{width}", arrow, f"pl.{spelled}{width}", kinds, integers(arrow))
    for pool, width in ((floats(16), 16), (floats(32), 32), (floats(64), 64)):
        add(f"f{width}", getattr(pa, f"float{width}")(), f"pl.Float{width}", "float number ordered", pool)
    for precision, scale in ((9, 2), (15, 0), (38, 10)):
        arrow = pa.decimal128(precision, scale)
        polars = f"pl.Decimal({precision}, {scale})"
        add(f"dec{precision}", arrow, polars, "decimal number ordered", digits(precision, scale))
    add("b", pa.bool_(), "pl.Boolean", "bool ordered", st.booleans())
    add("s", pa.string(), "pl.String", "text ordered", st.sampled_from(WORDS) | st.text(max_size=4))
    add("y", pa.binary(), "pl.Binary", "binary ordered", st.sampled_from(BYTES) | st.binary(max_size=4))
    days = st.sampled_from([moment // DAY for moment in MOMENTS] + [2_932_896, 2_932_897, -719_163, LAST_DAY])
    add("day", pa.date32(), "pl.Date", "date moment temporal ordered", days)
    for unit, size in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        bits = 32 if unit in ("s", "ms") else 64
        clock = getattr(pa, f"time{bits}")(unit)
        add(f"time_{unit}", clock, "pl.Time", "time temporal ordered", numbers_below(DAY * size))
        spelled = f'pl.Duration("{"ms" if unit == "s" else unit}")'
        # Polars has no seconds: it makes milliseconds of them, and those wrap around.
        longest = (2**63 - 1) // (1_000 if unit == "s" else 1)
        add(f"span_{unit}", pa.duration(unit), spelled, "span temporal ordered", instants(unit, longest))
        for zone, name in ((None, "ts"), ("UTC", "utc"), ("Europe/Berlin", "berlin")):
            spelled = f'pl.Datetime("{"ms" if unit == "s" else unit}"{f", {zone!r}" if zone else ""})'
            kinds = f"stamp moment temporal ordered {'zoned' if zone else 'naive'}"
            widest = min(2**63 - 1, LAST_DAY * DAY * size)
            add(f"{name}_{unit}", pa.timestamp(unit, zone), spelled, kinds, instants(unit, widest))
    add("nothing", pa.null(), "pl.Null", "null", st.none())
    for item in ("i64", "i8", "f64", "s", "b", "day"):
        of = found[item]
        kinds = f"list nested {'texts' if item == 's' else 'numbers' if item in ('i64', 'i8', 'f64') else 'others'}"
        items = st.lists(st.none() | of.pool, max_size=3)
        if item == "day":
            items = st.lists(st.none() | st.dates(), max_size=3)
        add(f"list_{item}", pa.list_(of.arrow), f"pl.List({of.polars})", f"{kinds} listed_{item}", items)
    for item in ("i32", "f32", "s"):
        of = found[item]
        pairs = st.lists(st.none() | of.pool, min_size=2, max_size=2)
        kinds = f"array nested {'texts2' if item == 's' else 'numbers2'}"
        add(f"pair_{item}", pa.list_(of.arrow, 2), f"pl.Array({of.polars}, 2)", kinds, pairs)
    parts = st.fixed_dictionaries({"x": st.none() | found["i32"].pool, "y": st.none() | found["s"].pool})
    struct = pa.struct([("x", pa.int32()), ("y", pa.string())])
    add("st", struct, 'pl.Struct({"x": pl.Int32, "y": pl.String})', "struct nested", parts)
    # What a pipeline brings to another spelling when it reads it.
    add("large", pa.large_string(), "pl.String", "text ordered respelled", found["s"].pool)
    add("view", pa.string_view(), "pl.String", "text ordered respelled", found["s"].pool)
    add(
        "cat",
        pa.dictionary(pa.int8(), pa.string()),
        "pl.String",
        "text respelled",
        st.sampled_from(WORDS[:6]),
    )
    # These Polars does not read.
    add("dec76", pa.decimal256(60, 3), "", "foreign decimal number", digits(60, 3))
    add("map", pa.map_(pa.string(), pa.int32()), "", "map foreign nested", st.just([("a", 1)]) | st.just([]))
    return found


TYPES: Final[Mapping[str, Type]] = _made()
SCHEMA: Final[Mapping[str, pa.DataType]] = {
    name + suffix: found.arrow for name, found in TYPES.items() for suffix in ("", "_2")
}
"""Two columns of each type."""


def pool_of(name: str) -> Pool:
    """Returns what the values of a column of `SCHEMA` are drawn from."""
    return TYPES[name.removesuffix("_2")].pool


def array_of(name: str, values: list[Any]) -> pa.Array:
    """Returns the column `name` of `SCHEMA` with these values."""
    return TYPES[name.removesuffix("_2")].array(values)


def kinds_of(arrow: pa.DataType) -> frozenset[str]:
    """Returns the kinds of a type that an expression yields, which may be none of `TYPES`."""
    for found in TYPES.values():
        if found.arrow.equals(arrow):
            return found.kinds
    return next((_kinds(kinds) for test, kinds in _OTHERS if test(arrow)), frozenset(("any",)))


_OTHERS: Final[list[tuple[Callable[[pa.DataType], bool], str]]] = [
    (pa.types.is_decimal, "decimal number ordered"),
    (pa.types.is_timestamp, "stamp moment temporal ordered"),
    (pa.types.is_fixed_size_list, "array nested"),
    (pa.types.is_list, "list nested"),
    (pa.types.is_struct, "struct nested"),
]


# ------------------------------------------------------------------------------------------- literals

_EPOCH: Final = datetime.datetime(1970, 1, 1)
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LAST: Final = 253_402_300_799
"""The last second that Python's `datetime` knows."""


def spelled(value: Any, arrow: pa.DataType) -> str | None:
    """Returns the stored `value` as Python writes it, None where Python has no such object.

    Example:
        >>> spelled(1, pa.timestamp("s", "UTC"))
        'datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)'
    """
    if value is None or not pa.types.is_temporal(arrow):
        return repr(value)
    if pa.types.is_date(arrow):
        return repr(_EPOCH.date() + datetime.timedelta(value)) if -719_162 <= value <= 2_932_896 else None
    per_second = _PER_SECOND[arrow.unit]
    if value % max(1, per_second // 10**6):
        return None
    micros = value * 10**6 // per_second
    if pa.types.is_time(arrow):
        return repr((_EPOCH + datetime.timedelta(microseconds=micros)).time())
    if pa.types.is_duration(arrow):
        return repr(datetime.timedelta(microseconds=micros)) if abs(micros) < 10**18 else None
    if not -62_135_596_800 <= micros // 10**6 <= _LAST:
        return None
    moment = _EPOCH + datetime.timedelta(microseconds=micros)
    return repr(moment if arrow.tz is None else moment.replace(tzinfo=datetime.UTC))

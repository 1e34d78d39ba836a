"""What the options and constants of the calls in `polars_calls` and `arrow_calls` are drawn from."""

from __future__ import annotations

from typing import Final

CHOICES: Final[dict[str, list[str]]] = {
    "flag": ["True", "False"],
    "small": ["0", "1", "2", "3", "-1"],
    "count": ["0", "1", "2", "5"],
    "index": ["0", "1", "-1", "5"],
    "integer": ["0", "1", "-1", "-2", "-129", "7", "300", "2**31", "2**63", "-(2**63)"],
    "arithmetic": ["+", "-", "*", "/", "//", "%"],
    "compare": ["==", "!=", "<", "<=", ">", ">="],
    "closed": ['"both"', '"left"', '"right"', '"none"'],
    "unit": ['"ns"', '"us"', '"ms"'],
    "unit5": ['"ns"', '"us"', '"ms"', '"s"', '"d"'],
    "zone": ['"UTC"', '"Europe/Berlin"', '"Asia/Kathmandu"'],
    "zones": ["None", '"UTC"', '"Europe/Berlin"'],
    "ambiguous": ['"raise"', '"earliest"', '"latest"', '"null"'],
    "non_existent": ['"raise"', '"null"'],
    "every": [
        *('"1d"', '"1h"', '"15m"', '"1w"', '"1mo"', '"1q"', '"1y"', '"7us"', '"3ns"'),
        "datetime.timedelta(hours=6)",
    ],
    "offset": ['"1d"', '"-1h"', '"1mo"', '"-1y"', '"1w2d"', '"5us"'],
    "base": ["2.718281828459045", "2", "10", "0.5", "1", "0", "-1", "3"],
    "exponent": ["2", "0", "1", "3", "0.5", "-1", "2.0", "-0.5"],
    "pattern": ['"a"', '"."', '"a.b"', '"[ab]+"', '"(a)(b)?"', '"^$"', '""', '"("', '"é"', r'r"\d+"'],
    "word": ['"a"', '""', '"ab"', '","', '"é"', '"."', '"B a"', '"z"'],
    "word?": ['"a"', '""', '","', "None", 'c("s_2")', '"ab "'],
    "words": ['["a", "ab"]', '["é"]', '["", "b"]', '["A", "z"]'],
    "number_type": [
        *("pl.Int8", "pl.Int16", "pl.Int32", "pl.Int64", "pl.UInt8", "pl.UInt16", "pl.UInt32", "pl.UInt64")
    ],
    "type": [
        *("pl.Int8", "pl.Int16", "pl.Int32", "pl.Int64", "pl.UInt8", "pl.UInt16", "pl.UInt32", "pl.UInt64"),
        *("pl.Float16", "pl.Float32", "pl.Float64", "pl.Boolean", "pl.String", "pl.Binary", "pl.Date"),
        *("pl.Time", 'pl.Datetime("ms")', 'pl.Datetime("us", "UTC")', 'pl.Datetime("ns", "Europe/Berlin")'),
        *("pl.Null", 'pl.Duration("ms")', 'pl.Duration("ns")', "pl.Decimal(9, 2)", "pl.Decimal(38, 0)"),
        *("pl.List(pl.Int64)", 'pl.Enum(["", "a", "ab", "b"])', 'pl.Struct({"x": pl.Int64})'),
        "pl.Array(pl.Int64, 2)",
    ],
    "arrow_type": [
        *("pa.int8()", "pa.int16()", "pa.int32()", "pa.int64()", "pa.uint8()", "pa.uint16()", "pa.uint32()"),
        *("pa.uint64()", "pa.float16()", "pa.float32()", "pa.float64()", "pa.bool_()", "pa.string()"),
        *("pa.binary()", "pa.date32()", 'pa.time32("s")', 'pa.time64("ns")', 'pa.timestamp("s")'),
        *('pa.timestamp("us", "UTC")', 'pa.timestamp("ns")', 'pa.duration("ms")', "pa.decimal128(9, 2)"),
        *("pa.decimal128(38, 0)", "pa.date64()", "pa.large_string()", "pa.string_view()"),
        *("pa.list_(pa.int64())", "pa.null()", "pa.decimal256(60, 3)"),
    ],
    "round_mode": [
        *('"down"', '"up"', '"towards_zero"', '"towards_infinity"', '"half_down"', '"half_up"'),
        *('"half_towards_zero"', '"half_towards_infinity"', '"half_to_even"', '"half_to_odd"'),
    ],
    "time_unit": [
        *('"nanosecond"', '"microsecond"', '"millisecond"', '"second"', '"minute"', '"hour"'),
        *('"day"', '"week"', '"month"', '"quarter"', '"year"'),
    ],
    "date_format": ['"%Y-%m-%d"', '"%d.%m.%y"'],
    "stamp_format": ['"%Y-%m-%d %H:%M:%S"', '"%Y-%m-%d"', '"%+"'],
    "time_format": ['"%H:%M:%S"', '"%H:%M"'],
    "show_format": ['"%Y-%m-%d"', '"%H:%M:%S%.f"', '"iso"', '"%j %U"', "None"],
    "json_path": ['"$.a"', '"$.b[0]"', '"$"', '"("'],
    "week_mask": [
        "(True, True, True, True, True, False, False)",
        "(False, True, False, True, True, True, True)",
    ],
    "holidays": ["()", "(datetime.date(2001, 2, 3), datetime.date(1970, 1, 1))"],
    "json_type": ['pl.Struct({"a": pl.Int64})', "pl.List(pl.Int64)", "pl.Int64"],
    "on_null": ['"emit_null"', '"skip"', '"replace"'],
}

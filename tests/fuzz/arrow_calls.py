"""The calls of `pyarrow.compute` that the fuzzer makes; `calls` says how to read a line.

Left out is what ends the process or never returns (pyarrow 26): `replace_substring` of the empty text, `choose` among
values of several types, and `binary_repeat` by any number.
"""

from __future__ import annotations

from typing import Final

_SAME_AND_CHECKED: Final = {
    "add": "{number}, {number}",
    "subtract": "{number}, {number}",
    "multiply": "{number}, {number}",
    "divide": "{number}, {number}",
    "modulo": "{number}, {number}",
    "remainder": "{number}, {number}",
    "power": "{number}, {number}",
    "shift_left": "{int}, {same}",
    "shift_right": "{int}, {same}",
    "abs": "{number}",
    "negate": "{number}",
    "sqrt": "{number}",
}
_TRANSCENDENTAL: Final = (
    *("ln", "log10", "log1p", "log2", "sin", "cos", "tan", "asin", "acos", "acosh", "atanh"),
)
_TESTS_OF_TEXT: Final = (
    *("is_alnum", "is_alpha", "is_decimal", "is_lower", "is_printable", "is_space", "is_title", "is_upper"),
    *("lower", "upper", "swapcase", "title", "capitalize", "reverse", "ltrim_whitespace", "rtrim_whitespace"),
    "trim_whitespace",
)
_BETWEEN: Final = (
    *("years", "quarters", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds"),
    *("nanoseconds", "month_interval", "day_time_interval", "month_day_nano_interval"),
)

_GENERATED: Final = [
    *(
        f"pc.{name}{checked}({args})"
        for name, args in _SAME_AND_CHECKED.items()
        for checked in ("", "_checked")
    ),
    *(f"~pc.{name}{checked}({{number}})" for name in _TRANSCENDENTAL for checked in ("", "_checked")),
    *(f"pc.{kind}_{name}({{text}})" for name in _TESTS_OF_TEXT for kind in ("ascii", "utf8")),
    *(f"pc.{name}_between({{moment}}, {{same}})" for name in _BETWEEN),
]

ARROW: Final = (
    """
{int} + {integer}
{int} * {integer}
{integer} - {int}
{int} {compare} {integer}
{number} + {value}
{value} - {number}
{same} * {number}
{value} / {number}
{same} + {number}
{same} - {number}
pc.add({number}, {value})
pc.subtract({number}, {value})
pc.multiply({number}, {value})
pc.divide({number}, {value})
pc.add({same}, {number})
pc.subtract({same}, {number})
pc.multiply({same}, {number})
pc.divide({same}, {number})
pc.power({number}, {exponent})
pc.add({temporal}, {span})
pc.subtract({temporal}, {same})
pc.multiply({span}, {int})
pc.divide({span}, {int})
pc.abs({span})
pc.negate({span})
{number} {compare} {number}
{ordered} {compare} {same}
{ordered} {compare} {value}
{value} {compare} {ordered}
{temporal} {compare} {temporal}
{temporal} {compare} {value}
pc.equal({any}, {same})
pc.not_equal({any}, {same})
pc.less({ordered}, {value})
pc.less_equal({ordered}, {value})
pc.greater({ordered}, {value})
pc.greater_equal({ordered}, {value})
{bool} & {bool}
{bool} | {bool}
~{bool}
pc.and_({bool}, {bool})
pc.or_({bool}, {bool})
pc.xor({bool}, {bool})
pc.and_not({bool}, {bool})
pc.and_kleene({bool}, {bool})
pc.or_kleene({bool}, {bool})
pc.and_not_kleene({bool}, {bool})
pc.invert({bool})
pc.true_unless_null({any})
pc.bit_wise_and({int}, {same})
pc.bit_wise_or({int}, {same})
pc.bit_wise_xor({int}, {same})
pc.bit_wise_not({int})
~pc.exp({number})
~pc.expm1({number})
~pc.logb({number}, {same})
~pc.logb_checked({number}, {same})
~pc.atan({number})
~pc.atan2({float}, {same})
~pc.asinh({number})
~pc.sinh({number})
~pc.cosh({number})
~pc.tanh({number})
~pc.hypot({float}, {same})
pc.sign({number})
pc.floor({number})
pc.ceil({number})
pc.trunc({number})
pc.round({number}, ndigits={0|1|-1|3}, round_mode={round_mode})
pc.round_binary({float}, pc.shift_right({int}, 1), round_mode={round_mode})
pc.round_to_multiple({number}, multiple={1|0.5|3|0}, round_mode={round_mode})
pc.is_nan({number})
pc.is_finite({number})
pc.is_inf({number})
pc.is_null({any}, nan_is_null={flag})
pc.is_valid({any})
{any}.is_null(nan_is_null={flag})
{any}.is_valid()
{number}.is_nan()
{any}.isin({values})
pc.is_in({flat}, value_set={constants}, skip_nulls={flag})
pc.index_in({flat}, value_set={constants}, skip_nulls={flag})
{any}.cast({arrow_type}, safe={flag}, options=None)
{number}.cast({arrow_type}, safe={flag}, options=None)
{temporal}.cast({arrow_type}, safe={flag}, options=None)
{text}.cast({arrow_type}, safe={flag}, options=None)
{flat}.cast(None, safe=None, options=pc.CastOptions(target_type={arrow_type}, allow_int_overflow={flag}, allow_time_truncate={flag}, allow_time_overflow={flag}, allow_decimal_truncate={flag}, allow_float_truncate={flag}, allow_invalid_utf8={flag}))
pc.if_else({bool}, {any}, {same})
pc.if_else({bool}, {flat}, {value})
pc.if_else({bool}, {value}, {flat})
pc.case_when(pc.make_struct({bool}, {bool}, field_names=("p", "q")), {any}, {same}, {same})
pc.choose({int}, {same}, {same})
pc.coalesce({any}, {same})
pc.coalesce({flat}, {value})
pc.coalesce({flat}, {same}, {value})
pc.max_element_wise({ordered}, {same}, skip_nulls={flag})
pc.min_element_wise({ordered}, {same}, skip_nulls={flag})
pc.max_element_wise({number}, {number}, {value}, skip_nulls={flag})
pc.min_element_wise({number}, {number}, {value}, skip_nulls={flag})
pc.make_struct({any}, {any}, field_names=("p", "q"), field_nullability={None|[True, True]}, field_metadata=None)
pc.struct_field({struct}, indices={["x"]|[1]|"y"})
pc.list_element({list}, {0|1})
pc.list_slice({list}, start={0|1}, stop={1|2|None}, step={1|2}, return_fixed_size_list={None|True|False})
pc.list_value_length({nested})
pc.map_lookup({map}, query_key=pa.scalar("a"), occurrence={"first"|"last"|"all"})
pc.binary_join({texts}, {word})
pc.binary_join_element_wise({text}, {text}, {"-"}, null_handling={on_null}, null_replacement={"?"|""})
pc.binary_length({text})
pc.binary_length({binary})
pc.binary_repeat({text}, {count})
pc.binary_repeat({binary}, {tiny})
pc.binary_replace_slice({binary}, start={small}, stop={small}, replacement={"!"|""})
pc.binary_reverse({binary})
pc.binary_slice({binary}, start={small}, stop={small}, step={1|2})
pc.utf8_replace_slice({text}, start={small}, stop={small}, replacement={"!"|""})
pc.utf8_slice_codeunits({text}, start={small}, stop={small}, step={1|2|-1})
pc.utf8_length({text})
pc.utf8_normalize({text}, form={"NFC"|"NFKC"|"NFD"|"NFKD"})
pc.utf8_is_digit({text})
pc.utf8_is_numeric({text})
pc.string_is_ascii({text})
pc.ascii_center({text}, width={count}, padding={"*"|" "}, lean_left_on_odd_padding={flag})
pc.ascii_lpad({text}, width={count}, padding={"*"|" "}, lean_left_on_odd_padding={flag})
pc.ascii_rpad({text}, width={count}, padding={"*"|" "}, lean_left_on_odd_padding={flag})
pc.utf8_center({text}, width={count}, padding={"*"|"é"}, lean_left_on_odd_padding={flag})
pc.utf8_lpad({text}, width={count}, padding={"*"|"é"}, lean_left_on_odd_padding={flag})
pc.utf8_rpad({text}, width={count}, padding={"*"|"é"}, lean_left_on_odd_padding={flag})
pc.utf8_zero_fill({text}, width={count}, padding={"0"|"*"})
pc.ascii_trim({text}, characters={"a"|" ,"})
pc.ascii_ltrim({text}, characters={"a"|" ,"})
pc.ascii_rtrim({text}, characters={"a"|" ,"})
pc.utf8_trim({text}, characters={"a"|"é"})
pc.utf8_ltrim({text}, characters={"a"|"é"})
pc.utf8_rtrim({text}, characters={"a"|"é"})
pc.ascii_split_whitespace({text}, max_splits={None|1}, reverse={flag})
pc.utf8_split_whitespace({text}, max_splits={None|1}, reverse={flag})
pc.split_pattern({text}, pattern={","|"a"}, max_splits={None|1}, reverse={flag})
pc.split_pattern_regex({text}, pattern={","|"[ab]"}, max_splits={None|1}, reverse=False)
pc.count_substring({text}, pattern={word}, ignore_case={flag})
pc.count_substring_regex({text}, pattern={pattern}, ignore_case={flag})
pc.starts_with({text}, pattern={word}, ignore_case={flag})
pc.ends_with({text}, pattern={word}, ignore_case={flag})
pc.find_substring({text}, pattern={word}, ignore_case={flag})
pc.find_substring_regex({text}, pattern={pattern}, ignore_case={flag})
pc.match_like({text}, pattern={"a%"|"_b"|"%"|""}, ignore_case={flag})
pc.match_substring({text}, pattern={word}, ignore_case={flag})
pc.match_substring_regex({text}, pattern={pattern}, ignore_case={flag})
pc.match_substring({binary}, pattern={word}, ignore_case={flag})
pc.replace_substring({text}, pattern={"a"|","|"é"}, replacement={"!"|""}, max_replacements={None|1})
pc.replace_substring_regex({text}, pattern={pattern}, replacement={"!"|""}, max_replacements={None|1})
pc.extract_regex({text}, pattern={r"(?P<l>[ab])(?P<d>\\d?)"|"("})
pc.extract_regex_span({text}, pattern=r"(?P<l>[ab])")
pc.strptime({text}, format={"%Y-%m-%d"|"%Y-%m-%d %H:%M:%S"}, unit={"s"|"ms"|"us"|"ns"}, error_is_null={flag})
pc.strftime({moment}, format={"%Y-%m-%dT%H:%M:%S"|"%j %Z"|"%S"}, locale="C")
pc.assume_timezone({naive}, timezone={zone}, ambiguous={"raise"|"earliest"|"latest"}, nonexistent={"raise"|"earliest"|"latest"})
pc.local_timestamp({stamp})
pc.is_dst({zoned})
pc.ceil_temporal({moment}, multiple={1|3}, unit={time_unit}, week_starts_monday={flag}, ceil_is_strictly_greater={flag}, calendar_based_origin={flag})
pc.floor_temporal({moment}, multiple={1|3}, unit={time_unit}, week_starts_monday={flag}, ceil_is_strictly_greater={flag}, calendar_based_origin={flag})
pc.round_temporal({moment}, multiple={1|3}, unit={time_unit}, week_starts_monday={flag}, ceil_is_strictly_greater={flag}, calendar_based_origin={flag})
pc.day({moment})
pc.day_of_week({moment}, count_from_zero={flag}, week_start={1|7})
pc.day_of_year({moment})
pc.hour({temporal})
pc.minute({temporal})
pc.second({temporal})
pc.millisecond({temporal})
pc.microsecond({temporal})
pc.nanosecond({temporal})
pc.subsecond({temporal})
pc.month({moment})
pc.quarter({moment})
pc.year({moment})
pc.is_leap_year({moment})
pc.iso_calendar({moment})
pc.iso_week({moment})
pc.iso_year({moment})
pc.us_week({moment})
pc.us_year({moment})
pc.year_month_day({moment})
pc.week({moment}, week_starts_monday={flag}, count_from_zero={flag}, first_week_is_fully_in_year={flag})
pc.weeks_between({moment}, {same}, count_from_zero={flag}, week_start={1|7})
"""
    + "\n".join(_GENERATED)
    + "\n"
)

REFUSED: Final = """
pc.cumulative_sum(f("i64"))
pc.pairwise_diff(f("i64"))
pc.sum(f("i64"))
pc.unique(f("i64"))
pc.drop_null(f("i64"))
pc.rank(f("i64"))
pc.fill_null_forward(f("i64"))
"""
"""Not functions of one row: `arrowflow` has to refuse them."""

NOT_ROW_BY_ROW: Final = ("random",)
"""Scalar functions, by their kind, that are no functions of the row."""

"""The calls of Polars that the fuzzer makes; `calls` says how to read a line. Add a call by adding a line.

Left out is what Polars itself computes otherwise for other rows beside a row, or what ends the process (2.1):
`dt.replace` with days that a month does not have (null, or 1970 where another row is null), and ranges of any length.
The sum of an empty list of floats is 0.0 or -0.0 by the lists beside it, so the line of `list.sum` has `abs`. (To add 0
changes nothing: Polars leaves that out.)
"""

from __future__ import annotations

from typing import Final

POLARS: Final = """
{number} + {number}
{number} - {number}
{number} * {number}
{number} / {number}
{number} // {number}
{number} % {number}
{same} + {number}
{same} - {number}
{same} * {number}
{same} / {number}
{same} // {number}
{same} % {number}
{number} + {value}
{number} - {value}
{number} * {value}
{number} / {value}
{number} // {value}
{number} % {value}
{value} + {number}
{value} - {number}
{value} * {number}
{value} / {number}
{value} // {number}
{value} % {number}
{unsigned} {arithmetic} {integer}
{signed} {arithmetic} {integer}
{integer} {arithmetic} {int}
({unsigned} {arithmetic} {integer}) {compare} {integer}
pl.when({bool}).then({int}).otherwise({integer})
{number} ** {exponent}
{number}.pow({same})
{number}.truncdiv({value})
{text} + {text}
{text} + {value}
{binary} + {binary}
{bool} + {bool}
{int} + {bool}
{list} + {same}
{temporal} - {same}
{moment} - {moment}
{temporal} + {span}
{temporal} - {span}
{moment} - {value}
{span} + {value}
{span} * {number}
{span} / {number}
{span} // {same}
{span} % {same}
{span} * {exponent}
{number} {compare} {number}
{ordered} {compare} {same}
{ordered} {compare} {value}
{value} {compare} {ordered}
{temporal} {compare} {temporal}
{temporal} {compare} {value}
{nested} == {same}
{any}.eq_missing({same})
{any}.ne_missing({same})
{flat}.eq_missing({value})
{flat}.ne_missing({value})
{bool} & {bool}
{bool} | {bool}
{bool} ^ {bool}
~{bool}
{bool} & {flag}
{bool} | {flag}
{int} & {same}
{int} | {same}
{int} ^ {same}
~{int}
{int}.and_({same}, {value})
{int}.or_({same}, {value})
{int}.xor({same})
-{number}
-{span}
{number}.neg()
{number}.abs()
{span}.abs()
{number}.sign()
{number}.sqrt()
{number}.cbrt()
~{number}.exp()
~{number}.log(base={base})
~{number}.log(base={same})
~{number}.log10()
~{number}.log1p()
~{number}.sin()
~{number}.cos()
~{number}.tan()
~{number}.cot()
~{number}.arcsin()
~{number}.arccos()
~{number}.arctan()
~{number}.sinh()
~{number}.cosh()
~{number}.tanh()
~{number}.arcsinh()
~{number}.arccosh()
~{number}.arctanh()
~pl.arctan2({float}, {same})
~{number}.erf()
~{number}.erfc()
{number}.degrees()
{number}.radians()
{number}.floor()
{number}.ceil()
{number}.round(decimals={count}, mode={"half_to_even"|"half_away_from_zero"})
{number}.truncate(decimals={count})
{number}.round_sig_figs(digits={1|2|5})
{number}.clip({value}, {value})
{number}.clip(lower_bound={value}, upper_bound={same})
{number}.clip(lower_bound={same}, upper_bound=None)
{number}.clip(lower_bound=None, upper_bound={value})
{temporal}.clip({value}, {value})
{temporal}.clip({same}, {same})
{int}.bitwise_count_ones()
{int}.bitwise_count_zeros()
{int}.bitwise_leading_ones()
{int}.bitwise_leading_zeros()
{int}.bitwise_trailing_ones()
{int}.bitwise_trailing_zeros()
{number}.reinterpret(signed={flag}, dtype=None)
{number}.reinterpret(signed=None, dtype={pl.Int64|pl.UInt64|pl.Float64|pl.Int32|pl.Float32|pl.UInt8})
{any}.is_null()
{any}.is_not_null()
{number}.is_nan()
{number}.is_not_nan()
{number}.is_finite()
{number}.is_infinite()
{ordered}.is_between({value}, {value}, closed={closed})
{ordered}.is_between({same}, {value}, closed={closed})
{number}.is_close({same}, abs_tol={0.0|0.5}, rel_tol={1e-9|0.1|0.0}, nans_equal={flag})
{number}.is_close({value}, abs_tol={0.0|0.5}, rel_tol={1e-9|0.1|0.0}, nans_equal={flag})
{any}.is_in({values}, nulls_equal={flag})
{flat}.is_in({values}, nulls_equal={flag})
{number}.fill_nan({value})
{float}.fill_nan(None)
{any}.fill_null(value={same}, strategy=None, limit=None)
{flat}.fill_null(value={value}, strategy=None, limit=None)
{flat}.fill_null(strategy={"zero"|"one"}, value=None, limit=None)
{flat}.replace({values}, {value})
{flat}.replace_strict({values}, {value}, default={value}, return_dtype=None)
{flat}.replace_strict({values}, {value}, default=None, return_dtype={type})
{any}.to_physical()
{any}.hash(seed={0|7})
{flat}.repeat_by({count})
{flat}.repeat_by({tiny})
{any}.cast({type}, strict={flag}, wrap_numerical={flag})
{number}.cast({number_type}, strict={flag}, wrap_numerical={flag})
{temporal}.cast({type}, strict={flag}, wrap_numerical={flag})
{temporal}.cast({number_type}, strict={flag}, wrap_numerical={flag})
{text}.cast({type}, strict={flag}, wrap_numerical={flag})
{any}.alias("z")
{any}.name.keep()
pl.when({bool}).then({any}).otherwise({same})
pl.when({bool}).then({flat}).otherwise({value})
pl.when({bool}).then({value}).otherwise({flat})
pl.when({bool}).then({any})
pl.when({bool}).then({value}).when({bool}).then({number}).otherwise({number})
pl.when({bool}, {bool}).then({value}).when({flag}).then({flat}).otherwise({value})
{value} {compare} pl.when({any}.is_null()).then({number}).otherwise({value})
pl.when({any}.is_null()).then({number}).otherwise({value}) + {value}
pl.coalesce({any}, {same}, eager=False)
pl.coalesce({flat}, {same}, {value}, eager=False)
pl.max_horizontal({ordered}, {same})
pl.min_horizontal({ordered}, {same})
pl.max_horizontal({number}, {number}, {value})
pl.min_horizontal({number}, {number}, {value})
pl.sum_horizontal({number}, {number}, ignore_nulls={flag})
pl.mean_horizontal({number}, {number}, ignore_nulls={flag})
pl.all_horizontal({bool}, {bool})
pl.any_horizontal({bool}, {bool})
pl.concat_str({flat}, {flat}, separator={"-"|""}, ignore_nulls={flag})
pl.concat_list({any}, {same})
pl.concat_arr({ordered}, {same})
pl.struct({any}, {any}.alias("second"), schema=None, eager=False)
pl.struct(k={any}, schema=None, eager=False)
pl.format("{{}}:{{}}", {flat}, {flat})
pl.date({int}, {1|2|13}, {1|29|31})
pl.datetime({int}, 2, {int}, hour={0|23|24}, minute={int}, second=5, microsecond={int}, time_unit={unit}, time_zone={zones}, ambiguous={ambiguous})
pl.time(hour={int}, minute=2, second={int}, microsecond={int})
pl.duration(weeks={int}, days={int}, hours={int}, minutes=1, seconds={int}, milliseconds={int}, microseconds={int}, nanoseconds={int}, time_unit={unit})
pl.from_epoch({int}, time_unit={unit5})
pl.int_ranges({tiny}, {small}, step={1|2|-1}, dtype=pl.Int64, eager=False)
pl.date_ranges({date}, {same}, interval="500y", closed={closed}, eager=False)
pl.time_ranges({time}, {same}, interval="6h", closed={closed}, eager=False)
pl.business_day_count({date}, {same}, week_mask={week_mask}, holidays={holidays})
{text}.str.contains({pattern}, literal={flag}, strict={flag})
{text}.str.contains({text}, literal={flag}, strict={flag})
{text}.str.contains_any({words}, ascii_case_insensitive={flag})
{text}.str.count_matches({pattern}, literal={flag})
{text}.str.decode(encoding={"hex"|"base64"}, strict={flag})
{text}.str.encode(encoding={"hex"|"base64"})
{text}.str.starts_with({word})
{text}.str.ends_with({word})
{text}.str.starts_with({text})
{text}.str.escape_regex()
{text}.str.extract({pattern}, group_index={count})
{text}.str.extract_all({pattern})
{text}.str.extract_groups({pattern})
{text}.str.extract_many({words}, ascii_case_insensitive={flag}, overlapping={flag}, leftmost=False)
{text}.str.find({pattern}, literal={flag}, strict={flag})
{text}.str.find_many({words}, ascii_case_insensitive={flag}, overlapping={flag}, leftmost=False)
{text}.str.head({index})
{text}.str.tail({index})
{text}.str.json_decode(dtype={json_type})
{text}.str.json_path_match({json_path})
{text}.str.len_bytes()
{text}.str.len_chars()
{text}.str.normalize(form={"NFC"|"NFKC"|"NFD"|"NFKD"})
{text}.str.pad_start({count}, fill_char={"*"|"é"})
{text}.str.pad_end({count}, fill_char={"*"|"é"})
{text}.str.replace({pattern}, {word}, literal={flag}, n={1|2|0})
{text}.str.replace({pattern}, {text}, literal={flag}, n=1)
{text}.str.replace_all({pattern}, {word}, literal={flag})
{text}.str.replace_many({words}, {word}, ascii_case_insensitive={flag}, leftmost={flag})
{text}.str.reverse()
{text}.str.slice({index}, length={1|2|None|0})
{text}.str.slice({int}, length={int})
{text}.str.split({word}, inclusive={flag}, literal=True, strict=True)
{text}.str.split({pattern}, inclusive={flag}, literal=False, strict={flag})
{text}.str.split_exact({word}, n={1|2}, inclusive={flag})
{text}.str.splitn({word}, n={1|2})
{text}.str.strip_chars({word?})
{text}.str.strip_chars_start({word?})
{text}.str.strip_chars_end({word?})
{text}.str.strip_prefix({word})
{text}.str.strip_suffix({word})
{text}.str.strptime(pl.Date, format={date_format}, strict={flag}, exact={flag}, cache={flag}, ambiguous="raise")
{text}.str.strptime({pl.Datetime("us")|pl.Datetime("ms", "UTC")|pl.Datetime("ns")}, format={stamp_format}, strict={flag}, exact={flag}, cache={flag}, ambiguous={ambiguous})
{text}.str.to_date(format={date_format}, strict={flag}, exact={flag}, cache={flag})
{text}.str.to_datetime(format={stamp_format}, time_unit={unit}, time_zone={zones}, strict={flag}, exact={flag}, cache={flag}, ambiguous={ambiguous})
{text}.str.to_time(format={time_format}, strict={flag}, cache={flag})
{text}.str.to_decimal(scale={0|2})
{text}.str.to_integer(base={10|16|2}, dtype={number_type}, strict={flag})
{text}.str.to_lowercase()
{text}.str.to_uppercase()
{text}.str.to_titlecase()
{text}.str.zfill({count})
{binary}.bin.contains({value})
{binary}.bin.starts_with({value})
{binary}.bin.ends_with({value})
{binary}.bin.decode(encoding={"hex"|"base64"}, strict={flag})
{binary}.bin.encode(encoding={"hex"|"base64"})
{binary}.bin.get({index}, null_on_oob={flag})
{binary}.bin.head({index})
{binary}.bin.tail({index})
{binary}.bin.slice({index}, length={1|None})
{binary}.bin.size(unit={"b"|"kb"})
{binary}.bin.reinterpret(dtype={pl.Int64|pl.UInt8|pl.Float32}, endianness={"little"|"big"})
{moment}.dt.add_business_days({small}, week_mask={week_mask}, holidays={holidays}, roll={"raise"|"forward"|"backward"})
{moment}.dt.is_business_day(week_mask={week_mask}, holidays={holidays})
{zoned}.dt.base_utc_offset()
{zoned}.dt.dst_offset()
{temporal}.dt.cast_time_unit({unit})
{moment}.dt.century()
{moment}.dt.combine({time}, time_unit={unit})
{stamp}.dt.convert_time_zone({zone})
{stamp}.dt.date()
{moment}.dt.day()
{moment}.dt.days_in_month()
{moment}.dt.epoch(time_unit={unit5})
{temporal}.dt.hour()
{moment}.dt.is_leap_year()
{moment}.dt.iso_year()
{temporal}.dt.microsecond()
{moment}.dt.millennium()
{temporal}.dt.millisecond()
{temporal}.dt.minute()
{moment}.dt.month()
{moment}.dt.month_end()
{moment}.dt.month_start()
{temporal}.dt.nanosecond()
{moment}.dt.offset_by({offset})
{moment}.dt.ordinal_day()
{moment}.dt.quarter()
{moment}.dt.replace(year={2001|None}, month={2|None}, day={28|1}, hour={3|None}, minute={30|None}, second={59|None}, microsecond={999999|None}, ambiguous={ambiguous})
{naive}.dt.replace_time_zone({zones}, ambiguous={ambiguous}, non_existent={non_existent})
{zoned}.dt.replace_time_zone({zones}, ambiguous={ambiguous}, non_existent={non_existent})
{moment}.dt.round({every})
{moment}.dt.truncate({every})
{temporal}.dt.second(fractional={flag})
{temporal}.dt.to_string(format={show_format})
{stamp}.dt.time()
{moment}.dt.timestamp(time_unit={unit})
{span}.dt.total_days(fractional={flag})
{span}.dt.total_hours(fractional={flag})
{span}.dt.total_minutes(fractional={flag})
{span}.dt.total_seconds(fractional={flag})
{span}.dt.total_milliseconds(fractional={flag})
{span}.dt.total_microseconds(fractional={flag})
{span}.dt.total_nanoseconds(fractional={flag})
{moment}.dt.week()
{moment}.dt.weekday()
{moment}.dt.year()
{list}.list.agg(pl.element().{sum()|max()|null_count()})
{listed_b}.list.all(ignore_nulls={flag})
{listed_b}.list.any(ignore_nulls={flag})
{list}.list.arg_max()
{list}.list.arg_min()
{list}.list.concat({same})
{listed_i64}.list.contains({1|None}, nulls_equal={flag})
{listed_i64}.list.count_matches({1|None})
{numbers}.list.diff(n={1|2}, null_behavior={"ignore"|"drop"})
{list}.list.drop_nulls()
{numbers}.list.eval(pl.element() {+ 1|.sum()|.rank()|.is_null()}, parallel={flag})
{numbers}.list.filter(pl.element() > {0|1})
{list}.list.first()
{list}.list.last()
{list}.list.item(allow_empty={flag})
{list}.list.gather([0, {index}], null_on_oob={flag})
{list}.list.gather_every({1|2}, offset={count})
{list}.list.get({index}, null_on_oob={flag})
{list}.list.get({int}, null_on_oob={flag})
{list}.list.head({index})
{list}.list.tail({index})
{texts}.list.join({word}, ignore_nulls={flag})
{list}.list.len()
{list}.list.max()
{list}.list.min()
{numbers}.list.mean()
{numbers}.list.median()
{numbers}.list.std(ddof={0|1})
{numbers}.list.var(ddof={0|1})
{numbers}.list.sum().abs()
{list}.list.n_unique()
{list}.list.reverse()
{list}.list.set_difference({same})
{list}.list.set_intersection({same})
{list}.list.set_symmetric_difference({same})
{list}.list.set_union({same})
{list}.list.shift({small})
{list}.list.slice({index}, length={1|None})
{list}.list.sort(descending={flag}, nulls_last={flag})
{list}.list.to_array({1|2})
{list}.list.to_struct(["x", "y"])
{list}.list.unique(maintain_order=True)
{array}.arr.agg(pl.element().{max()|null_count()})
pl.concat_arr({bool}, {bool}).arr.all(ignore_nulls={flag})
pl.concat_arr({bool}, {bool}).arr.any(ignore_nulls={flag})
{array}.arr.arg_max()
{array}.arr.arg_min()
{array}.arr.contains({None|1|"a"}, nulls_equal={flag})
{array}.arr.count_matches({1|None|"a"})
{numbers2}.arr.dot({same})
{numbers2}.arr.eval(pl.element() + 1, as_list={flag})
{array}.arr.first()
{array}.arr.last()
{array}.arr.get({index}, null_on_oob={flag})
{array}.arr.head({1|2}, as_array={flag})
{array}.arr.tail({1|2}, as_array={flag})
{array}.arr.slice({index}, length={1|2}, as_array={flag})
{texts2}.arr.join({word}, ignore_nulls={flag})
{array}.arr.len()
{array}.arr.max()
{array}.arr.min()
{numbers2}.arr.mean()
{numbers2}.arr.median()
{numbers2}.arr.std(ddof={0|1})
{numbers2}.arr.var(ddof={0|1})
{numbers2}.arr.sum()
{array}.arr.n_unique()
{array}.arr.reverse()
{array}.arr.shift({small})
{array}.arr.sort(descending={flag}, nulls_last={flag})
{array}.arr.to_list()
{array}.arr.to_struct(fields=["x", "y"])
{array}.arr.unique(maintain_order=True)
{struct}.struct.field({"x"|"y"})
{struct}.struct.drop(["x"], strict={flag})
{struct}.struct.json_encode()
{struct}.struct.rename_fields(["p", "q"])
{struct}.struct.with_fields(pl.field("x") + 1)
{struct}.name.prefix_fields("p_")
{struct}.name.suffix_fields("_s")
{struct}.struct.eval(pl.field("x") + 1)
pl.datetime_ranges({naive}, {same}, interval="500y", closed={closed}, time_unit={unit}, time_zone=None, eager=False)
pl.linear_spaces({number}, {same}, {2|3}, closed={closed}, as_array=False, eager=False)
{text}.cast(pl.Enum(["", "a", "ab", "é"]), strict=False).cat.starts_with({word})
{text}.cast(pl.Enum(["", "a", "ab", "é"]), strict=False).cat.ends_with({word})
{text}.cast(pl.Enum(["", "a", "ab", "é"]), strict=False).cat.len_bytes()
{text}.cast(pl.Enum(["", "a", "ab", "é"]), strict=False).cat.len_chars()
{text}.cast(pl.Enum(["", "a", "ab", "é"]), strict=False).cat.slice({index}, length={1|None})
{text}.cast(pl.Enum(["", "a", "ab", "é"]), strict=False).cat.physical()
"""

REFUSED: Final = """
c("i64") - c("i64").mean()
c("i64").sum()
c("i64").min() + c("i64")
c("i64").cum_sum()
c("i64").shift(1)
c("i64").diff()
c("i64").rank()
c("i64").sort()
c("i64").reverse()
c("i64").unique()
c("i64").is_unique()
c("i64").is_duplicated()
c("i64").is_first_distinct()
c("i64").fill_null(strategy="forward")
c("i64").fill_null(strategy="min")
c("i64").fill_null(strategy="mean")
c("i64").forward_fill()
c("i64").interpolate()
c("i64").rolling_mean(2)
c("i64").ewm_mean(com=1)
c("i64").sample(1)
c("i64").shuffle()
c("i64").rle_id()
c("i64").peak_max()
c("i64").pct_change()
c("i64").over("b")
c("i64").map_batches(abs)
c("i64").map_elements(abs)
c("i64").is_in(c("i64_2"))
c("i64").replace(c("i64_2"), 1)
c("i64").replace([1, 2], c("i64_2"))
c("i64") + pl.Series([1, 2])
c("s").cast(pl.Categorical)
c("s").str.to_date()
c("s").str.join("")
c("s").str.json_decode(pl.Int64).sum()
c("list_i64").list.sample(1)
c("list_i64").list.eval(pl.element().shuffle())
c("list_i64").explode()
pl.len()
pl.int_range(0, pl.len())
pl.when(c("b").any()).then(c("i64"))
pl.corr("i64", "i64_2")
"""
"""Not functions of one row, or not provably: `arrowflow` has to refuse them, each with a reason."""

NOT_ROW_BY_ROW: Final = """
all any append approx_n_unique approx_quantile arg_max arg_min arg_sort arg_true arg_unique
backward_fill bin_intervals bin_quantiles bin_ranks bitwise_and bitwise_or bitwise_xor bottom_k bottom_k_by
count cum_count cum_max cum_min cum_prod cum_sum cumulative_eval cut diff dot drop_nans drop_nulls entropy
ewm_mean ewm_mean_by ewm_std ewm_sum ewm_sum_by ewm_var explode extend_constant filter first forward_fill
gather gather_every get has_nulls head hist implode index_of interpolate interpolate_by is_duplicated is_empty
is_first_distinct is_last_distinct is_sorted is_unique item kurtosis last len limit lower_bound map_batches
map_elements max max_by mean median min min_by mode n_unique nan_max nan_min null_count over pct_change
peak_max peak_min product qcut quantile rank reshape reverse rle rle_id rolling rolling_kurtosis rolling_map
rolling_max rolling_max_by rolling_mean rolling_mean_by rolling_median rolling_median_by rolling_min
rolling_min_by rolling_quantile rolling_quantile_by rolling_rank rolling_rank_by rolling_skew rolling_std
rolling_std_by rolling_sum rolling_sum_by rolling_var rolling_var_by sample search_sorted shift shuffle skew
slice sort sort_by std sum tail top_k top_k_by unique unique_counts upper_bound value_counts var
str.join list.explode list.sample arr.explode struct.unnest
"""
"""Methods that look at more than their row."""

NOT_CALLS: Final = """
add and_ eq floordiv ge gt le lt mod mul ne not_ or_ sub truediv
exclude deserialize inspect pipe pipe_with_dtype set_sorted map
dt.strftime list.to_map cat.to
name.map name.map_fields name.prefix name.replace name.strip_prefix name.strip_suffix name.suffix name.to_lowercase
name.to_uppercase
"""
"""Methods that are the operators above by another name, that change names, or that compute nothing."""

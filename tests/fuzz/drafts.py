"""Random plans of all operators, as texts that Python runs: what it takes to compare their ranks with the plain plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.optimizer import RULES
from tests.fuzz import named

NAMES: Final[dict[str, Any]] = {**vars(named), "af": af, "pl": pl, "pa": pa, "pc": pc}
RULE_NAMES: Final = tuple(rule.name for rule in RULES)
MOST_ROWS: Final = 2_500
MOST_ELEMENTS: Final = 100
"""Rows of which each opens a dataset."""

Unit = Literal["rows", "documents", "tokens"]


@dataclass(frozen=True)
class Draft:
    """A plan, and what ranks may make of it in parts.

    Attributes:
        text: The plan.
        limit: A plan that has each row that the parts may deliver, as often as they may: the same one, unless what an
            operator leaves out depends on the part.
        rows: Rows at most.
        exact: Whether the rows of the parts are those of the plan, not some of its limit.
        countless: Whether the number of rows, too, depends on the part.
        endless: Whether the plan has no end.
        endless_limit: Whether rows may come more often than in the limit.
        noisy: Whether `x` is drawn at random, and differently in parts.
        one_batch: Whether rows are cut into batches of a fixed size, which ranks divide; else ranks get whole batches.
        size: Rows of a batch.
        remainders: How often a part may leave out a remainder.
        unit: Parts that stay together.
        buckets: Lengths at which the next bucket begins.
    """

    text: str
    limit: str
    rows: int
    exact: bool = True
    countless: bool = False
    endless: bool = False
    endless_limit: bool = False
    noisy: bool = False
    one_batch: bool = True
    size: int = 0
    remainders: int = 1
    unit: Unit = "rows"
    buckets: tuple[int, ...] = ()
    kind: Literal["rows", "lists"] = "rows"

    def then(self, text: str, **changes: Any) -> Draft:
        """Returns the draft with an operator after it."""
        return replace(self, text=self.text + text, limit=self.limit + text, **changes)

    def losing(self, text: str, instead: str = "", **changes: Any) -> Draft:
        """Returns the draft with an operator after it whose rows, in parts, are other ones of the same input."""
        return replace(self, text=self.text + text, limit=self.limit + instead, exact=False, **changes)

    def plain(self) -> af.Dataset:
        return made(self.text)

    def __repr__(self) -> str:
        return self.text

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints, which else takes dataclasses apart."""
        printer.text(repr(self))


def made(text: str) -> af.Dataset:
    found = eval(text, dict(NAMES))
    assert isinstance(found, af.Dataset)
    return found


Draw = st.DrawFn
Step = Callable[[Draw, Draft], Draft | None]
"""Puts an operator after a draft; None where it does not fit."""

COUNTS: Final = (0, 1, 3, 15, 31, 37, 100, 160, 333, 1_600)


def pick(draw: Draw, *values: Any) -> Any:
    return draw(st.sampled_from(values))


def seeded(draw: Draw) -> str:
    """Draws an argument `seed`, or none."""
    return pick(draw, "", "seed=1", "seed=2")


# --------------------------------------------------------------------------------------------- sources


SOURCES: Final = (
    *("numbers", "numbers", "memory", "memory", "batches", "arrays", "generator", "stream"),
    *("parquet", "parquet", "parquet", "ipc", "csv", "json", "orc", "avro", "listed", "scanned"),
)


@st.composite
def sources(
    draw: Draw, first: int = 0, counts: Sequence[int] = COUNTS, kinds: Sequence[str] = SOURCES
) -> Draft:
    kind = pick(draw, *kinds)
    count = pick(draw, *counts)
    if kind in named.KINDS:
        name = pick(draw, *named.FILES)
        return source(f'files("{kind}", "{name}")', _rows_of(name))
    if kind in {"listed", "scanned"}:
        name = pick(draw, *named.FILES)
        more = f", {pick(draw, 1, 2, 4)}" if kind == "listed" else ""
        return source(f'{kind}("{name}"{more})', _rows_of(name))
    more = f", {pick(draw, 5, 64)}" if kind == "batches" else ""
    return source(f"{kind}({first}, {max(1, count) if more else count}{more})", count)


def source(text: str, rows: int) -> Draft:
    return Draft(text, text, rows)


def _rows_of(name: str) -> int:
    return sum(map(sum, named.FILES[name]))


# ------------------------------------------------------------------------------------- one row for itself


def _columns(draw: Draw, draft: Draft) -> Draft:
    return draft.then(
        pick(
            draw,
            '.with_columns(x=pl.col("id") * 0.125)',
            '.with_columns(y=pc.field("x")).drop("y")',
            '.select("id", x=pl.col("x") + 1.0)',
            '.rename({"id": "other"}).rename({"other": "id"})',
            '.cast({"x": pa.float32()}).cast({"x": pa.float64()})',
            '.fill_null({"x": 0.0})',
            ".prefetch(2)",
            ".with_options(af.Options(cpu_budget=2))",
            f'.with_options(af.Options(disabled_rules=("{pick(draw, *RULE_NAMES)}",)))',
        )
    )


def _filter(draw: Draw, draft: Draft) -> Draft:
    if draft.text.startswith("files(") and draft.text.count("(") == 1 and pick(draw, False, True):
        text = f'counted({draft.text}.filter(pl.col("id") % 7 != 3))'
        return replace(draft, text=text, limit=text)
    return draft.then(
        pick(
            draw,
            '.filter(pl.col("id") % 7 != 3)',
            '.filter(pc.field("x") >= 20.0)',
            '.filter(pl.col("id") % 50 < 25)',
            '.filter(af.hash_bucket("id", 8) != 3)',
            ".filter(keeps)",
            ".map(some, schema=SCHEMA)",
        )
    )


def _map(draw: Draw, draft: Draft) -> Draft:
    return draft.then(
        pick(
            draw,
            ".map(changed, keeps_rows=True, schema=SCHEMA)",
            ".map(changed)",
            ".map(changed, keeps_rows=True, schema=SCHEMA, num_parallel_calls=1)",
            ".map_rows(row, schema=SCHEMA)",
            '.map_rows(good_row, schema=SCHEMA, on_error="skip")',
        )
    )


def _unbatch(draw: Draw, draft: Draft) -> Draft:
    return draft.then(f".batch({pick(draw, 5, 16)}).unbatch()")


def _noise(draw: Draw, draft: Draft) -> Draft:
    seed = pick(draw, 1, 2)
    return draft.then(f".map(noisy, seed={seed}, keeps_rows=True, schema=SCHEMA)", noisy=True)


def _pieces(draw: Draw, draft: Draft) -> Draft:
    return draft.losing(".map(first_two, schema=SCHEMA)", countless=True)


def _explode(draw: Draw, draft: Draft) -> Draft:
    return draft.then(
        '.with_columns(l=pl.concat_list("id", "id")).explode("l").drop("l")', rows=draft.rows * 2
    )


def _join(draw: Draw, draft: Draft) -> Draft:
    return draft.then('.join(LOOKED_UP, "id").drop("j")')


def _more_rows(draw: Draw, draft: Draft) -> Draft | None:
    if draft.rows > MOST_ELEMENTS:
        return None
    text = pick(
        draw,
        ".flat_map(elements)",
        f".interleave(elements, cycle_length={pick(draw, 1, 3)})",
        f".interleave(elements, cycle_length=4, block_length={pick(draw, 1, 2)})",
    )
    return draft.then(text, rows=draft.rows * 3)


ORDERS_ANEW: Final = ("map", "interleave", "listed", "shuffle", "sample", "repeat")
"""Operators that `split` refuses before it: they give rows other numbers in another epoch, or may do so."""


def _split(draw: Draw, draft: Draft) -> Draft | None:
    if any(word in draft.text for word in ORDERS_ANEW):
        return None
    return draft.then(f".split([0.7, 0.3], seed={pick(draw, 0, 1)})[{pick(draw, 0, 1)}]")


def _resample(draw: Draw, draft: Draft) -> Draft:
    shares = pick(draw, "", ", [0.4, 0.3, 0.3]")
    return draft.losing(f'.rejection_resample(pl.col("id") % 3, [0.2, 0.4, 0.4]{shares}, seed=1)')


# --------------------------------------------------------------------------------- places and neighbours


def _shuffle(draw: Draw, draft: Draft) -> Draft:
    size = pick(draw, *([3, 20] if draft.rows <= 200 else [200, 500, 1_000, 2_000]))
    more = pick(draw, "", ", reshuffle_each_iteration=False")
    seed = seeded(draw)
    return draft.then(f".shuffle({size}{', ' if seed else ''}{seed}{more})")


def _global(draw: Draw, draft: Draft) -> Draft:
    """Draws an operator that reads rows by their places; what a cache keeps for it are the rows of the plan."""
    cached = pick(draw, True, True, False)
    order = f".shuffle({seeded(draw)})"
    if not cached:
        return draft.then(order)
    text, rows = draft.text + ".cache()", draft.rows
    if pick(draw, False, False, True):
        rows = pick(draw, 16, 40, 200)
        order = f'.sample({rows}, weights=pl.col("id") % 3 + 1, replacement=True, seed=1)'
    return Draft(text + order, text + order, rows)


def _cache(draw: Draw, draft: Draft) -> Draft:
    return draft.then(pick(draw, ".cache()", ".cache(cache_folder())"))


def _repeat(draw: Draw, draft: Draft) -> Draft | None:
    if "stream(" in draft.text:
        return None
    times = pick(draw, 0, 2, 3, 10)
    return draft.then(f".repeat({times})", rows=draft.rows * times)


def _whole_stream(draw: Draw, draft: Draft) -> Draft:
    count = pick(draw, 0, 1, 20, 64, 150)
    limit = pick(draw, 12, 500)
    return draft.then(
        pick(
            draw,
            f".take({count})",
            f".skip({count})",
            f".take_while(pl.col('id') < {limit})",
            '.enumerate().drop("index")',
            '.enumerate().with_columns(x=pl.col("index") * 1.0).drop("index")',
            '.unique("id")',
            ".scan(0, summed, schema=SCHEMA)",
            f".shard(2, {pick(draw, 0, 1)})",
        )
    )


# ----------------------------------------------------------------------------------------- several inputs


@st.composite
def inputs(draw: Draw, number: int) -> Draft:
    """Draws another input of an operator, with ids of its own."""
    draft = draw(sources((number + 1) * 100_000, (1, 15, 31, 160, 800)))
    for name in draw(st.lists(st.sampled_from(["columns", "filter", "repeat", "shuffle"]), max_size=1)):
        draft = grown(draw, draft, name)
    return draft


def _concatenate(draw: Draw, draft: Draft) -> Draft:
    others = [draw(inputs(number)) for number in range(pick(draw, 1, 1, 2, 9))]
    texts = [", ".join(texts) for texts in zip(*((other.text, other.limit) for other in others), strict=True)]
    return replace(
        draft,
        text=f"{draft.text}.concatenate({texts[0]})",
        limit=f"{draft.limit}.concatenate({texts[1]})",
        rows=draft.rows + sum(other.rows for other in others),
    )


def _zip(draw: Draw, draft: Draft) -> Draft:
    other = draw(inputs(0))
    texts = (
        f'af.zip({one}, {two}.select(z=pl.col("id"))).with_columns(x=pl.col("z") * 1.0).drop("z")'
        for one, two in ((draft.text, other.text), (draft.limit, other.limit))
    )
    text, limit = texts
    return replace(draft, text=text, limit=limit, rows=min(draft.rows, other.rows))


def _mix(draw: Draw, draft: Draft) -> Draft:
    others = [draw(inputs(number)) for number in range(pick(draw, 1, 2))]
    endless = pick(draw, False, False, True)
    texts = [other.text + (".repeat()" if endless else "") for other in others]
    weights = pick(draw, "", f", weights={[5, 2, 1][: len(others) + 1]}")
    stop = pick(draw, True, False) or endless
    ends = "first_exhausted" if stop else "all_exhausted_without_replacement"
    limits = ", ".join(other.limit for other in others)
    return replace(
        draft,
        text=f"af.sample_from_datasets([{', '.join([draft.text, *texts])}]{weights}, seed=1, stop={ends!r})",
        limit=f"{draft.limit}.concatenate({limits})",
        rows=draft.rows * 4 if endless else draft.rows + sum(other.rows for other in others),
        exact=draft.exact and not stop,
        endless_limit=draft.endless_limit or endless,
    )


def _choose(draw: Draw, draft: Draft) -> Draft:
    others = [draw(inputs(number)) for number in range(pick(draw, 1, 2))]
    count = pick(draw, 33, 200, 1_001)
    choose = f"], choices({count}, {len(others) + 1}), stop_on_empty_dataset={pick(draw, True, False)})"
    return replace(
        draft,
        text="af.choose_from_datasets(["
        + ", ".join([draft.text, *(other.text for other in others)])
        + choose,
        limit="af.choose_from_datasets(["
        + ", ".join([draft.limit, *(other.limit for other in others)])
        + choose,
        rows=min(count, draft.rows + sum(other.rows for other in others)),
    )


STEPS: Final[dict[str, Step]] = {
    "columns": _columns,
    "filter": _filter,
    "map": _map,
    "unbatch": _unbatch,
    "noise": _noise,
    "pieces": _pieces,
    "explode": _explode,
    "join": _join,
    "more rows": _more_rows,
    "split": _split,
    "resample": _resample,
    "shuffle": _shuffle,
    "global": _global,
    "cache": _cache,
    "repeat": _repeat,
    "whole stream": _whole_stream,
    "concatenate": _concatenate,
    "zip": _zip,
    "mix": _mix,
    "choose": _choose,
}
"""Operators on rows of (`id`, `x`)."""


def grown(draw: Draw, draft: Draft, name: str) -> Draft:
    """Returns the draft with an operator after it, unless it would have too many rows."""
    found = STEPS[name](draw, draft)
    return draft if found is None or found.rows > MOST_ROWS else found


# ---------------------------------------------------------------------------------------------- batches

SIZES: Final = (8, 16, 16, 32, 64)
TOKENS: Final = ".map(tokens, keeps_rows=True, schema=LISTS)"


def _batch(draw: Draw, draft: Draft) -> Draft:
    size = pick(draw, *SIZES)
    end = pick(draw, "", "", ", drop_remainder=True", ", pad_remainder=True")
    if "drop" in end:
        return draft.losing(f".batch({size}{end})", f".batch({size})", size=size)
    return draft.then(f".batch({size}{end})", size=size)


def _padded(draw: Draw, draft: Draft) -> Draft:
    size = pick(draw, *SIZES)
    shapes = pick(draw, "", ', padded_shapes={"tokens": 6}')
    return draft.then(f"{TOKENS}.padded_batch({size}{shapes})", size=size, kind="lists")


def _bucket(draw: Draw, draft: Draft) -> Draft:
    lag = pick(draw, "", ", max_lag_rows=200")
    text = f'{TOKENS}.bucket_by_sequence_length("tokens", [2, 4], [16, 8, 4]{lag})'
    return draft.then(text, one_batch=False, kind="lists", buckets=(2, 4))


def _group(draw: Draw, draft: Draft) -> Draft:
    return draft.then(f'.group_by_window(pl.col("id") // 5 % 7, {pick(draw, 3, 8)})', one_batch=False)


def _pack(draw: Draw, draft: Draft) -> Draft:
    size = pick(draw, 8, 16)
    strategy: Unit = pick(draw, "documents", "tokens")
    name = {"documents": "first_fit", "tokens": "concat_then_split"}[strategy]
    packed = f'.select("tokens").pack_sequences("tokens", 8, window_rows={pick(draw, 64, 4096)}, strategy="{name}")'
    made = TOKENS.replace("tokens", "some_tokens", 1) if draft.endless else TOKENS
    return draft.then(f"{made}{packed}.batch({size})", size=size, kind="lists", unit=strategy)


def _window(draw: Draw, draft: Draft) -> Draft:
    shift, drop = pick(draw, 1, 3, 4), pick(draw, True, False)
    size, by = pick(draw, 8, 16), pick(draw, "", ', by=pl.col("id") % 3')
    return draft.then(
        f".window(4, shift={shift}, drop_remainder={drop}{by}).batch({size})", size=size, kind="lists"
    )


MAKERS: Final[dict[str, Callable[[Draw, Draft], Draft]]] = {
    "batch": _batch,
    "padded": _padded,
    "bucket": _bucket,
    "group": _group,
    "pack": _pack,
    "window": _window,
}


def _after(draw: Draw, draft: Draft) -> Draft:
    """Draws an operator after the batches; one that is called with batches looks at each row for itself."""
    kind = pick(draw, "columns", "map", "prefetch", "repeat", "cache", "batch")
    if kind == "columns" and draft.unit == "rows":
        return draft.then('.with_columns(w=pl.col("id"))')
    if kind == "map" and draft.kind == "rows":
        if pick(draw, False, True):
            return draft.then(".map(noisy, seed=1, keeps_rows=True)", noisy=True)
        return draft.then(pick(draw, ".map(changed, keeps_rows=True)", ".map(some)", ".map_rows(row)"))
    if kind == "repeat" and not draft.endless:
        return draft.then(".repeat(2)", remainders=draft.remainders * 2)
    if kind == "batch":
        size = pick(draw, 8, 32)
        return draft.then(f".batch({size})", size=size, one_batch=True, buckets=())
    return draft.then(".cache()" if kind == "cache" and not draft.endless else ".prefetch(1)")


ONLY_WHOLE: Final = frozenset(
    ["generator", "stream", "batches", "split", "whole stream", "zip", "choose", "group", "window"]
)
"""Sources and operators that never run in parts."""


@st.composite
def drafts(draw: Draw, local: bool = False) -> Draft:
    """Draws a plan that ends in batches; one that most often runs in parts where `local` is true."""
    kinds, steps, makers = (
        [name for name in names if not (local and name in ONLY_WHOLE)]
        for names in (SOURCES, STEPS, ["batch"] * 6 + list(MAKERS))
    )
    draft = draw(sources(counts=COUNTS[3:] if local else COUNTS, kinds=kinds))
    for name in draw(st.lists(st.sampled_from(steps), max_size=4)):
        draft = grown(draw, draft, name)
    if pick(draw, *[False] * 7, True) and 0 < draft.rows <= 400:
        times = "" if "sample(" in draft.text else 2  # each repetition draws other rows
        limit = f"{draft.limit}.repeat({times})"
        draft = replace(draft, text=draft.text + ".repeat()", limit=limit, endless=True)
        draft = replace(draft, endless_limit=True, exact=False)
    draft = MAKERS[pick(draw, *makers)](draw, draft)
    if pick(draw, False, False, True):
        draft = _after(draw, draft)
    return draft


DRAFTS: Final = drafts()
LOCAL_DRAFTS: Final = drafts(local=True)

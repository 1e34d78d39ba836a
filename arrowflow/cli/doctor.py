"""`arrowflow doctor`: a layout of files that costs speed, what it costs, and the command that cures it.

A cure is tried before it is promised: some row groups are written anew into a temporary folder with that one change, and
both are read. So a gain is that of this machine, these data and these columns.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from arrowflow.cli.files import columns_of, dataset_of, is_target, loaded
from arrowflow.cli.inspect import facts
from arrowflow.cli.output import size, write_json, write_text
from arrowflow.cli.rewrite import has_lists
from arrowflow.cli.samples import MIB, Sample, group_rows, sample_of, sound_group_rows, target_of
from arrowflow.dataset import Dataset
from arrowflow.errors import ArrowflowError, PlanError, counted, some
from arrowflow.ops.sources.files.read import Read
from arrowflow.options import available_cpus
from arrowflow.plan.walk import post_order
from arrowflow.types import is_ordered

TINY_GROUP_BYTES: Final = MIB
"""Decoding a row group takes some 0.1 ms besides its values, as long as decoding 0.1 to 0.3 MiB."""
HUGE_GROUP_BYTES: Final = 256 * MIB
"""A call holds a whole row group, and its scratch."""
TINY_FILE_BYTES: Final = MIB
MANY_FILES: Final = 16
LONG_BYTES: Final = 1024
"""Writers leave out the ends of values that take kilobytes, and nobody filters by them."""
SKEW: Final = 8
"""The largest row group against the median one."""
NOTICED: Final = 1.1
"""The least gain that is told: a smaller one is noise."""
NOISE_SECONDS: Final = 0.003
"""The times of two samples differ by so much even if their layout is the same."""
WORTH: Final = 1.2
"""The least gain of a codec, an encoding or a type that is worth a rewrite."""
MOST_FILTERS: Final = 4
"""The most columns that are tried as filters, a second each."""
TEXTS: Final = frozenset(("csv", "json"))
COLUMNAR: Final = frozenset(("parquet", "ipc", "orc"))
SLOW_CODECS: Final = frozenset(("GZIP", "BROTLI", "ZSTD"))
TOLD: Final = ("name", "text", "cost", "gain", "filtered_gain", "growth")
"""The attributes of a finding that its JSON has."""
USUAL_ENCODINGS: Final = frozenset(("PLAIN", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED"))


@dataclass(slots=True, kw_only=True)
class Finding:
    """Something that costs speed or memory.

    Attributes:
        name: Its name, for scripts.
        text: The finding.
        cost: Its cost, where that is no time.
        cure: The options of `rewrite` that cure it.
        gain: How many times as fast the sample is read after the cure; None where that was not measured.
        least_gain: The gain from which on it is a finding.
        growth: How many times as large the files are after a cure by another codec.
        filters: Columns by which filters leave out row groups after the cure.
        filtered_gain: As `gain`, of the tenth of rows with the greatest values of one of them: the one that gains most.
    """

    name: str
    text: str
    cost: str = ""
    cure: dict[str, Any] = field(default_factory=dict)
    gain: float | None = None
    least_gain: float = 0.0
    growth: float | None = None
    filters: Sequence[str] = ()
    filtered_gain: float | None = None


def run(paths: Sequence[str], *, format: str | None, as_json: bool) -> bool:
    """Shows findings, and returns whether there are any."""
    options = [] if format is None else ["--format", format]
    reports = [_examined(words + options, source) for words, source in _sources(paths, format)]
    if as_json:
        write_json(reports)
    else:
        for report in reports:
            _show(report)
    return any(report["findings"] for report in reports)


def _sources(paths: Sequence[str], format: str | None) -> Iterator[tuple[list[str], Read]]:
    """Yields the words that name a source on a command line, and the source."""
    if len(paths) == 1 and is_target(paths[0]) and not Path(paths[0]).exists():
        target = loaded("doctor", paths[0])
        if not isinstance(target, Dataset):
            raise PlanError(f"doctor: {paths[0]} is a loader; name the dataset that it loads")
        plan = target._ready().optimised
        found = [node for node in post_order(plan) if isinstance(node, Read)]
        if not found:
            raise PlanError(f"doctor: {paths[0]} reads no files of columns")
        for source in found:
            given: Any = source.paths
            yield [str(given)] if isinstance(given, str | Path) else list(map(str, given)), source
    else:
        yield list(paths), columns_of("doctor", dataset_of("doctor", paths, format))


def _examined(words: Sequence[str], source: Read) -> dict[str, Any]:
    """Returns the report on a source, which these words name on a command line."""
    found = facts(source)
    sample = sample_of(source, found)
    findings = list(_candidates(source, found, sample))
    if sample is not None:
        with tempfile.TemporaryDirectory(prefix="arrowflow-doctor-") as folder:
            for number, finding in enumerate(findings):
                if finding.cure:
                    _try(finding, sample, Path(folder) / str(number), found["bytes"] / found["rows"])
            kept = [each for each in findings if each.gain is None or each.gain >= each.least_gain]
            cure = _together(kept)
            tried = sample.compared(sample.written(Path(folder) / "all", cure)) if cure else None
    else:
        kept = [each for each in findings if each.least_gain < WORTH]
        cure, tried = _together(kept), None
    return {
        "source": " ".join(words),
        "rows": found["rows"],
        "sample_rows": None if sample is None else sample.rows,
        "sample_seconds": tried and list(tried),
        "findings": [{name: getattr(each, name) for name in TOLD} for each in kept],
        "gain": tried and _gain(*tried),
        "cure": _command(words, cure, found) if cure else None,
    }


def _try(finding: Finding, sample: Sample, folder: Path, row_bytes: float) -> None:
    """Measures the cure of a finding; a row of the source takes so many bytes in its files."""
    written = sample.written(folder, finding.cure)
    if finding.cure.get("compression"):
        num_bytes = sum(file.stat().st_size for file in folder.iterdir())
        finding.growth = num_bytes / (row_bytes * sample.rows)
    before, after = sample.compared(written)
    finding.gain = _gain(before, after)
    for name in finding.filters:
        least = sample.greatest_tenth(name)
        if least is not None:
            with suppress(ArrowflowError):  # a type that filters do not compare
                before, after = sample.compared(written, above=(name, least))
                finding.filtered_gain = max(finding.filtered_gain or 0.0, before / after)


def _gain(before: float, after: float) -> float:
    return before / after if abs(before - after) >= NOISE_SECONDS else 1.0


# ---------------------------------------------------------------- what may cost speed


def _candidates(source: Read, found: Mapping[str, Any], sample: Sample | None) -> Iterator[Finding]:
    yield from _of_files(source, found)
    if found["format"] in TEXTS:
        yield Finding(name="text", text=f"{found['format']} is parsed in each epoch", cure={"to": "parquet"})
        return
    if not found["rows"] or found["format"] not in COLUMNAR:
        return
    yield from _of_sizes(found)
    if found["format"] == "parquet":
        yield from _of_columns(source, found)
        if sample is not None:
            yield from _of_lists(source, sample)


def _of_files(source: Read, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields files that end a run, or may: those that differ from the first one, or from what a lenient reader takes."""
    others, text = found["files_with_other_columns"], "with other columns or types than the first"
    cost = "a run that needs them ends there, unless the reader is given schema="
    if not any(source.leniency.values()):
        cost += " or missing_columns='null'"
    else:
        others, text = found["files_with_other_types"], "with other types than those to read"
        cost = cost if source.target is None else "a run ends where a value cannot be cast"
    if others:
        yield Finding(name="other-columns", text=f"{counted(others, 'file')} {text}", cost=cost)


def _of_sizes(found: Mapping[str, Any]) -> Iterator[Finding]:
    groups, files, part = found["split_bytes"], found["file_bytes"], found["split"]
    wanted = {"group_rows": group_rows(found)}
    one_each = found["splits"] <= found["files"]
    tiny_files = found["files"] >= MANY_FILES and files["median"] < TINY_FILE_BYTES
    if tiny_files:
        text = f"{counted(found['files'], 'file')} of {size(files['median'])} in the median"
        yield Finding(name="tiny-files", text=text, cure={**wanted, "merge": True}, least_gain=NOTICED)
    can_grow = 2 * found["split_rows"]["median"] <= wanted["group_rows"]
    if not one_each and groups["median"] < TINY_GROUP_BYTES and can_grow and not tiny_files:
        text = f"{counted(found['splits'], part)} of {counted(found['split_rows']['median'], 'row')}, {size(groups['median'])}"
        yield Finding(name="tiny-row-groups", text=text, cure=wanted, least_gain=NOTICED)
    if groups["most"] > HUGE_GROUP_BYTES:
        text = f"a {part} of {counted(found['split_rows']['most'], 'row')}"
        cost = f"a call holds {size(groups['most'])}, and as much again while it decodes"
        yield Finding(name="huge-row-groups", text=text, cost=cost, cure=wanted)
    elif found["bytes"] > 16 * MIB and found["splits"] < available_cpus():
        text = f"{counted(found['splits'], part)} for {counted(available_cpus(), 'core')}"
        cost = "cores stay idle"
        yield Finding(name="few-row-groups", text=text, cost=cost, cure=wanted, least_gain=WORTH)
    elif groups["most"] > SKEW * max(groups["median"], TINY_GROUP_BYTES):
        text = f"the largest {part} has {size(groups['most'])}, the median one {size(groups['median'])}"
        cost = "the others wait for it, and windows of a shuffle differ"
        yield Finding(name="skew", text=text, cost=cost, cure=wanted)


def _of_columns(source: Read, found: Mapping[str, Any]) -> Iterator[Finding]:
    assert source.schema is not None
    columns = {each["name"]: each for each in found["columns"] if "codecs" in each}
    blind = [
        name
        for name, each in columns.items()
        if each["bounds"] < 1
        and is_ordered(source.schema.field(name).type)
        and each["values_bytes"] < LONG_BYTES * found["rows"]
    ]
    if blind:
        yield Finding(
            name="no-bounds",
            text=f"no least and greatest values of {some(blind, 4)}",
            cost="a filter on them reads every row group",
            cure={"compression": None},
            filters=blind[:MOST_FILTERS],
        )
    slow = {codec for each in columns.values() for codec in each["codecs"]} & SLOW_CODECS
    if slow:
        yield Finding(
            name="compression",
            text=f"{', '.join(sorted(slow)).lower()} takes CPU to decompress",
            cure={"compression": "lz4"},
            least_gain=WORTH,
        )
    odd = [name for name, each in columns.items() if not USUAL_ENCODINGS.issuperset(each["encodings"])]
    if odd:
        kinds = sorted({kind.lower() for name in odd for kind in columns[name]["encodings"]} - {"plain"})
        yield Finding(
            name="encodings",
            text=f"{', '.join(kinds)} in {some(odd, 4)}",
            cure={"compression": None},
            least_gain=WORTH,
        )


def _of_lists(source: Read, sample: Sample) -> Iterator[Finding]:
    """Yields columns of lists that all have one size, in the sample: as fixed-size lists they are tensors."""
    assert source.schema is not None
    names = [each.name for each in source.schema if has_lists(each.type)]
    rows = sample.dataset.select([pc.field(name) for name in names]).to_table() if names else {}
    for name in names:
        count, *others = pc.unique(pc.list_value_length(rows[name])).to_pylist()
        if count and not others:
            yield Finding(
                name="fixed-size-lists",
                text=f"all lists of {name!r} in the sample have {counted(count, 'value')}",
                cost="of lists of any size, offsets are read, and loaders copy",
                cure={"fixed": [f"{name}:{count}"]},
            )


# ---------------------------------------------------------------- the cure


def _together(findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the options of one command that cures all."""
    found: dict[str, Any] = {}
    for each in findings:
        for name, value in each.cure.items():
            if name == "fixed":
                found["fixed"] = [*found.get("fixed", ()), *value]
            elif value is not None or name not in found:
                found[name] = value
    return found


def _command(sources: Sequence[str], cure: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Returns the command that writes what was tried on the sample: row groups, and files, that are no fault keep their size."""
    to, codec = target_of(found)
    words = ["arrowflow", "rewrite", *sources, "DST"]
    if to != "parquet":
        words += ["--to", to]
    words += ["--group-rows", str(cure.get("group_rows", sound_group_rows(found)))]
    files = found["files"]
    if found["format"] in COLUMNAR and files > 1 and found["file_bytes"]["median"] >= TINY_FILE_BYTES:
        words += ["--shard-rows", str(-(-found["rows"] // files))]
    words += ["--compression", cure.get("compression") or codec]
    for text in cure.get("fixed", ()):
        words += ["--fixed", text]
    return shlex.join(words)


def _show(report: Mapping[str, Any]) -> None:
    findings = report["findings"]
    if not findings:
        write_text(f"{report['source']}: nothing found that costs speed")
        return
    write_text(f"{report['source']}: {counted(len(findings), 'finding')}")
    for each in findings:
        gain = each["gain"]
        speed = ""
        if gain is not None and gain >= NOTICED:
            speed = f"read {gain:.2f} times as fast without it"
        elif gain is not None and 1 / gain >= NOTICED:
            speed = f"the cure alone takes {1 / gain:.2f} times as long to read"
        if each["growth"] is not None and each["growth"] >= NOTICED:
            speed += f", in files {each['growth']:.2f} times as large"
        filtered = each["filtered_gain"]
        if filtered is not None:
            told = (
                f"runs {filtered:.2f} times as fast" if filtered >= NOTICED else "gains nothing in the sample"
            )
            speed += ", " * bool(speed) + f"a filter for a tenth of the rows {told}"
        write_text(
            f"- {each['name']}: {each['text']}"
            + "".join(f"; {text}" for text in (each["cost"], speed) if text)
        )
    if report["cure"]:
        write_text("cure:", f"  {report['cure']}")
    if report["gain"] is not None:
        rows, (before, after) = report["sample_rows"], report["sample_seconds"]
        gain = report["gain"]
        if gain >= NOTICED:
            speed = f"{gain:.2f} times as fast"
        elif 1 / gain >= NOTICED:
            speed = f"{1 / gain:.2f} times as slow to read"
        else:
            speed = "no faster to read"
        write_text(f"tried on {counted(rows, 'row')}: {before:.3f} s before, {after:.3f} s after, {speed}")
    elif report["sample_rows"] is None:
        write_text(
            "gains are not measured: the files are not local, or one row group is too large for a sample"
        )

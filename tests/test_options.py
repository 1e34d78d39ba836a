"""`Options`: parsing of sizes, merging, defaults, and what a budget under the floor says."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import arrowflow as af
from arrowflow import options
from arrowflow.options import available_cpus, available_memory_bytes, parse_bytes
from arrowflow.testing import assert_same_batches, batches_of
from tests.ops.tables import ids, refused, write_shards


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1, 1),
        ("1", 1),
        ("10B", 10),
        ("1KB", 1_000),
        ("1KiB", 1_024),
        ("1.5 GiB", 3 << 29),
        (" 2 MB ", 2_000_000),
        ("0.5TiB", 1 << 39),
    ],
)
def test_sizes(text: int | str, expected: int) -> None:
    assert parse_bytes("ram_budget", text) == expected
    assert af.Options(ram_budget=text).ram_budget == expected


@pytest.mark.parametrize("size", ["", "1XB", "MiB", "-1MB", "1e3", "1,000", 0, -1, 1.5, True, None, b"1MB"])
def test_bad_sizes(size: Any) -> None:
    refused(af.PlanError, lambda: parse_bytes("ram_budget", size), "ram_budget")


@pytest.mark.parametrize(
    "arguments",
    [
        {"cpu_budget": 0},
        {"cpu_budget": 1.5},
        {"cpu_budget": True},
        {"max_chunk_rows": 0},
        {"max_chunk_rows": "3"},
        {"max_chunk_bytes": 0},
        {"max_chunk_bytes": "3 rows"},
        {"seed": -1},
        {"seed": 1 << 64},
        {"seed": 1.0},
        {"close_timeout": -1},
        {"close_timeout": float("nan")},
        {"ram_budget": "much"},
    ],
    ids=str,
)
def test_bad_settings_name_the_field(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    refused(af.PlanError, lambda: af.Options(**arguments), name)


@pytest.mark.parametrize(
    ("cls", "name", "hint"),
    [
        (af.Options, "ram_buget", "Options has no setting 'ram_buget'; did you mean 'ram_budget'"),
        (af.Options, "cpu_budgets", "did you mean 'cpu_budget'"),
        (
            af.RayEngine,
            "cpus_per_wroker",
            "RayEngine has no setting 'cpus_per_wroker'; did you mean 'cpus_per_worker'",
        ),
    ],
)
def test_unknown_settings_are_refused_with_the_closest(cls: Any, name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        cls(**{name: 2})


def test_later_settings_win_and_others_stay() -> None:
    early = af.Options(cpu_budget=2, seed=1, ram_budget=100)
    later = af.Options(seed=2, deterministic=False, close_timeout=0.0)
    assert early.merged(later) == af.Options(
        cpu_budget=2, seed=2, ram_budget=100, deterministic=False, close_timeout=0.0
    )
    assert early.merged(af.Options()) == early == af.Options().merged(early)


def test_falsy_settings_are_settings() -> None:
    merged = af.Options(seed=3, deterministic=True, disabled_rules=("remove_noops",)).merged(
        af.Options(seed=0, deterministic=False, disabled_rules=())
    )
    resolved = merged.resolved()
    assert (resolved.seed, resolved.deterministic, resolved.disabled_rules) == (0, False, ())


def test_defaults() -> None:
    resolved = af.Options().resolved()
    assert resolved.cpu_budget == available_cpus() >= 1
    assert resolved.ram_budget == available_memory_bytes() // 4 > 0
    assert (resolved.deterministic, resolved.seed) == (True, 0)
    assert (resolved.max_chunk_rows, resolved.max_chunk_bytes) == (None, 4 << 20)
    assert {field.name for field in dataclasses.fields(resolved)} - {"shares_ram"} == {
        field.name for field in dataclasses.fields(af.Options)
    }


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1)]
)
def test_a_cgroup_limits_the_cores(monkeypatch: pytest.MonkeyPatch, quota: str, expected: int) -> None:
    monkeypatch.setattr(options, "_cgroup_value", lambda name: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert available_cpus() == expected


@pytest.mark.parametrize(("limit", "limited"), [("max", False), (None, False), ("4096", True)])
def test_a_cgroup_limits_the_memory(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, limited: bool
) -> None:
    monkeypatch.setattr(options, "_cgroup_value", lambda name: limit)
    assert (available_memory_bytes() == 4096) is limited


def test_options_pickle_and_compare() -> None:
    some = af.Options(ram_budget="1MiB", disabled_rules=("a",))
    assert pickle.loads(pickle.dumps(some)) == some != af.Options()


def test_an_unknown_rule_is_refused_with_the_closest() -> None:
    ds = af.range(3).with_options(af.Options(disabled_rules=("prune_column",)))
    refused(af.PlanError, lambda: ds.schema, "'prune_column'", "did you mean 'prune_columns'")


def floor_of(ds: af.Dataset) -> int:
    with pytest.raises(af.BudgetError) as caught:
        batches_of(ds.with_options(af.Options(ram_budget=1)))
    found = re.search(r"ram_budget=1 bytes is under .* needs, ([\d,]+) bytes", str(caught.value))
    assert found is not None
    return int(found[1].replace(",", ""))


def test_a_budget_under_the_floor_is_refused_with_the_number() -> None:
    """Two windows of 1,000 rows of 8 bytes; with exactly that it runs, with a byte less it does not start."""
    ds = af.range(5_000).shuffle(1_000, seed=1).batch(64)
    floor = floor_of(ds)
    assert floor >= 16_000
    assert_same_batches(batches_of(ds.with_options(af.Options(ram_budget=floor))), batches_of(ds))
    under = ds.with_options(af.Options(ram_budget=floor - 1))
    refused(af.BudgetError, lambda: batches_of(under), f"{floor:,}", "shuffle", "raise the budget")


def test_the_floor_counts_every_part_of_the_plan(tmp_path: Path) -> None:
    files = af.read_parquet(write_shards(tmp_path, [[500]]))
    plain, shuffled = floor_of(files), floor_of(files.shuffle(100, seed=1))
    assert 0 < plain < shuffled < floor_of(files.shuffle(100, seed=1).repeat(2).shuffle(300))


def test_a_tiny_budget_changes_nothing() -> None:
    ds = af.range(1_000).batch(7).map(lambda batch: batch)
    assert ids(ds.with_options(af.Options(ram_budget=1))) == list(range(1_000))


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("On", True), ("0", False), ("no", False)])
def test_the_environment_sets_defaults(text: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CPU_BUDGET": " 3 ", "RAM_BUDGET": "64MiB", "PROGRESS": text}.items():
        monkeypatch.setenv(f"ARROWFLOW_{name}", value)
    found = af.range(10)._ready().options
    assert (found.cpu_budget, found.ram_budget, found.progress) == (3, 64 << 20, expected)
    assert not found.shares_ram
    own = af.range(10).with_options(af.Options(cpu_budget=1, ram_budget="8MiB", progress=not expected))
    found = own._ready().options
    assert (found.cpu_budget, found.ram_budget, found.progress) == (1, 8 << 20, not expected)


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROWFLOW_CPU_BUDGET", "")
    assert af.range(10)._ready().options.cpu_budget == available_cpus()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CPU_BUDGET", "0"),
        ("CPU_BUDGET", "all"),
        ("RAM_BUDGET", "much"),
        ("RAM_BUDGET", "0"),
        ("PROGRESS", "2"),
    ],
)
def test_a_bad_variable_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ARROWFLOW_{name}", value)
    refused(af.PlanError, lambda: af.range(10).num_rows, f"ARROWFLOW_{name}", repr(value))

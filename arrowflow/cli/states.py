"""`arrowflow state show`: where a saved state goes on, and to which pipeline it belongs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from arrowflow.cli.output import write_json, write_table, write_text
from arrowflow.errors import SourceError, StateError, counted, cut
from arrowflow.plan.node import argument_name
from arrowflow.plan.position import lanes_in, tupled
from arrowflow.state import intact

MAX_SHOWN: Final = 100
"""The most characters that are shown of an argument or a position."""


def run(file: Path, *, as_json: bool) -> bool:
    """Shows the states in a file of JSON; an altered one is an error."""
    found = list(_states(_loaded(file), ""))
    if not found:
        raise StateError("the file has no state: expected JSON of what state_dict() returned").locate(
            file=str(file)
        )
    try:
        whole = [(place, intact(state)) for place, state in found]
    except StateError as error:
        error.locate(file=str(file))
        raise
    if as_json:
        write_json([{"place": place, **_facts(state)} for place, state in whole])
    else:
        for place, state in whole:
            if place:
                write_text(f"at {place}")
            _show(_facts(state))
    return False


def _loaded(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise SourceError(f"the file cannot be read ({error.strerror})").locate(file=str(file)) from error
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"expected JSON, as of json.dump(loader.state_dict(), file), found something else ({error}); a checkpoint "
            "that is pickled, such as one of torch.save, is not opened: load it, and save the state in it as JSON"
        ).locate(file=str(file)) from error


def _states(value: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the states in a value: itself, or parts of a checkpoint, by their places."""
    if isinstance(value, dict) and {"version", "operators", "position"} <= value.keys():
        yield place, value
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from _states(each, f"{place}.{key}" if place else str(key))


def _facts(state: Mapping[str, Any]) -> dict[str, Any]:
    lanes = lanes_in(tupled(state["position"]))
    return {
        **{name: state[name] for name in ("version", "epoch", "batches", "position")},
        "lanes": None if lanes is None else [mark.lane for mark in lanes.lanes],
        "operators": [{"name": name, "arguments": given} for name, given in state["operators"]],
        "functions": sorted(state["functions"]),
    }


def _show(facts: Mapping[str, Any]) -> None:
    write_text(f"epoch {facts['epoch']}, {counted(facts['batches'], 'batch')} delivered")
    if facts["lanes"]:
        write_text(f"lanes {', '.join(map(str, facts['lanes']))}")
    write_text(f"position {cut(json.dumps(facts['position']), MAX_SHOWN)}")
    rows = []
    for operator in facts["operators"]:
        name, given = operator["name"], operator["arguments"].items()
        shown = [f"{argument_name(name, key)}={value}" for key, value in given if key != "sources"]
        rows.append((name, cut(", ".join(shown), MAX_SHOWN)))
    write_table(("operator", "arguments"), rows)

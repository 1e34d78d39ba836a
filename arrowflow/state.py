"""States, which `state_dict` returns, and the check that a state belongs to a pipeline.

A state is JSON: the position of the last delivered batch, and the identity of the pipeline. The identity consists of
operators, the arguments that decide rows and order, and digests of sources and user functions. It also holds the
shape of the physical plan, which the position follows. A state is never unpickled or executed. A digest over all of
it reveals edits and cuts.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from arrowflow.errors import StateError, shown
from arrowflow.physical.stage import Chain
from arrowflow.plan.change import Change, Changeable, expressions_of, other_expressions, without_digests
from arrowflow.plan.file_source import FileSource
from arrowflow.plan.lane import InLanes
from arrowflow.plan.node import Node, called
from arrowflow.plan.position import Position, lanes_in, listed, settled, text_of, tupled
from arrowflow.plan.shape import checked
from arrowflow.plan.traits import Resume
from arrowflow.plan.walk import post_order

VERSION = 1
_IDENTITY = ("operators", "functions", "shape")
_ANY_ORDER = "any_order"  # a part of the identity where deterministic=False
_CONTENTS = "contents"  # a part of the identity where there are files; earlier states lack it
_BORDERS = "borders"  # what decides borders that mean something; earlier states may lack it
_MOVING = ("epoch", "position", "batches")
_PARTS: Final = {
    "epoch": int,
    "batches": int,
    "operators": tuple[tuple[str, dict[str, Any]], ...],
    "functions": dict[str, str],
    "shape": tuple[Any, ...],
    _CONTENTS: dict[str, tuple[Any, ...]],
    _BORDERS: dict[str, dict[str, Any]],
    _ANY_ORDER: tuple[tuple[str, ...], ...],
}
"""The types of what a state consists of; its position has the shape that the operators declare."""
MAX_POSITION_BYTES = 60 << 10
"""Limit of the moving part of a state; with the identity of the pipeline a state stays under 64 KiB."""
MAX_ARGUMENT_CHARACTERS = 160
"""Longer arguments are kept as a digest, so that a state stays small whatever the plan says."""


def digest(value: object) -> str:
    """Returns 16 hexadecimal digits that identify a JSON value.

    Examples:
        >>> digest({"count": 3})
        'efa106b9bce852db'
    """
    return _digest_of(json.dumps(value, sort_keys=True, default=str))


def _digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def identify(plan: Node, chain: Chain, *, deterministic: bool) -> dict[str, Any]:
    """Returns the part of a state that identifies this pipeline. `plan` is bound and as written, not optimised."""
    functions = {
        f"{place}:{key}": code
        for place, node in enumerate(post_order(plan))
        for key, code in node.functions().items()
    }
    what = {
        "operators": [[node.name, _shortened(node.arguments())] for node in _identified(plan)],
        "functions": functions,
        "shape": chain.shape(),
    }
    sources = [(str(at), node) for at, node in enumerate(_identified(plan)) if isinstance(node, FileSource)]
    if contents := {number: list(found) for number, node in sources if (found := node.contents())}:
        what[_CONTENTS] = contents
    what[_BORDERS] = _borders(_identified(plan))
    if not deterministic:
        what[_ANY_ORDER] = chain.stages_of_any_order()
    # The digest of the unchanging part is kept, so that a state costs one small digest.
    return {**what, "plan": digest(what)}


def _identified(plan: Node) -> list[Node]:
    """Returns the nodes that a state names."""
    return [node for node in post_order(plan) if node.arguments() or node.inputs]


def _borders(nodes: Sequence[Node]) -> dict[str, Any]:
    """Returns what decides the borders that operators see or count, by their numbers."""
    return {str(number): _shortened(found) for number, node in enumerate(nodes) if (found := node.borders())}


def _shortened(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        if len(json.dumps(value, default=str)) <= MAX_ARGUMENT_CHARACTERS
        else f"digest {digest(value)}"
        for key, value in arguments.items()
    }


def pack(identity: Mapping[str, Any], epoch: int, position: Position, batches: int) -> dict[str, Any]:
    """Returns the state of an iterator that has delivered the batch at `position`.

    Raises:
        StateError: The position holds what JSON does not give back unchanged, or the state is too large: the parts of
            several operators add up.
    """
    moving = {"epoch": epoch, "batches": batches}

    def told(place: Any) -> str:
        return json.dumps([identity["plan"], {**moving, "position": place}], sort_keys=True, allow_nan=False)

    try:
        position = settled(position)
        moving["position"] = listed(position)  # once: without an order it grows while the run goes on
        text = text_of(position, moving["position"], told)
    except (TypeError, ValueError) as error:
        raise StateError(
            f"the position {repr(position)[:200]} holds what JSON does not give back unchanged ({error}); expected texts, "
            f"finite numbers of Python, booleans and None: one of the operators {_operators(identity)} keeps it, and has "
            "to put a text in its place; please report this"
        ) from None
    if len(text) > MAX_POSITION_BYTES:
        raise StateError(
            f"the position takes {len(text):,} bytes as JSON, and a state has room for {MAX_POSITION_BYTES:,}; the "
            f"operators {_operators(identity)} keep their positions in it: keep less "
            "in the states of `scan`, or open fewer datasets at the same time"
        )
    return {"version": VERSION, **identity, **moving, "digest": _digest_of(text)}


def _operators(identity: Mapping[str, Any]) -> str:
    return ", ".join(name for name, _ in identity["operators"])


def unpack(
    state: object, identity: Mapping[str, Any], plan: Node, *, strict: bool = True
) -> tuple[int, Position, int]:
    """Returns (epoch, position, batches) of a state that belongs to the pipeline that `identity` describes.

    Args:
        state: The state.
        identity: The pipeline.
        plan: Its plan, bound and as written. Lanes that it runs and that the state lacks are warned of.
        strict: Whether a change that the state can go on in spite of is an error, too, and no warning.

    Raises:
        StateError: The state was altered, has another version, or belongs to another pipeline; the message says what
            differs.
    """
    found = intact(state)
    texts = _compare(found, _plain(identity), plan, strict=strict)
    position = tupled(found["position"])
    texts += _missing_lanes(position, plan)
    texts += _changed_functions(found["functions"], identity["functions"])
    for text in texts:
        warnings.warn(text, UserWarning, stacklevel=4)
    return int(found["epoch"]), position, int(found["batches"])


def intact(state: object) -> Mapping[str, Any]:
    """Returns a state that was not altered, and whose parts have the types that they should have.

    Raises:
        StateError: It was, or has another version.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"expected what state_dict() returned, got {type(state).__name__}")
    if "version" not in state:
        raise StateError(f"expected what state_dict() returned, got {_keys_of(state)}")
    if state["version"] != VERSION:
        raise StateError(f"the state has format version {state['version']}, this release reads {VERSION}")
    moving = {key: state.get(key) for key in _MOVING}
    what = {key: state.get(key) for key in _IDENTITY}
    what |= {key: state[key] for key in (_CONTENTS, _BORDERS, _ANY_ORDER) if key in state}
    try:
        is_whole = (
            "position" in state
            and state.get("plan") == digest(what)
            and state.get("digest") == digest([state["plan"], moving])
        )
    except (RecursionError, TypeError, ValueError):  # no JSON
        is_whole = False
    if not is_whole:
        raise StateError(
            "the state was altered or cut after state_dict() returned it; take it from the original"
        )
    for part, kind in _PARTS.items():
        if part in state or part in (*_MOVING, *_IDENTITY):
            checked(state.get(part), kind, part)
    return state


def _keys_of(value: Mapping[Any, Any]) -> str:
    """Returns a dict that is no state in words, and where in it a state is."""
    listed = [shown(key) for key in itertools.islice(value, 10)]
    text = f"a dict without 'version', with the keys [{', '.join(listed)}{', …' if len(value) > 10 else ''}]"
    within = [key for key, each in value.items() if isinstance(each, Mapping) and "version" in each]
    return text + (f"; a state may be what it has as {shown(within[0])}" if within else "")


def _missing_lanes(position: Position, plan: Node) -> list[str]:
    """Returns a warning of lanes that a position lacks, if they run again from the start.

    Raises:
        StateError: The next batch of these lanes does not follow from the number of steps.
    """
    at = lanes_in(position)
    found = set() if at is None else {mark.lane for mark in at.lanes}
    for node in [node for node in post_order(plan) if isinstance(node, InLanes)]:
        missing = sorted(set(node.own_lanes) - found)
        again = node.lanes_from_start(missing, at.step) if at is not None and missing else ()
        if at is not None and again:
            return [
                f"the state of another rank has no places for the lanes {', '.join(map(str, again))}; they run from the "
                f"start of the epoch up to step {at.step:,}, which takes as long as it took before; to save that, merge "
                "the states of all ranks by af.merge_states"
            ]
    return []


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns one state for all ranks of a pipeline that ends in `split_by_rank`, from the states of its ranks.

    Any number of processes can load it, one process too: the lanes of all ranks are in it.

    Args:
        states: The results of `state_dict` on each rank after the same number of steps.

    Raises:
        StateError: A state was altered, or two states belong to other pipelines, epochs or steps; the message says
            which.

    Examples:
        >>> import arrowflow as af
        >>> def rank(number, size):
        ...     return af.range(64).batch(16).split_by_rank(number, size)
        >>> ranks = [iter(rank(number, 2)) for number in range(2)]
        >>> before = [next(each)["id"].to_pylist() for each in ranks]
        >>> merged = af.merge_states([each.state_dict() for each in ranks])
        >>> alone = iter(rank(0, 1))
        >>> alone.load_state_dict(merged)
        >>> before, next(alone)["id"].to_pylist() == [4 * lane + 1 for lane in range(16)]
        ([[0, 4, 8, 12, 16, 20, 24, 28], [32, 36, 40, 44, 48, 52, 56, 60]], True)
    """
    found = [intact(state) for state in states]
    if not found:
        raise StateError("merge_states: expected the states of all ranks, got none")
    first = found[0]
    position = first["position"]
    for number, state in enumerate(found[1:], start=1):
        for key in ("plan", "epoch", "batches"):
            if state[key] != first[key]:
                what = "another pipeline" if key == "plan" else f"{key} {state[key]} in place of {first[key]}"
                raise StateError(
                    f"merge_states: state {number} is of {what} than state 0; take the states of all ranks after the same "
                    "step"
                )
        # Without lanes each rank has a place of the plan, in chunks of its own.
        if lanes_in(tupled(position)) is not None:
            position = _merged(position, state["position"], number)
    moving = {"epoch": first["epoch"], "position": position, "batches": first["batches"]}
    return {**first, **moving, "digest": digest([first["plan"], moving])}


def _merged(one: Any, other: Any, number: int) -> Any:
    """Returns a position of two states as JSON: the lanes of both, and all else, which has to be equal."""
    if _are_lanes(one) and _are_lanes(other) and one["step"] == other["step"]:
        lanes = {**one["lanes"], **other["lanes"]}
        if all(lanes[lane] == mark for lane, mark in one["lanes"].items()):
            return {"step": one["step"], "lanes": lanes}
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_merged(mine, its, number) for mine, its in zip(one, other, strict=True)]
    elif one == other:
        return one
    raise StateError(
        f"merge_states: state {number} is of another place than those before it; take the states of all ranks after the "
        "same step"
    )


def _are_lanes(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {"step", "lanes"}


def _compare(found: Mapping[str, Any], expected: Mapping[str, Any], plan: Node, *, strict: bool) -> list[str]:
    """Returns what follows from the changes that a state can go on in spite of.

    Raises:
        StateError: There is another difference, or such a change although `strict`.
    """
    here, there = (_without_last_options(each["operators"]) for each in (expected, found))
    nodes = _identified(plan)
    effects, refused = [], ""
    for index, (mine, theirs) in enumerate(itertools.zip_longest(here, there)):
        if mine == theirs:
            continue
        change = None if mine is None or theirs is None else _change(nodes[index], theirs)
        contents = found.get(_CONTENTS, {}).get(str(index))
        if mine is None or theirs is None:
            number = index + 1
            differs = f"{_told(number, mine, 'this pipeline')}, and {_told(number, theirs, 'the pipeline of the state')}"
        else:
            differs = f"operator {index + 1}{_difference(nodes[index], mine, theirs, contents, goes_on=change is not None)}"
        error = f"the state belongs to another pipeline: {differs}"
        if change is None:
            raise StateError(error)
        obstacle = _obstacle(plan, nodes[index], change)
        if obstacle:
            raise StateError(f"{error}; strict=False would not go on either: {obstacle}")
        refused = refused or error
        effects.append(f"{nodes[index].name} {change.effect}")
    if found["shape"] != expected["shape"]:
        raise StateError(
            "the state was taken under other optimizer rules: its position follows "
            f"{found['shape']}, this pipeline runs {expected['shape']}; use the same Options.disabled_rules"
        )
    _compare_order(found.get(_ANY_ORDER), expected.get(_ANY_ORDER))
    _compare_contents(found.get(_CONTENTS, {}), nodes)
    _compare_borders(found.get(_BORDERS), nodes)
    if effects and expected.get(_ANY_ORDER) is not None:
        raise StateError(f"{refused}; with deterministic=False strict=False would not go on either")
    if effects and strict:
        raise StateError(f"{refused}; load_state_dict(…, strict=False) goes on: {'; '.join(effects)}")
    return [f"the pipeline has changed since the state was taken: {effect}" for effect in effects]


def _compare_contents(found: Mapping[str, Any], nodes: Sequence[Node]) -> None:
    """Raises `StateError` if files were rewritten: the rows before a place would be others than those delivered."""
    for number, node in enumerate(nodes):
        then = found.get(str(number))
        change = node.changed_contents(then) if then and isinstance(node, FileSource) else None
        if change is not None:
            raise StateError(
                f"{node.name}: {change} than when the state was taken, though its size is the same: it was written again; "
                "put the old version back, or start the epoch anew"
            ).locate(operator=node.name)


def _compare_borders(found: Mapping[str, Any] | None, nodes: Sequence[Node]) -> None:
    """Raises `StateError` if rows were cut elsewhere: a position counts pieces or batches, and a function sees them whole."""
    borders = _borders(nodes)
    for number, node in enumerate(nodes):
        name = node.name
        here = borders.get(str(number), {})
        there = _plain(here) if found is None else found.get(str(number), {})
        if found is None and "pieces" in here:
            raise StateError(
                f"{name}: the state was taken by an earlier release, which cut the rows for functions elsewhere; finish the "
                "epoch there, or start it anew"
            ).locate(operator=name)
        if there != _plain(here):
            raise StateError(
                f"{name}: {_cut_otherwise(here, there)}, since rows would be lost or come twice"
            ).locate(operator=name)


def _cut_otherwise(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Returns what differs between borders here and those of a state, and what to do."""
    if "batches" in here or "batches" in there:
        mine, theirs = (_batches(each.get("batches")) for each in (here, there))
        return f"its rows come in {mine}, and came in {theirs} when the state was taken; give it the same record batches"
    return (
        f"its rows are cut by {here}, and when the state was taken by {there}; use the same Options(max_chunk_rows=, "
        "max_chunk_bytes=), and the same batch and shuffle after a function"
    )


def _batches(rows: list[int] | str | None) -> str:
    if rows is None:
        return "one record batch"
    return f"record batches {f'of {rows} rows' if isinstance(rows, list) else f'whose rows have the {rows}'}"


def _compare_order(found: list[Any] | None, expected: list[Any] | None) -> None:
    """Raises `StateError` unless rows came in any order of the same stages, or came in order and do so here."""
    if found == expected:
        return
    if found is None or expected is None:
        raise StateError(
            f"the state was taken with deterministic={found is None}, and this pipeline runs with "
            f"deterministic={expected is None}; use the same option"
        )
    raise StateError(
        f"with deterministic=False a state fits only the stages that it was taken with: {found} there, {expected} here; "
        "use the same num_parallel_calls, executor and prefetch"
    )


def _change(node: Node, theirs: Sequence[Any]) -> Change | None:
    """Returns the change of an operator, if that is all in which the state differs."""
    name, arguments = theirs
    change = node.change_since(arguments) if name == node.name and isinstance(node, Changeable) else None
    return None if change is None or _plain(_shortened(change.arguments)) != arguments else change


def _obstacle(plan: Node, changed: Node, change: Change) -> str | None:
    """Returns why a state cannot go on in spite of a change."""
    rows: int | None = 0
    for node in _readers(plan, changed):
        rows = None if rows is None else node.rows_again(rows)
        if rows is None or (rows > 1 and not change.repeats):
            return (
                f"{node.name} comes after {changed.name}, and which rows it has delivered follows from rows that would "
                "be others now, so some would be lost and some would come twice"
            )
    return None


def _readers(plan: Node, node: Node) -> list[Node]:
    """Returns the operators that read from a node, from the end of the plan on."""
    if plan is node:
        return []
    child = next(each for each in plan.inputs if any(one is node for one in post_order(each)))
    return [plan, *_readers(child, node)]


def _changed_functions(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Returns a warning of user functions whose code has changed."""
    changed = {key.split(":", 1)[1] for key, code in expected.items() if found.get(key) != code}
    if not changed:
        return []
    operators = ", ".join(sorted(changed))
    return [
        f"the code of a user function has changed since the state was taken, or a number, text, tuple or array that it "
        f"refers to ({operators}); rows from here on are made by the new function"
    ]


def _without_last_options(operators: Sequence[Any]) -> Sequence[Any]:
    """Returns operators without `with_options` at the end, which changes no row and no number of an operator."""
    numbers = (number for number, (name, _) in enumerate(operators, start=1) if name != "with_options")
    return operators[: max(numbers, default=0)]


def _told(number: int, operator: Any, pipeline: str) -> str:
    told = f"operator {number}"
    return f"{pipeline} has no {told}" if operator is None else f"{told} of {pipeline} is {_shown(operator)}"


def _difference(node: Node, mine: Any, theirs: Any, contents: Any, *, goes_on: bool) -> str:
    """Returns how an operator, with its name and arguments, differs from that of a state, as the rest of a sentence.

    Args:
        node: The operator here.
        mine: Its name and arguments, as a state holds them.
        theirs: Those in the state.
        contents: The state's digests of the contents of its files.
        goes_on: Whether the state can go on in spite of it.
    """
    if mine[0] == theirs[0]:
        files = ""
        if isinstance(node, FileSource) and not goes_on:
            files = _other_files(node, mine[1], theirs[1], contents)
        if text := files or other_expressions(node, theirs[1]):
            return text
    here = node.describe() if expressions_of(node) else _shown(mine)
    return f" is {here} here and {_shown(theirs)} in the state"


def _other_files(node: FileSource, mine: Mapping[str, Any], theirs: Mapping[str, Any], contents: Any) -> str:
    """Returns how the files of a source differ where a state holds but a digest of their names and sizes; else nothing."""
    rest, other = ({**told, "files": None, "sources": None} for told in (mine, theirs))
    before, now = theirs.get("files"), mine.get("files")
    if rest != other or not _is_shortened(theirs.get("sources")):
        return ""
    if not isinstance(before, int) or not isinstance(now, int):
        return ""
    count = abs(now - before)
    if not count:
        text = f"{now:,} files, as many as in the state, but since then one or more were renamed, replaced or changed in size"
    else:
        happened = f"{'file was' if count == 1 else 'files were'} {'added' if now > before else 'removed'} since then"
        text = f"{now:,} files here and {before:,} in the state, so at least {count:,} {happened}"
    named = (node.files_since(contents) if contents else None) or (
        "the state holds their names and sizes as one digest, so it cannot name them"
    )
    return f" ({node.name}) reads {text}; {named}; put the files back as they were, or start the epoch anew"


def _is_shortened(value: object) -> bool:
    return isinstance(value, str) and value.startswith("digest ")


def _shown(operator: Any) -> str:
    """Returns an operator of a state as it is written, without digests of expressions and of lists of files."""
    name, arguments = operator
    kept = {key: each for key, each in arguments.items() if key != "sources" or not _is_shortened(each)}
    return without_digests(called(name, kept))


def check_resumable(plan: Node, chain: Chain, *, deterministic: bool) -> None:
    """Raises `StateError` where no state can be taken, and names the operator that stands in the way."""
    if not deterministic and (name := chain.mixes_any_order) is not None:
        raise StateError(
            f"{name}: with deterministic=False its inputs come in any order, so a state has no place to return to; leave "
            "the option out"
        ).locate(operator=name)
    for node in post_order(plan):
        if not deterministic and isinstance(node, InLanes) and node.own_lanes:
            why = (
                "with deterministic=False ranks have no batches in common, so there is no state for all of them; leave the "
                "option out"
            )
        elif node.traits.resume is not Resume.NONE:
            continue
        elif node.inputs:
            why = "with deterministic=False it keeps no order, so a state has no place to return to"
        else:
            why = (
                "a one-shot stream cannot be read again from its start; give `from_arrow` something that can (a table, a "
                "list of batches, a dataset), or write it to a file first"
            )
        raise StateError(f"{node.name}: {why}").locate(operator=node.name)


def _plain(value: Any) -> Any:
    """Returns a value as it is after a round trip through JSON, in which a stored state comes back."""
    return json.loads(json.dumps(value, default=str))

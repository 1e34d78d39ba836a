"""Forged states: a part has another value, and the digests fit it. Loading one is a `StateError`, or a run that ends."""

from __future__ import annotations

import copy
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from arrowflow.dataset import Dataset
from arrowflow.errors import DataError, FunctionError, StateError
from arrowflow.state import digest

Path = tuple[str | int, ...]
"""Keys and numbers that lead to a part of a state."""

VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    1,
    7,
    64,
    1 << 31,
    1 << 62,
    (1 << 62) + 1,
    1 << 80,
    0.5,
    "x",
    "0",
    [],
    [0],
    [[]],
    {},
    {"lanes": {}},
)
"""Other values of a part."""

MOVING: Final = ("epoch", "position", "batches")
MAX_BATCHES: Final = 12


def paths_in(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yields the way to each part of a JSON value, and to the value itself.

    Examples:
        >>> list(paths_in({"a": [5]}))
        [(), ('a',), ('a', 0)]
    """
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from paths_in(each, (*path, key))


def forged(state: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Returns a state in which a part has another value, with the digests that fit.

    Examples:
        >>> import arrowflow as af
        >>> state = iter(af.range(3)).state_dict()
        >>> forged(state, ("epoch",), 5)["epoch"]
        5
    """
    found = copy.deepcopy(dict(state))
    *way, last = path
    at: Any = found
    for key in way:
        at = at[key]
    at[last] = value
    plan = {key: each for key, each in found.items() if key not in (*MOVING, "version", "plan", "digest")}
    found["plan"] = digest(plan)
    found["digest"] = digest([found["plan"], {key: found.get(key) for key in MOVING}])
    return found


def check_forged(make: Callable[[], Dataset], state: Mapping[str, Any], *, stride: int = 1) -> None:
    """Checks that no value of a part that says where a run is makes it fail in another way, or go on for ever.

    It may end where the operator, or a user's function, refuses the rows or the value that come from there on.

    Args:
        make: Builds the dataset.
        state: One of its states, as JSON.
        stride: Of so many forged states one is tried.
    """
    paths = [path for path in paths_in(state) if path and path[0] in MOVING]
    tries = [(path, value) for path in paths for value in VALUES]
    for path, values in itertools.groupby(tries[::stride], key=operator.itemgetter(0)):
        dataset = make()  # one for all values of a place: to bind a plan takes longer than to refuse a state
        for _, value in values:
            try:
                load(dataset, forged(state, path, value))
            except (StateError, DataError, FunctionError):
                continue
            except Exception as error:
                raise AssertionError(f"a state with {value!r} at {path} ends in {error!r}") from error


def load(dataset: Dataset, state: Mapping[str, Any]) -> None:
    """Loads a state, and takes a few batches."""
    with iter(dataset) as iterator, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iterator.load_state_dict(state)
        for _ in zip(range(MAX_BATCHES), iterator, strict=False):
            pass

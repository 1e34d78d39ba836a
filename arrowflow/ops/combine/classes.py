"""Classes and their shares: how users give them, chunks with the class of each row, and the probability to keep a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, shown
from arrowflow.expr import Expr
from arrowflow.kernels.items import Noted
from arrowflow.lazy import compute as pc
from arrowflow.ops.columns.fill_null import holds
from arrowflow.types import convert, normalise, scalar

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Shares = tuple[float, ...]
Labels = tuple[Any, ...]

MAX_COUNTED_CLASSES = 1000
"""A state holds up to three counts of each class, 13 bytes apiece, and has to stay under 64 KiB."""


def acceptance(target: Shares, initial: Floats) -> Floats:
    """Returns the probability to keep a row, by class (the last axis); the shares need not sum to 1."""
    # Scaling by powers of two changes no ratio, and keeps ratios finite where both shares are huge, or both tiny.
    wanted = np.array(target)
    wanted, initial = (np.ldexp(x, -np.frexp(x.max(axis=-1, keepdims=True))[1]) for x in (wanted, initial))
    ratio = np.divide(wanted, initial, out=np.zeros(initial.shape), where=wanted > 0)
    best: Floats = ratio / ratio.max(axis=-1, keepdims=True)
    return best


def check_shares(target: object, initial: object) -> tuple[Labels | None, Shares, Shares | None]:
    """Returns the classes, unless they are whole numbers from 0 on, and the shares, as a node holds them.

    Raises:
        PlanError: The arguments are no shares, do not fit each other, or cannot be reached.
    """
    labels, wanted = _shares("target_dist", target)
    if initial is None:
        if len(wanted) > MAX_COUNTED_CLASSES:
            raise PlanError(
                f"rejection_resample: the shares of at most {MAX_COUNTED_CLASSES:,} classes are estimated, "
                f"target_dist has {len(wanted):,}; give initial_dist"
            )
        return labels, wanted, None
    others, given = _shares("initial_dist", initial)
    if len(given) != len(wanted):
        raise PlanError(
            f"rejection_resample: target_dist has {len(wanted)} shares and initial_dist {len(given)}, expected one of "
            "each for each class"
        )
    if labels is not None or others is not None:
        by_class = dict(zip(_classes(others, given), given, strict=True))
        if set(by_class) != set(_classes(labels, wanted)):
            raise PlanError(
                f"rejection_resample: target_dist has the classes {list(_classes(labels, wanted))} and initial_dist "
                f"{list(by_class)}, expected the same"
            )
        given = tuple(by_class[label] for label in _classes(labels, wanted))
    classes = _classes(labels, wanted)
    missing = [classes[number] for number, share in enumerate(wanted) if share > 0 and given[number] == 0]
    if missing:
        raise PlanError(
            f"rejection_resample: target_dist wants rows of the classes {missing}, of which initial_dist says that "
            "there are none"
        )
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        kept = acceptance(wanted, np.array(given, np.float64))
    if not np.isfinite(kept).all():
        far = f"{list(wanted)} are too far from {list(given)} for a float"
        raise PlanError(f"rejection_resample: the shares {far}")
    return labels, wanted, given


def _classes(labels: Labels | None, shares: Shares) -> Labels:
    return tuple(range(len(shares))) if labels is None else labels


def _shares(what: str, values: Any) -> tuple[Labels | None, Shares]:
    labels, given = None, values
    try:
        if isinstance(values, Mapping):
            plain = (label.item() if isinstance(label, np.generic) else label for label in values)
            by_class = dict(zip(plain, values.values(), strict=True))
            if set(by_class) != set(range(len(by_class))):
                labels, values = tuple(by_class), by_class.values()
            else:
                values = [by_class[label] for label in range(len(by_class))]
        elif isinstance(values, Set):
            raise TypeError("a set has no order")
        shares = tuple(fsum((value,)) for value in values)  # `float` would read texts
    except (TypeError, ValueError, LookupError) as error:
        raise PlanError(
            f"rejection_resample: {what} is a list of shares, one a class, or a mapping that gives each class its share, got "
            f"{shown(given)}"
        ) from error
    if not all(0 <= share < float("inf") for share in shares) or not sum(shares) > 0:
        raise PlanError(
            f"rejection_resample: {what} is a list of shares, not negative and not all zero, got {list(shares)}"
        )
    return labels, shares


@dataclass(slots=True)
class Classed(Noted):
    """A chunk with the class of each row."""

    classes: Integers


def values_of(label: Expr, classes: Sequence[Any], type: pa.DataType) -> pa.Array:
    """Returns the classes as values of the type that `label` has; an enum's values are texts.

    Raises:
        PlanError: A class is no value of this type.
    """
    type = normalise(type)
    for value in classes:
        if not holds(type, value):
            raise PlanError(f"the class {label!r} is {type}, which does not hold {shown(value)}")
    return pa.concat_arrays([pa.repeat(scalar(value, type), 1) for value in classes])


def numbers_of(label: Expr, classes: Sequence[Any], column: pa.Array) -> Integers:
    """Returns for each value of a column without nulls its place among the classes.

    Raises:
        DataError: A value is none of the classes.
    """
    column = convert(column, normalise(column.type))
    numbers = pc.index_in(column, value_set=values_of(label, classes, column.type))
    if numbers.null_count:
        value = column.filter(numbers.is_null())[0].as_py()
        raise DataError(
            f"the class {label!r} is {value!r}, expected one of {list(classes)}, which have shares"
        )
    found: Integers = numbers.to_numpy().astype(np.int64)
    return found

"""User functions: names, code digests, calls, also of classes as functions, and the checks of a function and of its result.

A call takes an idle instance of a class, or makes a new one if no instance is idle. So two calls never use one instance at
once, and there are never more instances than calls at the same time. With `num_parallel_calls=1` there is one instance. An
instance stays with one thread for its life (`kernels.instances`), so that it may hold what belongs to a thread, such as a
connection of `sqlite3`. Instances belong to an operator in one run and not to a kernel, since `repeat` makes new kernels
in each repetition. A run is one iteration over the dataset; the next makes new instances.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import operator
import pathlib
import re
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.caching.fingerprint.code import code_parts, names_in, nested
from arrowflow.caching.fingerprint.data import write_data
from arrowflow.caching.fingerprint.encoder import Encoder
from arrowflow.caching.fingerprint.values import write_container, write_plain
from arrowflow.errors import FingerprintError, FunctionError, PlanError, SchemaError, said, shown
from arrowflow.interchange.enums import as_enum
from arrowflow.kernels.instances import Lender
from arrowflow.ops.combine.elements import operator_key

MAX_DIGESTED_BYTES: Final = 16 << 20
"""Of larger arrays that a function refers to, so many bytes are digested."""

MAX_OBJECTS: Final = 10_000
"""Of larger arrays of objects, so many are digested."""

_CHANGES: Final = object()
"""Stands for a value that may change while a run goes on."""

_BY_TEXT = (
    *(decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta),
    *(datetime.tzinfo, range, slice, uuid.UUID, pathlib.PurePath, re.Pattern, np.dtype),
    *(pa.DataType, pl.DataType),
)
"""Types whose values cannot change, and whose `repr` tells them."""

_VALUES = (bool, int, float, complex, str, bytes, np.generic, pa.Array, pa.ChunkedArray, pa.Scalar, pl.Series)


def function_name(fn: Callable[..., Any]) -> str:
    """Returns the name by which a person knows a function.

    Examples:
        >>> function_name(len)
        'len'
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__qualname__", type(fn).__qualname__).replace("<locals>.", "")


def code_digest(fn: Callable[..., Any]) -> str:
    """Returns a digest of a function's code and values: instructions, constants and names, not comments or line numbers.

    For a class the digest covers all methods; for an object that can be called, those of its class. Of the variables of
    its closure, globals that it reads, defaults and arguments of `partial` it covers numbers, texts, dates and the like,
    members of enumerations, types, tuples, frozen dataclasses and arrays. It covers neither the functions that it calls, nor lists, dicts, attributes of objects and variables that the function sets:
    these may change while a run goes on.

    Examples:
        >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 1)
        True
        >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 2)
        False
        >>> code_digest(lambda x, by=1: x + by) == code_digest(lambda x, by=2: x + by)
        False
    """
    values: list[tuple[str, Any]] = []
    while isinstance(fn, functools.partial):
        values += [(f"argument {index}", value) for index, value in enumerate(fn.args)]
        values += fn.keywords.items()
        fn = fn.func
    if isinstance(fn, type):
        text = repr(_methods(fn))
    else:
        code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
        text = function_name(fn) if code is None else repr(code_parts(code))
        values += _variables(getattr(fn, "__func__", fn))
    encoder = Encoder((write_plain, write_container, write_data))
    compared = [(name, _compared(value)) for name, value in values]
    for name, value in sorted(compared, key=operator.itemgetter(0)):
        if value is not _CHANGES:
            with contextlib.suppress(FingerprintError):  # such as a series of objects
                text += f"{name} {encoder.digest_of(value, name).hex()}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _variables(fn: Any) -> Iterator[tuple[str, Any]]:
    """Yields the variables that a function reads and does not set: of its closure, its module and its defaults."""
    if not isinstance(fn, types.FunctionType):
        return
    code = fn.__code__
    instructions = [each for inner in nested(code) for each in dis.get_instructions(inner)]
    sets = {each.argval for each in instructions if each.opname in {"STORE_DEREF", "STORE_GLOBAL"}}
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # nothing was assigned yet
            if name not in sets:
                yield name, cell.cell_contents
    for name in names_in(code).globals:
        if name in fn.__globals__ and name not in sets:
            yield name, fn.__globals__[name]
    yield from ((f"default {index}", value) for index, value in enumerate(fn.__defaults__ or ()))
    yield from (fn.__kwdefaults__ or {}).items()


def _compared(value: Any) -> Any:
    """Returns what is digested of a value that hardly changes while a run goes on; `_CHANGES` for all others.

    A large array becomes its type, its shape and evenly spread values: a digest takes 1 ms for each MiB.
    """
    if isinstance(value, enum.Enum):
        return type(value).__qualname__, value.name
    if isinstance(value, tuple):
        names = () if type(value) is tuple else (type(value).__qualname__,)
        return _all_compared((*names, *value))
    if isinstance(value, frozenset):
        found = _all_compared(tuple(value))
        return found if found is _CHANGES else frozenset(found)
    if isinstance(value, _BY_TEXT):
        return type(value).__qualname__, repr(value)
    if isinstance(value, type):
        return "type", value.__qualname__
    if dataclasses.is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009  # no stub has it
        fields = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        return _all_compared((type(value).__qualname__, *fields))
    if isinstance(value, pl.Series):
        return value.to_arrow()
    if not isinstance(value, np.ndarray):
        return value if value is None or isinstance(value, _VALUES) else _CHANGES
    if value.dtype.hasobject:
        flat = value.reshape(-1)
        return _all_compared((value.shape, *flat[:: -(-flat.size // MAX_OBJECTS) or 1]))
    if value.nbytes <= MAX_DIGESTED_BYTES:
        return value
    flat = value.reshape(-1)
    return str(value.dtype), value.shape, flat[:: -(-value.nbytes // MAX_DIGESTED_BYTES)]


def _all_compared(values: tuple[Any, ...]) -> Any:
    found = tuple(map(_compared, values))
    return _CHANGES if any(each is _CHANGES for each in found) else found


def _methods(cls: type) -> list[Any]:
    """Returns the code of all methods of a class and of its base classes, by name."""
    named = {
        (base.__qualname__, name): getattr(member, "__func__", None)
        or getattr(member, "fget", None)
        or member
        for base in cls.__mro__
        for name, member in vars(base).items()
    }
    return [
        (key, code_parts(member.__code__))
        for key, member in sorted(named.items(), key=lambda entry: entry[0])
        if isinstance(member, types.FunctionType)
    ]


def check_function(operator: str, fn: object) -> None:
    """Raises `PlanError` for an object that cannot be called on data."""
    if not callable(fn):
        raise PlanError(f"{operator}: expected a function, got {shown(fn)}")
    if isinstance(fn, type) and not makes_functions(fn):
        raise PlanError(
            f"{operator}: of a class each worker makes an instance and calls that, and instances of "
            f"{fn.__qualname__} cannot be called; give it a method __call__, or pass a function"
        )


def makes_functions(fn: Any) -> bool:
    """Whether a value is a class whose instances can be called, perhaps a `partial` of the class with arguments."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return isinstance(fn, type) and any("__call__" in vars(base) for base in fn.__mro__)


class UserFunction:
    """A user function, or the instances of a class that are lent to one call at a time.

    Args:
        fn: The function or class.
        lender: Keeps the instances until the run ends.
        place: The operator's, so that no other operator gets its instances.
    """

    def __init__(self, fn: Callable[..., Any], lender: Lender, place: int) -> None:
        self.name = function_name(fn)
        self._fn = fn
        self._instances = (
            lender.instances((UserFunction, fn, operator_key(place)), self._made, self.name)
            if makes_functions(fn)
            else None
        )

    def __call__(
        self, *arguments: Any, hint: str = "", then: Callable[[list[Any]], Any] | None = None
    ) -> Any:
        """Returns the function's result; with `then`, the value that `then` makes of a list with the result.

        Until then no other call gets the instance: an instance may keep its result to write into it again.

        Raises:
            FunctionError: The function raised; with `hint` if it seems to have expected another kind of argument.
        """

        def work(call: Callable[..., Any]) -> Any:
            try:
                returned = [call(*arguments)]  # no variable holds the result, so that `unshared` counts
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also `sys.exit()`, which ends this call and not the program
                raise call_failed(self.name, error, hint) from error
            return returned.pop() if then is None else then(returned)

        return self.lend(work)

    def lend(self, work: Callable[[Callable[..., Any]], Any]) -> Any:
        """Returns the value of `work` for the function, or for an instance that no other call gets meanwhile.

        An exception does not end the instance.
        """
        return work(self._fn) if self._instances is None else self._instances.call(work)

    def _made(self) -> Any:
        try:
            return self._fn()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed = FunctionError(
                f"{self.name}() raised {said(error)} (a class is instantiated without arguments; "
                "functools.partial gives it some)"
            )
            failed.of_data = False  # it would be so for each row
            raise failed from error


def call_failed(name: str, error: BaseException, hint: str = "") -> FunctionError:
    """Returns the error of a function that raised; with `hint` if it seems to have expected another argument."""
    text = f"{name} raised {said(error)}"
    if isinstance(error, ValueError) and "read-only" in text:
        return FunctionError(text + " (arrays share memory with what others read: write into a copy)")
    confused = isinstance(error, TypeError | AttributeError | ValueError)
    return FunctionError(text + (hint if confused else ""))


def conform(batch: pa.RecordBatch, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """Returns the batch with the columns of `schema` in its order. Texts and codes become the enum that `schema` has.

    Raises:
        SchemaError: A column is missing, superfluous or of another type.
        DataError: A text or a code is not among the values of its enum.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if sorted(batch.schema.names) != sorted(schema.names):
        raise SchemaError(f"{what} has the columns {batch.schema.names}, expected {schema.names}")
    columns = [_conform(batch.column(field.name), field, what) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conform(column: pa.Array, field: pa.Field, what: str) -> pa.Array:
    found, expected = column.type, field.type
    codes = pa.types.is_dictionary(found) or pa.types.is_integer(found)
    may_be_enum = codes or pa.types.is_string(found) or pa.types.is_null(found)
    if pa.types.is_dictionary(expected) and may_be_enum:
        return as_enum(column, field)
    if found != expected:
        raise SchemaError(f"{what}: column {field.name!r} is {_shown(found)}, expected {_shown(expected)}")
    return column


def _shown(type: pa.DataType) -> str:
    """Returns a type as text, in the shape of its arrays where the shape is known."""
    if isinstance(type, pa.FixedShapeTensorType):
        order = "" if type.permutation is None else f" in the order {type.permutation}"
        return f"fixed_shape_tensor{list(type.shape)} of {type.value_type}{order}"
    shape, values = [], type
    while pa.types.is_fixed_size_list(values):
        shape.append(values.list_size)
        values = values.value_type
    return f"fixed_size_list{shape} of {values}" if shape else str(type)

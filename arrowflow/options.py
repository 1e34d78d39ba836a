"""`Options`: the settings of a whole pipeline, the parsing of sizes, and arguments that several functions have.

A field that is None was not set. `Dataset.with_options` merges: of several settings of one field the last one (the
most downstream) wins. `Options.resolved` fills in the fields that nobody set.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeVar, get_args

import numpy as np

from arrowflow.errors import PlanError, closest, shown

AUTOTUNE: Final = -1
"""Lets the library choose; the default of every `num_parallel_calls`, like `tf.data.AUTOTUNE`."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

OnError = Literal["raise", "skip", "quarantine"]
"""The treatment of bad rows."""

MAX_SIZE: Final = (1 << 63) - 1
"""The largest number of rows or bytes that NumPy and Arrow can count."""

MAX_LIST_SIZE: Final = (1 << 31) - 1
"""The most values that a list of fixed size can have."""

MAX_CHUNK_ROWS: Final = 65_536
MAX_CHUNK_BYTES: Final = 4 << 20
"""For functions of 512 B to 3 KiB a row, 4 MiB a call take 0.3 to 1.7 times the CPU of 65,536 rows a call, 1 MiB 0.5 to 3.8 times."""
CLOSE_TIMEOUT_SECONDS: Final = 5.0
RETRIES: Final = 10
RETRY_DEADLINE_SECONDS: Final = 60.0

_UNITS: Final = {"": 1, "B": 1} | {
    f"{prefix}{infix}B": (1024 if infix else 1000) ** power
    for power, prefix in enumerate("KMGT", start=1)
    for infix in ("", "i")
}


_INSTEAD: Final = {
    ("to_jax", "device"): "write sharding=jax.sharding.SingleDeviceSharding(device)",
}
"""Arguments that people guess, by habit from other functions, with what to write."""

_SWITCH: Final = dict(
    zip(("0", "false", "no", "off", "1", "true", "yes", "on"), [False] * 4 + [True] * 4, strict=True)
)
_VARIABLES: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "cpu_budget": (int, "a number of cores of at least 1"),
    "ram_budget": (str, "a number of bytes from 1 on or a text like '512MiB'"),
    "progress": (lambda text: _SWITCH[text.lower()], "0 or 1"),
}
"""The options that environment variables set: how a value is parsed, and what is expected."""


class Settings:
    """Base of classes that users set by names: an unknown name is a `TypeError` that names those most like it."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know the names by `__init__`

        def __new__(cls, *args: Any, **settings: Any) -> Any:
            known = [field.name for field in dataclasses.fields(cls)]
            for name in settings:
                if name not in known:
                    raise TypeError(
                        f"{cls.__name__} has no setting {name!r}; {closest(name, known, kind='settings')}"
                    )
            return super().__new__(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Settings):
    """Settings of a pipeline. A field that is None keeps the value of an earlier `with_options`, or the default.

    The environment variables `ARROWFLOW_CPU_BUDGET`, `ARROWFLOW_RAM_BUDGET` and `ARROWFLOW_PROGRESS` set the defaults of the
    three options with these names, when a pipeline is planned. Values that a program sets win.

    Attributes:
        cpu_budget: Calls that compute at the same time; calls that wait come on top. Default: the cores that this
            process may use, which live pipelines share.
        ram_budget: Bytes (a number, or a text like `"512MiB"`) that the pipeline may hold in queues, work in flight,
            windows, reorder buffers, memory caches and chunks for later epochs. Memory kept for reuse comes on top. It is at most 1/16 of the
            budget in each operator that makes large columns, plus the reserve of Arrow's allocator. Your own tables
            and arrays do not count. One call at a time may exceed the budget, by the chunk that it makes and the one
            that it makes it of. A function's calls are foreseen from its results so far. Where rows suddenly become
            more than twice as large, the calls that are under way exceed the budget together. A `BudgetError` names the
            budget that a pipeline or a file needs. Default: a quarter of the memory available to the process, which live pipelines share.
        deterministic: Whether rows come in one exact order. With False rows come as they are ready; those of one row
            group keep their order. A state goes on with every row that did not come, and with no other. Default: True.
        seed: The seed from which operators without a seed of their own derive theirs. Default: 0.
        max_chunk_rows: Most rows that a user function sees in one call, where no `batch` comes before it. Default: 65,536.
            Before a `batch` or `shuffle` as many as that takes, but at least 128, where the function reads bytes or gets
            paths of `list_files`, and at least 1,024 where it reads texts or lists. 128 in the first call of an epoch,
            and 32 where these are bytes or paths.
        max_chunk_bytes: Most bytes of one column that it sees in one call (a number, or a text like `"1MiB"`), but at
            least one row. Both numbers are part of the plan: others change the pieces that functions see, and a state
            that was taken with others is refused. Default: 4 MiB.
        close_timeout: Seconds that `close()` waits for a user function that does not return. Then `close()` kills a
            function that runs in a worker process. An interrupt waits for half a second at most. Default: 5.
        keep: The memory for decoded rows of files and pixels of images, which later epochs of the same dataset or loader then
            do not decode again. It is part of `ram_budget`, and goes before any call waits. `"auto"` is half of the budget; the first epoch
            keeps rows only if all take 256 MiB at most. Where batches are the source's own memory, as without a shuffle or
            lanes, copies are kept from the second epoch on, if decoding took several times as long as a copy. So are pixels.
            A size, as `"4GiB"`, may be taken from the first epoch on, and for any copies. False keeps nothing.
            Default: `"auto"`.
        retries: How often a read of a file that is not local is tried again after a failure that may pass: a time-out, a
            connection that broke, HTTP 429 or 5xx, too few bytes. Each range of bytes counts by itself. The waits between
            tries grow, and are drawn at random. Failures that another try would meet again, such as 403 and 404, raise at once.
            `Iterator.stats` counts retries. Default: 10.
        retry_deadline_seconds: Seconds that such a read may take with all its retries. Default: 60.
        hedge_seconds: Seconds after which a request of such a read is made a second time, beside the first one; the answer
            that comes first counts. It helps where few requests take many times as long as the others. Default: never.
        autotune: Whether settings left to `AUTOTUNE` are tuned. With False each is 1 call at a time, and nothing is
            made before the consumer asks for it, unless a `prefetch` says so. Default: True.
        progress: Whether a progress bar is shown while the pipeline is consumed. The bar, drawn by tqdm, appears on a
            terminal or in a notebook; pipes and log files get none. Default: False.
        disabled_rules: Names of optimizer rules that must not run, see `Dataset.explain`. Default: none.
        skip_steps: Steps to leave out, as those that made a loss spike: lists of their numbers by epoch, both counted from
            0, as in `{0: range(1200, 1210)}`. The other steps keep their batches and numbers, also after a resume. A state
            that was taken without can be loaded, if `with_options` is the last call. All processes that train together
            leave out the same steps. Default: none.
        on_error: The treatment of bad rows by readers, and by `map`, `map_rows` and `filter` with functions, if not set
            by an `on_error` of their own: `"raise"`, `"skip"` or `"quarantine"`. Default: `"raise"`.
        quarantine: The folder, or its URL, that bad rows are written to with `on_error="quarantine"`.

    Examples:
        >>> Options(ram_budget="2GiB").ram_budget
        2147483648
    """

    cpu_budget: int | None = None
    ram_budget: int | str | None = None
    deterministic: bool | None = None
    seed: int | None = None
    max_chunk_rows: int | None = None
    max_chunk_bytes: int | str | None = None
    close_timeout: float | None = None
    keep: Literal["auto", False] | int | str | None = None
    retries: int | None = None
    retry_deadline_seconds: float | None = None
    hedge_seconds: float | None = None
    autotune: bool | None = None
    progress: bool | None = None
    disabled_rules: Sequence[str] | None = None
    skip_steps: Mapping[int, Iterable[int]] | None = None
    on_error: OnError | None = None
    quarantine: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, least in (("cpu_budget", 1), ("max_chunk_rows", 1), ("retries", 0)):
            if getattr(self, name) is not None:
                check_size("Options", name, getattr(self, name), least=least)
        check_seed("Options", self.seed)
        for name in ("deterministic", "autotune", "progress"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_flag("Options", name, getattr(self, name)))
        for name in ("close_timeout", "retry_deadline_seconds", "hedge_seconds"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and value >= 0):
                raise PlanError(f"Options: {name} is in seconds and not negative, got {shown(value)}")
        for name in ("ram_budget", "max_chunk_bytes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_bytes(name, getattr(self, name)))
        keep: Any = self.keep
        if not (keep is None or keep is False or (isinstance(keep, str) and keep == "auto")):
            size = parse_bytes("Options: keep is 'auto', False or a size", keep)
            object.__setattr__(self, "keep", size)
        if self.disabled_rules is not None:
            if isinstance(self.disabled_rules, str):
                raise PlanError(
                    f"Options: disabled_rules is a list of names, got {shown(self.disabled_rules)}"
                )
            object.__setattr__(self, "disabled_rules", tuple(self.disabled_rules))
        if self.skip_steps is not None:
            object.__setattr__(self, "skip_steps", _steps(self.skip_steps))
        object.__setattr__(self, "quarantine", check_on_error("Options", self.on_error, self.quarantine))

    @classmethod
    def of_environment(cls) -> Options:
        """Returns the settings of `ARROWFLOW_CPU_BUDGET`, `ARROWFLOW_RAM_BUDGET` and `ARROWFLOW_PROGRESS`.

        Raises:
            PlanError: A value makes no sense; the message names the variable.
        """
        found = cls()
        for name, (parsed, expected) in _VARIABLES.items():
            variable = f"ARROWFLOW_{name.upper()}"
            if value := os.environ.get(variable, "").strip():
                try:
                    found = dataclasses.replace(found, **{name: parsed(value)})
                except (ValueError, KeyError) as error:  # a PlanError is a ValueError
                    text = f"the environment variable {variable} is {expected}, got {shown(value)}"
                    raise PlanError(f"{text}; correct or unset it") from error
        return found

    def _given(self) -> dict[str, Any]:
        """Returns the fields that are set, with their values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def merged(self, later: Options) -> Options:
        """Returns these options with every field that `later` sets replaced by its value."""
        changes = later._given()
        if later.on_error is not None:  # the two belong together
            changes["quarantine"] = later.quarantine
        return dataclasses.replace(self, **changes)

    def resolved(self, processes: int = 1) -> ResolvedOptions:
        """Returns these options with the defaults filled in, which so many processes of this machine share."""
        given = self._given()
        given["skip_steps"] = tuple(given.get("skip_steps", {}).items())
        if self.cpu_budget is None:
            given["cpu_budget"] = max(1, available_cpus() // processes)
        if self.ram_budget is None:
            given["ram_budget"] = available_memory_bytes() // 4 // processes
        return ResolvedOptions(shares_ram=self.ram_budget is None, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOptions:
    """`Options` without gaps: the settings of one run, with their defaults. The fields mean the same as in `Options`.

    Attributes:
        shares_ram: Whether nobody set the byte budget, so that live runs divide it among them.
        max_chunk_rows: None where nobody set it, see `kernels.pieces`.
    """

    cpu_budget: int
    ram_budget: int
    shares_ram: bool
    deterministic: bool = True
    seed: int = 0
    max_chunk_rows: int | None = None
    max_chunk_bytes: int = MAX_CHUNK_BYTES
    close_timeout: float = CLOSE_TIMEOUT_SECONDS
    keep: Literal["auto", False] | int = "auto"
    retries: int = RETRIES
    retry_deadline_seconds: float = RETRY_DEADLINE_SECONDS
    hedge_seconds: float | None = None
    autotune: bool = True
    progress: bool = False
    disabled_rules: tuple[str, ...] = ()
    skip_steps: tuple[tuple[int, frozenset[int]], ...] = ()
    on_error: OnError = "raise"
    quarantine: str | None = None


def _steps(given: object) -> dict[int, frozenset[int]]:
    """Returns the numbers of steps by epoch, or raises `PlanError`."""
    if not isinstance(given, Mapping) or not all(isinstance(steps, Iterable) for steps in given.values()):
        raise PlanError(
            "Options: skip_steps has lists of steps by epoch, as in {0: range(1200, 1210)}, got "
            + shown(given)
        )
    return {
        check_size("Options", "an epoch of skip_steps", epoch, least=0): frozenset(
            check_size("Options", "a step of skip_steps", step, least=0) for step in steps
        )
        for epoch, steps in given.items()
    }


def parse_bytes(name: str, value: int | str) -> int:
    """Returns the number of bytes that `value` means; `"1KB"` is 1000 and `"1KiB"` is 1024.

    Raises:
        PlanError: `value` is not a positive size.

    Examples:
        >>> parse_bytes("ram_budget", "1.5 GiB")
        1610612736
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if match and match[2] in _UNITS:
            value = int(float(match[1]) * _UNITS[match[2]])
        else:
            raise PlanError(
                f"{name}: expected bytes as a number or a text like '512MiB' or '2GB', got {shown(value)}"
            )
    return check_size(name, "bytes", value)


def check_size(
    operator: str, name: str, value: object, *, least: int = 1, most: int | None = MAX_SIZE
) -> int:
    """Returns `value` if it is a whole number of at least `least` and at most `most`, else raises `PlanError`."""
    number = whole_number(value)
    if number is None:
        raise PlanError(f"{operator}: {name} is a whole number, got {shown(value)} ({type(value).__name__})")
    if number < least:
        raise PlanError(f"{operator}: {name} is at least {least}, got {number}")
    if most is not None and number > most:
        raise PlanError(f"{operator}: {name} is at most {most:,}, got {number}")
    return number


def whole_number(value: object) -> int | None:
    """Returns `value` as Python's number; None if it is no whole number. An array of several has `__index__`, too."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def check_choice(operator: str, name: str, value: Any, choices: Iterable[Any]) -> Any:
    """Returns `value` if it is one of some texts, or None where that is a choice, else raises `PlanError`.

    Nothing else is compared: arrays, frames and expressions compare by element.
    """
    known = tuple(choices)
    if not (value is None or isinstance(value, str)) or value not in known:
        *first, last = map(repr, known)
        raise PlanError(f"{operator}: {name} is {', '.join(first)} or {last}, got {shown(value)}")
    return value


def check_flag(operator: str, name: str, value: object) -> bool:
    """Returns `value` if it is True or False, of Python or NumPy, else raises `PlanError`."""
    if not isinstance(value, bool | np.bool_):
        raise PlanError(f"{operator}: {name} is True or False, got {shown(value)}")
    return bool(value)


def check_seed(operator: str, value: object) -> int | None:
    """Returns `value` if it is None or a whole number that fits 64 bits unsigned, else raises `PlanError`."""
    if value is None:
        return None
    number = check_size(operator, "seed", value, least=0, most=None)
    if number >= 1 << 64:
        raise PlanError(f"{operator}: seed fits 64 bits, got {number}")
    return number


def check_on_error(operator: str, on_error: object, quarantine: object) -> str | None:
    """Returns the folder for bad rows, None if there is none; raises `PlanError` where the two do not fit."""
    if on_error is not None:
        check_choice(operator, "on_error", on_error, get_args(OnError))
    if (on_error == "quarantine") != (quarantine is not None):
        raise PlanError(
            f"{operator}: on_error='quarantine' and quarantine=, the folder for bad rows, are given together"
        )
    given: Any = quarantine
    if given is not None and not (isinstance(given, str | os.PathLike) and os.fspath(given)):
        raise PlanError(f"{operator}: quarantine is the path or URL of a folder, got {shown(given)}")
    return None if given is None else str(os.fspath(given))


def parallel_calls(operator: str, value: int) -> int | None:
    """Returns a `num_parallel_calls` as nodes hold it: None for `AUTOTUNE`."""
    return None if whole_number(value) == AUTOTUNE else check_size(operator, "num_parallel_calls", value)


def with_arguments(kind: type, usual: Mapping[str, Any]) -> Callable[[_Function], _Function]:
    """Gives a function that takes `**arguments: Unpack[kind]` the signature that `help` shows, and refuses other names.

    Type checkers and editors list the arguments by `kind` itself.

    Args:
        kind: The `TypedDict`.
        usual: The values of arguments that are not given, by name.
    """

    def decorated(function: _Function) -> _Function:
        own = signature(function)
        named = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=usual[name], annotation=reference.__forward_arg__)
            for name, reference in kind.__annotations__.items()
        ]
        plain = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        shown = own.replace(parameters=[*plain, *named])

        @wraps(function)
        def checked(*args: Any, **arguments: Any) -> Any:
            __tracebackhide__ = True
            for name in arguments:
                if name not in shown.parameters:
                    hint = _INSTEAD.get((function.__name__, name)) or closest(
                        name, [each for each in shown.parameters if each != "self"], kind="arguments"
                    )
                    raise TypeError(f"{function.__name__}() has no argument {name!r}; {hint}")
            return function(*args, **arguments)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorated


def available_cpus() -> int:
    """Returns the cores that this process may use: its affinity and its cgroup's quota, not the host's count."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_value("cpu.max")
    if quota is not None:
        limit, _, period = quota.partition(" ")
        if limit != "max" and period:
            affinity = min(affinity, max(1, int(limit) // int(period)))
    return affinity


def available_memory_bytes() -> int:
    """Returns the memory in bytes that this process may use: its cgroup's limit or the machine's memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup_value("memory.max")
    return min(total, int(limit)) if limit is not None and limit != "max" else total


def _cgroup_value(name: str) -> str | None:
    try:
        return Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
    except OSError:
        return None

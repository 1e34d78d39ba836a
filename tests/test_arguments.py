"""Arguments that a `TypedDict` lists: help shows each with its usual value, and other names are refused."""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.formats.registry import FORMATS

READERS = [getattr(af, f"read_{name}") for name in FORMATS]
LOADERS = [getattr(af.Dataset, f"to_{name}") for name in ("numpy", "dlpack", "torch", "torch_dataset", "jax")]


def usual(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize("function", [*READERS, *LOADERS], ids=lambda function: function.__name__)
def test_help_shows_each_argument_with_its_usual_value(function: Callable[..., Any]) -> None:
    shown = inspect.signature(function)
    assert shown.return_annotation != shown.empty
    assert all(each.kind is not each.VAR_KEYWORD for each in shown.parameters.values())
    assert all(each.annotation != shown.empty for each in shown.parameters.values() if each.name != "self")
    assert shown.empty not in usual(function).values()
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    "function",
    [af.read_parquet, af.read_csv, af.read_tfrecord, *LOADERS],
    ids=lambda function: function.__name__,
)
def test_docstrings_tell_of_each_argument(function: Callable[..., Any]) -> None:
    told = inspect.getdoc(function) or ""
    assert [name for name in usual(function) if f"\n    {name}: " not in told] == []


@pytest.mark.parametrize("function", READERS, ids=lambda function: function.__name__)
def test_usual_values_are_those_of_read(function: Callable[..., Any]) -> None:
    name = function.__name__.removeprefix("read_")
    options = {name: value for name, value in usual(function).items() if name not in usual(af.read)}
    assert function("a", **usual(function)) == function("a") == af.read("a", format=name, **options)


def test_values_that_are_not_given() -> None:
    assert usual(af.read_csv)["quote_char"] == '"' and usual(af.read_csv)["block_bytes"] == 4 << 20
    assert usual(af.read_parquet)["partitioning"] == "auto" and usual(af.read_tfrecord)["raw"] is False
    assert usual(af.Dataset.to_torch)["null"] == "error" and usual(af.Dataset.to_torch)["pin_memory"] is False


def test_dir_lists_the_public_names() -> None:
    assert [name for name in dir(af) if not name.startswith("__")] == sorted(af.__all__)
    assert {"__version__", "__doc__"} < set(dir(af))


def test_other_names_are_refused_with_the_nearest_ones() -> None:
    with pytest.raises(
        TypeError, match=r"read_csv\(\) has no argument 'delimeter'; did you mean 'delimiter'"
    ):
        af.read_csv("a", delimeter=";")  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"read_json\(\) has no argument 'memory_map'; known arguments: paths"
    ):
        af.read_json("a", memory_map=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"to_torch\(\) has no argument 'devise'; did you mean 'device'"):
        af.range(3).to_torch(devise="cpu")  # type: ignore[call-overload]
    with pytest.raises(
        TypeError, match=r"no argument 'num_workers'; known arguments: lists, collate, columns, "
    ):
        af.range(3).to_torch(num_workers=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"to_jax\(\) has no argument 'device'; write sharding=jax\.sharding"):
        af.range(3).to_jax(device="cpu")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"no argument 'format'"):
        af.read_csv("a", format="json")  # type: ignore[call-arg]


GIVEN: dict[str, tuple[Any, ...]] = {
    "batch": (2,),
    "bucket_by_sequence_length": ("t", [2], [1, 1]),
    "decode_image": ("t",),
    "flat_map": (lambda row: af.range(1),),
    "group_by_window": ("id", 2),
    "interleave": (lambda row: af.range(1),),
    "join": (pa.table({"id": [1], "y": [2]}), "id"),
    "map": (lambda batch: batch,),
    "map_rows": (lambda row: row,),
    "pack_sequences": ("t", 2),
    "padded_batch": (2,),
    "reduce": (0, lambda state, batch: state),
    "rejection_resample": ("id", [0.5, 0.5]),
    "scan": (0, lambda state, batch: (state, batch)),
    "split": ([0.5, 0.5],),
    "take_while": (lambda batch: batch["id"] > 0,),
    "sample": (2,),
    "shuffle": (2,),
    "window": (2,),
    "from_generator": (lambda: iter([{"x": 1}]),),
    "sample_from_datasets": ([af.range(1)],),
    "choose_from_datasets": ([af.range(1)], af.range(1)),
}
"""The arguments that methods with flags need besides."""

OTHERS: dict[str, dict[str, Any]] = {
    "decode_image": {"size": (8, 8)},
    "read": {"format": "parquet"},
    "sample": {"weights": "id"},
}


def arguments(is_meant: Callable[[Callable[..., Any], inspect.Parameter], bool]) -> list[Any]:
    """Returns public functions with the names of those of their arguments that are meant."""
    makers = [af.Dataset, af.Iterator, type(af.range(1).to_numpy())]
    methods = [getattr(maker, name) for maker in makers for name in dir(maker) if not name.startswith("_")]
    functions = [getattr(af, name) for name in af.__all__ if name.islower()]
    found = []
    for function in (*methods, *functions, af.Options):
        if inspect.isfunction(function) or function is af.Options:
            parameters = inspect.signature(function).parameters.values()
            names = [each.name for each in parameters if is_meant(function, each)]
            marks = pytest.mark.slow if function.__name__ == "to_tf" else ()  # it imports TensorFlow
            found += [pytest.param(function, names, id=function.__qualname__, marks=marks)] if names else []
    return found


def is_flag(function: Callable[..., Any], argument: inspect.Parameter) -> bool:
    """Whether an argument is true or false."""
    return str(argument.annotation) in {"bool", "bool | None"}


def is_checked(function: Callable[..., Any], argument: inspect.Parameter) -> bool:
    """Whether an argument of a dataset or a source is no table: a text, a number, a list or a mapping."""
    named = function.__name__.startswith(("read", "from_generator", "sample_from"))
    is_ours = (function.__qualname__.startswith("Dataset.") and function.__name__ not in HANDS_ON) or named
    needed = argument.default is not argument.empty or function.__name__ in GIVEN
    return is_ours and needed and argument.name not in {"self", "table", "fn", "columns"}


HANDS_ON = {"apply", "to_ray"}
"""Methods that hand their arguments on without a look."""


def called(function: Callable[..., Any], tmp_path: Path, argument: str, value: object) -> Any:
    name = function.__name__
    given = GIVEN.get(name, ())
    if name.startswith(("write_", "read")):
        given = (tmp_path / "x",)
    if name == "explain":
        given = (af.range(3).to_numpy(),)
    elif function.__qualname__.partition(".")[0] in {"Dataset", "Iterator", "Loader"}:
        dataset: Any = af.from_arrow(pa.table({"id": [1, 2], "t": [[1], [2, 3]]}))
        if name == "load_state_dict":
            dataset = iter(dataset) if "Iterator" in function.__qualname__ else dataset.to_numpy()
            given = (dataset.state_dict(),)
        given = (dataset, *given)
    others = {**OTHERS.get(name, {}), argument: value}
    found = inspect.signature(function).bind_partial(*given)
    return (
        function(**{**found.arguments, **others})
        if argument in found.arguments
        else function(*found.args, **others)
    )


@pytest.mark.parametrize(("function", "flags"), arguments(is_flag))
def test_a_flag_is_true_or_false(function: Callable[..., Any], flags: list[str], tmp_path: Path) -> None:
    given: list[Any] = ["no", "x", 1, 0, [], np.array([True])]
    for flag, value in itertools.product(flags, given):
        with pytest.raises(af.PlanError, match=f"{flag} is True or False, got"):
            called(function, tmp_path, flag, value)


@pytest.mark.parametrize("value", [np.True_, np.False_], ids=str)
def test_a_flag_of_numpy_is_the_same(value: Any, tmp_path: Path) -> None:
    flag = bool(value)
    assert af.range(3).batch(2, drop_remainder=value) == af.range(3).batch(2, drop_remainder=flag)
    assert af.read_csv("a", has_header=value) == af.read_csv("a", has_header=flag)
    assert af.read_tfrecord("a", raw=value) == af.read_tfrecord("a", raw=flag)
    assert af.Options(progress=value) == af.Options(progress=flag)
    assert af.range(3).batch(2, drop_remainder=value).to_numpy().state_dict()


ARRAYS = [
    np.array([1, 2]),
    np.array(["a", "b"]),
    pa.array([1, 2]),
    pl.Series([1, 2]),
    pl.DataFrame({"a": [1, 2]}),
    pl.col("id"),
]


@pytest.mark.parametrize(("function", "names"), arguments(is_checked))
def test_an_array_is_taken_or_refused_by_an_error_of_ours(
    function: Callable[..., Any], names: list[str], tmp_path: Path
) -> None:
    for argument, value in itertools.product(names, ARRAYS):
        with suppress(af.ArrowflowError):
            called(function, tmp_path, argument, value)

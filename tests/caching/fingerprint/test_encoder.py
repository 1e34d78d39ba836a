"""How values and functions are told apart: by what they do, not by where they are written or in which process."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import importlib
import importlib.util
import io
import itertools
import logging
import operator
import pathlib
import random
import re
import socket
import sys
import textwrap
import threading
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.caching.fingerprint.code import names_in
from arrowflow.caching.fingerprint.encoder import Encoder
from arrowflow.caching.fingerprint.fingerprint import WRITERS
from arrowflow.caching.fingerprint.installed import is_installed, version_of
from arrowflow.ops.functions.function import code_digest
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version


def digest(*values: Any) -> str:
    encoder = Encoder(WRITERS)
    for value in values:
        encoder.write(value)
    return encoder.digest().hex()


def made(source: str, **names: Any) -> Any:
    """Returns the function or class `f` that some lines define, in a module of its own."""
    scope: dict[str, Any] = {"__name__": "users_own", **names}
    exec(compile(textwrap.dedent(source), "users_own.py", "exec", dont_inherit=True), scope)
    return scope["f"]


def same(one: Any, other: Any) -> None:
    assert digest(one) == digest(other)


def differ(*values: Any) -> None:
    assert len({digest(value) for value in values}) == len(values)


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Bits(enum.Flag):
    A = 1
    B = 2


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: int) -> None:
        self.a = a


class Plain:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def method(self, x: int) -> int:
        return x


# ---------------------------------------------------------------- values


def test_plain_values_are_told_apart() -> None:
    numbers = [None, False, True, 0, 1, -1, 1 << 70, 0.0, -0.0, 1.0, float("inf"), float("nan"), 1j]
    differ(*numbers, "", "1", b"1", ...)
    lists = [(), [], {}, set(), frozenset(), (1,), [1], {1: 1}, {1}, frozenset([1]), (1, 2), (2, 1)]
    differ(*lists, ((1,), 2), (1, (2,)))
    texts = ["ab", ["ab"], ["a", "b"], ["a", ["b"]], [["a"], "b"], "a\ud800"]
    differ(*texts, {"a": "b"}, {"b": "a"}, {"a": 1}, {"a": 1.0})
    long = [10**5000, 10**5000 + 1, [10**5000]]
    differ(range(3), range(0, 3, 2), slice(3), slice(0, 3), *long, bytearray(b"1"))
    differ([True], [1], [1.0], ["1"], [None], ["None"], [float("nan")], [-0.0], [0.0])


def test_values_of_the_standard_library() -> None:
    day = datetime.datetime(2020, 1, 1)
    differ(
        day, day.replace(microsecond=1), day.replace(tzinfo=datetime.UTC), day.date(), datetime.timedelta(1)
    )
    differ(decimal.Decimal("1.0"), decimal.Decimal("1.00"), uuid.UUID(int=1), uuid.UUID(int=2))
    differ(re.compile("a"), re.compile("a", re.IGNORECASE), re.compile("b"), re.compile(b"a"))
    differ(pathlib.PurePosixPath("/a"), pathlib.PurePosixPath("/b"), pathlib.PureWindowsPath("/a"), "/a")
    differ(Color.RED, Color.BLUE, Bits.A, Bits.A | Bits.B, 1)
    differ(
        collections.deque([1]),
        collections.deque([1], 3),
        collections.OrderedDict(a=1),
        collections.Counter("a"),
    )
    differ(collections.defaultdict(list, a=1), collections.defaultdict(set, a=1), {"a": 1})
    differ(types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), types.MappingProxyType({"a": 1}))
    differ(operator.itemgetter(1), operator.itemgetter(2), operator.attrgetter("a"), len, max, str, str.upper)
    same(logging.getLogger("a"), logging.getLogger("b"))
    same(list[int], list[int])
    boxes = [made(f"class f(list):\n def g(self): return {number}")[int] for number in (1, 2)]
    differ(*boxes, list[int], int | None, int | str)


def test_the_order_of_a_dict_counts_and_that_of_attributes_does_not() -> None:
    differ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    same(Plain(a=1, b=2), Plain(b=2, a=1))
    same({"a", "b", ("c",), 1}, {1, ("c",), "b", "a"})


def test_objects_are_their_class_and_their_state() -> None:
    differ(Plain(a=1), Plain(a=2), Plain(b=1), Slotted(1), Slotted(2), Plain(), Plain, Slotted)
    same(Plain(a=[1, np.arange(3)]), Plain(a=[1, np.arange(3)]))
    differ(Plain(a=1).method, Plain(a=2).method, Plain.method)
    classes = [made(f"class f:\n def __call__(self, x): return x + {number}") for number in (1, 2)]
    differ(*classes)
    differ(*(cls() for cls in classes))
    differ(*(type("Derived", (cls,), {})() for cls in classes))


def test_members_of_classes_count() -> None:
    texts = ["pass", "limit = 1", "limit = 2", "def g(self): return 1", "@property\n def g(self): return 1"]
    texts += ["@property\n def g(self): return 2", "@staticmethod\n def g(): return 1", "__slots__ = ('a',)"]
    texts += ["@classmethod\n def g(cls): return 1", "@classmethod\n def g(cls): return 2"]
    differ(*(made(f"class f:\n {text}") for text in texts))
    same(made("class f:\n 'One text.'\n x: int"), made("class f:\n 'Another.'\n x: int"))
    differ(
        *(made(f"class f:\n x: {annotation}") for annotation in ("int", "str", "'int | str'", "int | str"))
    )


def test_data_classes() -> None:
    source = """
        from dataclasses import dataclass, field
        @dataclass(frozen=True)
        class f:
            x: int = {default}
            y: list = field(default_factory={factory})
    """
    classes = [made(source.format(default=d, factory=f)) for d, f in ((1, "list"), (2, "list"), (1, "set"))]
    differ(*classes)
    same(made(source.format(default=1, factory="list")), classes[0])
    differ(classes[0](), classes[0](x=5), classes[0](y=[1]))
    noted = [dataclasses.field(metadata={"unit": unit}) for unit in ("s", "ms")]
    differ(*(dataclasses.make_dataclass("Noted", [("x", int, field)]) for field in noted))


def test_classes_that_are_made_in_the_name_of_a_module() -> None:
    fields = [[("x", int, number)] for number in (1, 2)]
    differ(*(dataclasses.make_dataclass("Made", each) for each in fields))
    differ(*(dataclasses.make_dataclass("Made", each)() for each in fields))
    for module in ("types", "json"):
        one, other, again = (
            types.new_class("Made", (), {}, operator.methodcaller("update", value=value, __module__=module))
            for value in (1, 2, 1)
        )
        differ(one, other)
        same(one, again)
    assert digest(type(re.finditer("a", "a")), type(threading.Lock()), type({}.keys()), types.FunctionType)
    assert digest(type(pl.Series()._s), type(pl.DataFrame()._df))


def test_numpy() -> None:
    whole = np.arange(6, dtype=np.int32)
    differ(
        whole, whole.reshape(2, 3), whole.astype(np.int64), whole[::2], whole[::-1], np.array([], np.int32)
    )
    same(whole[::2], np.array([0, 2, 4], np.int32))
    same(np.asfortranarray(whole.reshape(2, 3)), whole.reshape(2, 3))
    differ(
        np.float32(1), np.float64(1), np.dtype("f4"), np.dtype("f8"), np.float32, np.add, np.multiply, np.mean
    )
    differ(np.array([1, "a", None], object), np.array([1, "b", None], object), np.array(3), np.zeros((0, 2)))
    differ(np.zeros(2, [("a", "i4")]), np.zeros(2, [("b", "i4")]), np.ma.array([1, 2]), np.array([1, 2]))
    differ(np.array(["2020"], "M8[D]"), np.array(["2020"], "M8[s]"), np.array(["a"]), np.array([b"a"]))


def test_numpy_by_what_the_bytes_mean() -> None:
    aligned: Any = np.dtype([("a", "i1"), ("b", "i8")], align=True)
    for dtype in (aligned, np.dtype("g"), np.dtype("G")):
        one, other = (np.frombuffer(bytes([fill]) * 64, np.uint8).copy() for fill in (0, 255))
        arrays = [each[: dtype.itemsize].view(dtype) for each in (one, other)]
        for array in arrays:
            array[:] = np.ones(1, dtype)
        if dtype.names:
            arrays[0]["a"], arrays[0]["b"] = arrays[1]["a"], arrays[1]["b"] = 1, 2
        same(*arrays)
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [0, 0]})
    differ(np.zeros(2, overlapping), np.ones(2, overlapping), np.zeros(2, [("a", "<i4"), ("b", "<i2")]))
    differ(np.zeros(2, "U0"), np.zeros(3, "U0"))


def test_views_of_memory_and_lone_surrogates() -> None:
    view = memoryview(b"abcd")
    differ(view, view.cast("b"), view.cast("I"), view.cast("B", (2, 2)), b"abcd")
    differ(["\ud83d\ude00"], ["\U0001f600"])


def test_what_cannot_be_read_is_refused(own: Callable[[dict[str, str]], None]) -> None:
    class Odd:
        def __reduce_ex__(self, protocol: object) -> Any:
            return 1, 2, 3, 4, 5

    refused(af.FingerprintError, lambda: digest(Odd()), "Odd", "cannot be read", 'key="…"')
    own({"own_broken.py": "raise ValueError('as it is')"})
    function = made("def f(x):\n import own_broken\n return own_broken.a")
    refused(af.FingerprintError, lambda: digest(function), "'own_broken' cannot be imported (as it is)")


def test_arrow() -> None:
    differ(pa.array([1]), pa.array([2]), pa.chunked_array([[1]]), pa.chunked_array([[1], [2]]), pa.scalar(1))
    differ(
        pa.scalar(1, pa.int8()),
        pa.scalar(None, pa.int8()),
        pa.py_buffer(b"a"),
        pa.int8(),
        pa.list_(pa.int8()),
    )
    differ(pa.schema([("a", pa.int8())]), pa.schema([("a", pa.int8())], {"k": "v"}), pa.field("a", pa.int8()))
    differ(pa.table({"a": [1]}), pa.table({"b": [1]}), pa.record_batch({"a": [1]}))
    differ(pc.field("a") > 1, pc.field("a") > 2, pc.field("a") >= 1, pc.field("b") > 1, pc.add, pc.subtract)
    differ(pc.field("a").isin([1, 2]), pc.field("a").isin([1, 3]), pc.field("a") == "1", pc.field("a") == 1)
    differ(pc.CountOptions(mode="all"), pc.CountOptions(mode="only_null"))
    later = [pa.scalar(value, pa.timestamp("ns")) for value in (1, 2)]
    differ(*(pc.field("a") > value for value in later))


def test_polars() -> None:
    differ(
        pl.col("a") + 1,
        pl.col("a") + 2,
        pl.col("a") + float("nan"),
        pl.col("a") + float("inf"),
        pl.col("b") + 1,
    )
    long = [pl.col("a").is_in(pl.Series([*range(10_000), last])) for last in (10_000, 10_001)]
    differ(*long)
    same(long[0], pl.col("a").is_in(pl.Series([*range(10_000), 10_000])))
    differ(
        pl.Series("a", [1]),
        pl.Series("a", [None], pl.Int64),
        pl.Series("b", [1]),
        pl.Series("a", [1], pl.Int8),
    )
    differ(pl.DataFrame({"a": [1]}), pl.DataFrame({"a": [2]}), pl.DataFrame({"b": [1]}))
    differ(pl.Int8, pl.Int16, pl.Datetime("us"), pl.Datetime("ms"), pl.Enum(["a", "b"]), pl.Enum(["b", "a"]))


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(4, dtype=torch.bfloat16)
    differ(
        ones, ones * 2, ones.float(), ones.reshape(2, 2), torch.float32, torch.float64, torch.device("cpu")
    )
    model = torch.nn.Linear(2, 2)
    copy = torch.nn.Linear(2, 2)
    copy.load_state_dict(model.state_dict())
    same(model, copy)
    with torch.no_grad():
        copy.weight[0, 0] += 1
    differ(model, copy, torch.nn.ReLU(), torch.relu)
    refused(af.FingerprintError, lambda: digest(torch.Generator()), "state")


@pytest.mark.filterwarnings("ignore:.*quantize_per:UserWarning")
def test_torch_tensors_of_other_layouts() -> None:
    torch = pytest.importorskip("torch")
    turned = torch.ones(2, dtype=torch.complex64) * 1j
    differ(turned, turned.conj(), turned.conj().imag)
    odd = (torch.eye(2).to_sparse(), torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8))
    for tensor in odd:
        with pytest.raises(af.FingerprintError, match="make it a plain one"):
            digest(tensor)


def test_cycles_end_and_sharing_counts() -> None:
    def cycle(length: int) -> list[Any]:
        start: list[Any] = []
        for _ in range(length):
            start = [start]
        inner = start
        while inner:
            inner = inner[0]
        inner.append(start)
        return start

    same(cycle(3), cycle(3))
    differ(cycle(1), cycle(3), [], [[]])
    one, other = Plain(), Plain()
    one.other, other.other = other, one  # type: ignore[attr-defined]
    same(one, other)
    shared = [1]
    differ([shared, shared], [[1], [1]])


def test_long_chains_of_calls_are_no_deep_recursion() -> None:
    def chain(last: int) -> Any:
        lines = [f"def g{number}(x): return g{number + 1}(x)" for number in range(1_200)]
        return made("\n".join([*lines, f"def g1200(x): return {last}", "f = g0"]))

    same(chain(1), chain(1))
    differ(chain(1), chain(2))


# ---------------------------------------------------------------- functions


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x + 1", "def f(x): return x - 1"),
        ("def f(x): return x.a", "def f(x): return x.b"),
        ("def f(x, y=1): return x", "def f(x, y=2): return x"),
        ("def f(x, *, y=1): return x", "def f(x, *, y=2): return x"),
        ("def f(x, /): return x", "def f(x): return x"),
        ("def f(x): return [y + 1 for y in x]", "def f(x): return [y + 2 for y in x]"),
        ("def f(x): return x in {1, 2}", "def f(x): return x in {1, 3}"),
        ("def f(x): return x in {'a', ('b',)}", "def f(x): return x in {'a', ('c',)}"),
        ("K = 1\ndef f(x): return x + K", "K = 2\ndef f(x): return x + K"),
        ("K = 1\ndef f(x): return lambda: x + K", "K = 2\ndef f(x): return lambda: x + K"),
        ("def g(x): return x\ndef f(x): return g(x)", "def g(x): return -x\ndef f(x): return g(x)"),
        ("class g:\n a = 1\ndef f(x): return g.a", "class g:\n a = 2\ndef f(x): return g.a"),
        (
            "def f(x):\n try: g()\n except ValueError: pass",
            "def f(x):\n g()\n try: pass\n except ValueError: pass",
        ),
        ("f = lambda x: 1", "f = lambda x: True"),
        ("def f(x): return 0.0", "def f(x): return -0.0"),
        ("def f(x): yield x", "def f(x): return x"),
    ],
)
def test_functions_that_do_something_else_differ(one: str, other: str) -> None:
    differ(made(one), made(other))
    same(made(one), made(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return x + 1", "\n\n# A comment.\ndef f(x):\n\n    # Another.\n    return x + 1"),
        ("def f(x): return x", "def f(x: int) -> int: return x"),
        ("K = 1\nL = 1\ndef f(x): return x + K", "K = 1\nL = 2\ndef f(x): return x + K"),
        ("lock = 1\ndef f(x): return x.lock", "lock = 2\ndef f(x): return x.lock"),
    ],
)
def test_what_changes_nothing_makes_no_difference(one: str, other: str) -> None:
    same(made(one), made(other))


def test_names_of_attributes_are_no_globals() -> None:
    same(made("def f(x): return x.guard", guard=threading.Lock()), made("def f(x): return x.guard"))


def test_closures() -> None:
    def closed(value: Any) -> Callable[[int], Any]:
        return lambda x: (x, value)

    differ(closed(1), closed(2), closed("1"), closed(np.arange(2)), closed(np.arange(3)), closed(closed(1)))
    same(closed(np.arange(3)), closed(np.arange(3)))


def test_functions_in_objects() -> None:
    differ(functools.partial(max, 1), functools.partial(max, 2), functools.partial(min, 1), max)
    differ(
        functools.partial(max, key=len), functools.partial(max, key=abs), functools.partial(max, default=len)
    )
    cached = [functools.lru_cache(made(f"def f(x): return {number}")) for number in (1, 2)]
    differ(*cached)
    wrapped = [functools.wraps(len)(made(f"def f(x): return {number}")) for number in (1, 2)]
    differ(*wrapped)
    helpers = [made(f"def g(x): return {number}\ndef f(x): return g(x)") for number in (1, 2)]
    differ(*map(functools.wraps(len), helpers))


def test_functions_that_call_each_other() -> None:
    source = "def g(x): return f(x) if x else {last}\ndef f(x): return g(x - 1)"
    same(made(source.format(last=1)), made(source.format(last=1)))
    differ(made(source.format(last=1)), made(source.format(last=2)))


def test_what_is_installed_goes_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    function = made("import numpy as np\ndef f(x): return np.log(x)")
    before = digest(function), digest(np.mean), digest(made("def f(x):\n import numpy\n return numpy.log(x)"))
    version_of.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99")
    after = digest(function), digest(np.mean), digest(made("def f(x):\n import numpy\n return numpy.log(x)"))
    version_of.cache_clear()
    assert not set(before) & set(after)


def test_where_code_comes_from() -> None:
    assert all(
        map(
            is_installed, ("json", "sys", "numpy", "polars.series", "arrowflow.ops.functions.map", "builtins")
        )
    )
    assert not any(map(is_installed, ("__main__", "tests.ops.tables", "nobody_has_this")))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Writes modules of the user's into a folder that is searched first, and forgets those of before."""
    written: set[str] = set()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(sources: dict[str, str]) -> None:
        for name, source in sources.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        forget(written)
        written.update(name.partition("/")[0].removesuffix(".py") for name in sources)
        for name in [name for name in sys.modules if name.partition(".")[0] in written]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        is_installed.cache_clear()
        version_of.cache_clear()

    yield write
    forget(written)  # where another test imports Python's own `profile`, it gets that


def forget(tops: set[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]


def test_own_modules_may_have_names_of_pythons_own(own: Callable[[dict[str, str]], None]) -> None:
    found = set()
    for number in (1, 2):
        source = f"def g(x): return {number}"
        own({"profile.py": source, "test/__init__.py": "", "test/own.py": source})
        assert not is_installed("profile") and not is_installed("test.own")
        found.add(digest(made("def f(x):\n import profile\n return profile.g(x)")))
        found.add(digest(made("def f(x):\n from test.own import g\n return g(x)")))
    assert len(found) == 4, found
    is_installed.cache_clear()


def test_files_among_the_packages_count_by_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    found = set()
    for number in (1, 2):
        (folder / "own_dropped.py").write_text(f"def g(x): return {number}")
        importlib.invalidate_caches()
        version_of.cache_clear()
        assert is_installed("own_dropped")
        found.add(digest(made("def f(x):\n import own_dropped\n return own_dropped.g(x)")))
    is_installed.cache_clear()
    version_of.cache_clear()
    assert len(found) == 2


def test_own_modules_count_by_what_is_used_of_them(own: Callable[[dict[str, str]], None]) -> None:
    uses = ["import own_helper\ndef f(x): return own_helper.scale(x)"]
    uses += ["def f(x):\n import own_helper\n return own_helper.scale(x)"]
    uses += ["def f(x):\n from own_helper import scale\n return scale(x)"]

    def written(factor: int, other: int, late: str = "") -> list[str]:
        scale = f"FACTOR = {factor}\n{late}\ndef scale(x): return x * FACTOR"
        own({"own_helper.py": f"{scale}\ndef other(x): return {other}\n"})
        functions = [made(use) for use in uses]
        sys.modules.pop("own_helper")  # whether it was imported before makes no difference
        return [digest(function) for function in reversed(functions)]

    first = written(2, 0)
    assert written(2, 1) == first
    assert written(2, 0, "# a comment") == first
    assert not set(written(3, 0)) & set(first)


def test_a_module_of_which_nothing_is_used_counts_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = set()
    for number in (1, 2):
        module = types.ModuleType("own_settings")
        (tmp_path / "own_settings.py").write_text(f"VALUE = {number}")
        module.__file__ = str(tmp_path / "own_settings.py")
        found.add(digest(made("def f(x): return getattr(settings, x)", settings=module)))
    assert len(found) == 2


LOW = "FACTOR = {number}\ndef scale(x): return x * FACTOR"

USES: dict[str, tuple[dict[str, str], str]] = {
    "a submodule that nobody imported": (
        {"own_p/__init__.py": "", "own_p/sub.py": "K = {number}"},
        "def f(x):\n from own_p import sub\n return sub.K",
    ),
    "the package around what is imported": (
        {"own_p/__init__.py": "def top(): return {number}", "own_p/sub.py": ""},
        "def f(x):\n import own_p.sub\n return own_p.top()",
    ),
    "what a module imports, by getattr": (
        {"own_h.py": "from own_l import scale", "own_l.py": LOW},
        "import own_h\ndef f(x): return getattr(own_h, x)(1)",
    ),
    "by getattr next to another attribute": (
        {"own_h.py": "CONST = 1\ndef local(): return {number}"},
        "import own_h\ndef f(x): return getattr(own_h, 'local')() + own_h.CONST",
    ),
    "by getattr after a late import": (
        {"own_h.py": "CONST = 1\ndef local(): return {number}"},
        "def f(x):\n import own_h as h\n return getattr(h, 'local')() + h.CONST",
    ),
    "by getattr after a late import of a part": (
        {"own_p/__init__.py": "", "own_p/sub.py": "CONST = 1\ndef local(): return {number}"},
        "def f(x):\n from own_p import sub as h\n return getattr(h, 'local')() + h.CONST",
    ),
    "a module as a default": (
        {"own_h.py": "import own_l", "own_l.py": LOW},
        "import own_h\ndef f(x, h=own_h): return h.own_l.scale(x)",
    ),
    "a module in a dict": (
        {"own_p/__init__.py": "", "own_p/sub.py": "from own_l import scale", "own_l.py": LOW},
        "import own_p.sub\nheld = dict(a=own_p)\ndef f(x): return held['a'].sub.scale(x)",
    ),
    "a module that another function is given": (
        {"own_h.py": "from own_l import scale\nCONST = 1", "own_l.py": LOW},
        "import own_h\ndef g(h): return h.scale\ndef f(x): return g(own_h)(x) + own_h.CONST",
    ),
    "a module in a closure": (
        {"own_h.py": "from own_l import scale\nCONST = 1", "own_l.py": LOW},
        "import own_h\ndef g(h): return lambda x: vars(h)['scale'](x) + h.CONST\nf = g(own_h)",
    ),
    "what a module finds when it is asked": (
        {"own_h.py": "CONST = 1\ndef __getattr__(name): return {number}"},
        "import own_h\ndef f(x): return own_h.late + own_h.CONST",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_own_modules_count_however_they_are_used(own: Callable[[dict[str, str]], None], name: str) -> None:
    sources, source = USES[name]
    found = []
    for number in (1, 1, 2):
        own({path: text.replace("{number}", str(number)) for path, text in sources.items()})
        function = made(source)
        found.append(digest(function))
        assert digest(function) == found[-1]  # now that what it imports has been
    assert found[0] == found[1] != found[2]


def test_names_in_code() -> None:
    def function(x: Any) -> Any:
        import json

        def inner() -> Any:
            return os_like.path  # type: ignore[name-defined]  # noqa: F821

        return json.dumps(x), inner

    names = names_in(function.__code__)
    assert names.globals == ("os_like",)
    assert names.attributes == ("dumps", "path")
    assert [found.module for found in names.imports] == ["json"]
    assert names.bare == {"dumps", "x", "inner", "path"}


# ---------------------------------------------------------------- what has no fingerprint


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (threading.Lock(), ("type _thread.lock", "belongs to this process")),
        (contextlib.closing(socket.socket()), ("type socket.socket", "attribute 'thing'")),
        (io.BytesIO(b"x"), ("type _io.BytesIO", "used up by reading")),
        ((x for x in range(0)), ("type generator", "used up")),
        (iter([1]), ("type list_iterator", "used up")),
        (itertools.count(), ("type itertools.count", "used up")),
        (random.Random(1), ("type random.Random", "map(fn, seed=…)")),
        (np.random.default_rng(1), ("type numpy.random._generator.Generator", "map(fn, seed=…)")),
        (np.random.rand, ("RandomState", "`RandomState.rand`", "map(fn, seed=…)")),
        (np.frompyfunc(len, 1, 1), ("type numpy.ufunc", "none of NumPy's own")),
        (pl.LazyFrame({"a": [1]}), ("type polars.lazyframe.frame.LazyFrame", "collect it first")),
        (pl.Series([object()]), ("type polars.series.series.Series", "Python objects")),
        (sys._getframe(), ("type frame", "belongs to this process")),
        (pa.RecordBatchReader.from_batches(pa.schema([]), []), ("RecordBatchReader", "used up")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_fingerprint(value: Any, texts: tuple[str, ...]) -> None:
    refused(af.FingerprintError, lambda: digest(value), *texts, 'cache(path, key="…")')


CALLS_PYTHON: dict[str, Callable[[], pl.Expr]] = {
    "map_batches": lambda: pl.col("a").map_batches(len, return_dtype=pl.Int64),
    "map_elements": lambda: pl.col("a").map_elements(lambda x: x, return_dtype=pl.Int64) + 1,
    "a name": lambda: pl.col("a").name.map(lambda name: name + "x"),
    "an importable function": lambda: pl.reduce(operator.add, [pl.col("a"), pl.col("b")]),
}


@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
@pytest.mark.parametrize("name", CALLS_PYTHON)
def test_expressions_that_call_python(name: str) -> None:
    """Polars serialises them, by pickling, where `cloudpickle` is installed."""
    expr = CALLS_PYTHON[name]()
    refused(af.FingerprintError, lambda: digest(expr), "type polars.expr.expr.Expr", "it calls Python")


def test_literals_are_not_taken_for_python() -> None:
    assert digest(pl.col("a") + 128)
    assert digest(pl.col("a").is_in([128, 5, 149, 0]))
    assert digest(pl.lit(b"\x80\x05\x95\x00")) != digest(pl.lit(b"\x80\x05\x95\x01"))


LOCK = threading.Lock()


def locked(x: int) -> int:
    with LOCK:
        return x


def calls_locked(x: int) -> int:
    return locked(x)


def test_errors_say_where() -> None:
    model = Plain(parts={"inner": [Plain(lock=LOCK)]})

    def closed(x: int) -> Any:
        return model, x

    def with_default(x: int, lock: Any = LOCK) -> int:
        return x

    place = "attribute 'lock' of item 0 of item 'inner' of attribute 'parts' of closure variable 'model' of "
    refused(
        af.FingerprintError,
        lambda: digest(closed),
        place + "`test_errors_say_where.closed` is of type _thread.lock",
    )
    refused(af.FingerprintError, lambda: digest(locked), "global 'LOCK' of `locked` is of type _thread.lock")
    refused(
        af.FingerprintError,
        lambda: digest(calls_locked),
        "'LOCK' of `locked`, which `calls_locked` uses, is of type",
    )
    refused(af.FingerprintError, lambda: digest(with_default), "default of 'lock' of `test_errors")
    refused(
        af.FingerprintError, lambda: digest(functools.partial(max, key=LOCK)), "argument 'key' of partial"
    )
    refused(af.FingerprintError, lambda: digest({1: {LOCK}}), "an item of item 1 is of type _thread.lock")
    refused(af.FingerprintError, lambda: digest(made("class f:\n held = LOCK", LOCK=LOCK)), "'held' of `f`")


def test_pickling_says_what_an_object_is() -> None:
    class Lean:
        def __init__(self, value: int) -> None:
            self.value, self.lock = value, threading.Lock()

        def __getstate__(self) -> Any:
            return {"value": self.value}

    same(Lean(1), Lean(1))
    differ(Lean(1), Lean(2))


# ---------------------------------------------------------------- `code_digest`, which states have


def test_the_digest_of_code_sees_an_inherited_call() -> None:
    bases = [made(f"class f:\n def __call__(self, x): return {number}") for number in (1, 2)]
    derived = [type("Derived", (base,), {})() for base in bases]
    assert code_digest(derived[0]) != code_digest(derived[1])
    assert code_digest(derived[0]) == code_digest(bases[0]())

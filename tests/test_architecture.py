"""The structure that DESIGN and ARCHITECTURE promise, checked on the source: layers, threads, trust, sizes, docs."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import arrowflow as af
from arrowflow.kernels.operator import Operator
from arrowflow.optimizer import RULES
from arrowflow.plan.node import Node

pytestmark = pytest.mark.any_version

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "arrowflow"
PAGE = ROOT / "ARCHITECTURE.md"

BELOW_OPS = (
    "bad_rows",
    "caching",
    "errors",
    "expr",
    "formats",
    "interchange",
    "kernels",
    "lookup",
    "options",
    "plan",
    "random",
    "recycler",
    "storage",
    "types",
    "workarounds",
)
BELOW_RUN = (
    "errors",
    "executor",
    "expr",
    "kernels",
    "observe.timeline",
    "ops",
    "optimizer",
    "options",
    "physical",
    "plan",
    "state",
)
BELOW_LOADERS = ("autotune", "clock", "delivery", "iterator", "observe", "run", *BELOW_RUN)

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "interrupts": (),
    "lazy": (),
    "optional": ("errors",),
    "errors": (),
    "options": ("errors",),
    "clock": (),
    "random": (),
    "recycler": (),
    "arenas": (),
    "storage": ("clock", "errors", "options"),
    "bad_rows": ("errors", "options", "storage"),
    "plan": ("errors", "options", "random", "types"),
    "workarounds": ("errors",),
    "types": ("errors", "workarounds"),
    "kernels": ("bad_rows", "errors", "options", "plan", "storage", "workarounds"),
    "lookup": ("errors", "types", "workarounds"),
    "expr": ("errors", "lookup", "options", "recycler", "types", "workarounds"),
    "interchange": ("errors", "types"),
    "formats": ("bad_rows", "errors", "expr", "interchange", "options", "storage", "types", "workarounds"),
    "caching": ("errors", "expr", "formats", "options", "plan", "storage", "workarounds"),
    "ops": BELOW_OPS,
    "optimizer": ("errors", "expr", "kernels", "ops", "plan"),
    "physical": ("bad_rows", "kernels", "options", "plan"),
    "autotune": ("errors", "options", "physical.tuning"),
    "observe": (
        "autotune.limit",
        "autotune.model",
        "bad_rows",
        "errors",
        "options",
        "physical.totals",
        "physical.tuning",
        "plan.node",
    ),
    "executor": (
        "arenas",
        "bad_rows",
        "clock",
        "errors",
        "kernels",
        "observe.timeline",
        "options",
        "physical",
        "plan",
        "workarounds",
    ),
    "state": ("errors", "kernels", "physical", "plan"),
    "run": ("autotune", "clock", *BELOW_RUN),
    "cluster": ("bad_rows", "clock", "delivery", "optional", "workarounds", *BELOW_RUN, "run"),
    "delivery": ("kernels", "physical.tuning", "plan"),
    "iterator": ("autotune", "clock", "delivery", "observe", "run", *BELOW_RUN),
    "loaders": ("arenas", "interchange", "workarounds", *BELOW_LOADERS),
    "write": (
        "caching.store.claim",
        "errors",
        "formats",
        "interchange",
        "kernels.gather",
        "ops.sources.files.partitions",
        "options",
        "storage",
        "workarounds",
    ),
    "dataset": ("caching", "cluster", "features", "interchange", "loaders", "types", "write", *BELOW_LOADERS),
    "image": ("errors",),
    "features": ("errors", "expr", "observe.whole_file", "types"),
    "combining": ("dataset", "errors", "ops", "options", "plan"),
    "provenance": ("bad_rows", "dataset", "errors", "iterator", "ops", "options", "plan", "run", "sources"),
    "sources": (
        "bad_rows",
        "dataset",
        "errors",
        "formats",
        "interchange",
        "observe.guessed_names",
        "ops",
        "options",
        "storage",
    ),
    "__init__": (
        "caching",
        "cluster.engine",
        "combining",
        "dataset",
        "errors",
        "features",
        "image",
        "iterator",
        "loaders",
        "observe.guessed_names",
        "observe.plot",
        "options",
        "physical.tuning",
        "provenance",
        "sources",
        "state",
    ),
    "cli": (
        "caching",
        "clock",
        "dataset",
        "errors",
        "executor.workers.together",
        "formats",
        "loaders",
        "observe.progress",
        "observe.whole_file",
        "ops",
        "options",
        "physical.tuning",
        "plan",
        "sources",
        "state",
        "storage",
        "types",
        "write",
    ),
    "__main__": (),
    "testing": ("dataset", "formats", "sources", "storage", *BELOW_LOADERS),
}
"""What a layer (a package, or a module at the top) may import of the library. Everything else is a step upwards."""

LEAVES = ("interrupts", "lazy", "optional")
"""What every layer may import."""

LONG: dict[str, str] = {
    "dataset.py": "one method an operator, and mostly docstrings",
    "sources/readers.py": "one function a source, and mostly docstrings",
    "formats/text/text.py": "one protocol for both formats, and how blocks with bad rows are read",
    "ops/combine/interleave.py": "one operator: its node, the pieces for its turns, and two of its kernels",
    "physical/tuning.py": "the seam to the tuner: what is measured and what is set, and mostly docstrings",
    "options.py": "one line a setting, and what it means",
    "state.py": "one value: how it is made, checked, compared and merged",
}
"""Modules over 400 lines, and why. None but the first is over 600."""

LATE = {
    "arrowflow.cluster.on_cluster": "Ray",
    "arrowflow.cluster.to_ray": "Ray Data",
    "arrowflow.loaders.torch_dataset": "PyTorch",
    "arrowflow.ops.sources.read_delta": "deltalake",
    "arrowflow.ops.sources.read_iceberg": "pyiceberg",
    "arrowflow.ops.sources.read_lance": "lance",
    "asyncio": "",
    "cloudpickle": "",
    "difflib": "",
    "fsspec": "",
    "google": "",
    "google_crc32c": "",
    "html": "",
    "jax": "",
    "ml_dtypes": "",
    "tensorflow": "",
    "torch": "",
}
"""What may be imported where it is used, and of this library's modules the optional package that they work for. So nobody
waits at `import arrowflow` for what few programs need."""

COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def shipped() -> list[Path]:
    """Returns the library without the tools for tests."""
    return [path for path in files() if layer_of(path) != "testing"]


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def module_of(path: Path) -> ModuleType:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return importlib.import_module(".".join(parts).removesuffix(".__init__"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> Sequence[ast.AST]:
    return list(ast.walk(tree_of(path)))


def faults(paths: Iterable[Path], check: Callable[[Path], Collection[object]]) -> dict[str, object]:
    """Returns what `check` finds, by file."""
    return {name_of(path): found for path in paths if (found := check(path))}


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the full name of everything that is imported in some nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports have two spellings"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(nodes: Iterable[ast.AST]) -> Iterator[Function]:
    return (node for node in nodes if isinstance(node, Function))


def within(name: str, allowed: Sequence[str]) -> bool:
    return any(name == one or name.startswith(one + ".") for one in allowed)


# ---------------------------------------------------------------- layers


def test_imports_go_one_way() -> None:
    def above(path: Path) -> list[str]:
        own = layer_of(path)
        assert own in MAY_IMPORT, f"{own} has no place among the layers: say what it may import"
        ours = [
            name.partition(".")[2]
            for name in imports(nodes_of(path))
            if name.partition(".")[0] == "arrowflow"
        ]
        return [name for name in ours if not within(name, (own, *LEAVES, *MAY_IMPORT[own]))]

    assert faults(files(), above) == {}, "these import what lies above them"


def test_the_layers_have_no_cycle() -> None:
    left = {layer: {name.partition(".")[0] for name in below} for layer, below in MAY_IMPORT.items()}
    while left:
        lowest = {layer for layer, below in left.items() if not below & left.keys()}
        assert lowest, f"these layers import each other: {sorted(left)}"
        left = {layer: below for layer, below in left.items() if layer not in lowest}


def test_the_layers_are_those_that_exist() -> None:
    assert set(MAY_IMPORT) == {layer_of(path) for path in files()}


def test_nothing_is_imported_late() -> None:
    def late(path: Path) -> list[str]:
        return [
            name
            for function in functions(nodes_of(path))
            for name in imports(ast.walk(function))
            if not {name.partition(".")[0], name.rpartition(".")[0]} & LATE.keys()
        ]

    assert faults(shipped(), late) == {}


# ---------------------------------------------------------------- threads, clocks, trust

THREADS = (
    "threading",
    "subprocess",
    "queue",
    "concurrent",
    "multiprocessing",
    "_thread",
    "asyncio",
    "selectors",
    "sched",
)


def imported(path: Path, modules: Sequence[str]) -> list[str]:
    return [name for name in imports(nodes_of(path)) if within(name, modules)]


def test_threads_are_the_executors_alone() -> None:
    others = [path for path in shipped() if layer_of(path) != "executor"]
    pickler = ["multiprocessing.reduction.DupFd", "multiprocessing.reduction.ForkingPickler"]
    assert faults(others, lambda path: imported(path, THREADS)) == {
        "cluster/parts.py": ["threading"],  # a lock, for the bytes that lanes claim of the store
        "cluster/session.py": ["threading"],  # a lock: the executor's threads wait for workers
        "cluster/lane_worker.py": ["threading"],  # a lock: Ray's threads plan lanes one after the other
        "expr/own/replaced.py": ["threading"],  # a lock: one thread makes a table that all of them read
        "loaders/worker_batch.py": pickler,
        "storage/requests.py": ["asyncio"],  # waits on the event loop that fsspec runs
    }


def test_time_is_told_where_the_clock_is_made() -> None:
    assert faults(shipped(), lambda path: imported(path, ("time",))) == {"clock.py": ["time"]}
    used = {
        node.attr
        for node in nodes_of(PACKAGE / "clock.py")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    assert {"perf_counter", "thread_time"} <= used and "sleep" not in used


PICKLES = ("pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib")


def test_nothing_is_unpickled_or_executed() -> None:
    """I10: but for what travels between this process and those that it started itself."""

    def executed(path: Path) -> list[str]:
        called = [node.func for node in nodes_of(path) if isinstance(node, ast.Call)]
        return [
            function.id
            for function in called
            if isinstance(function, ast.Name) and function.id in {"eval", "exec", "__import__"}
        ]

    pickles = faults(shipped(), lambda path: imported(path, PICKLES))
    assert pickles == {"executor/processes/wire.py": ["pickle", "cloudpickle"]}
    assert faults(shipped(), executed) == {}


def test_the_library_does_not_print() -> None:
    def printed(path: Path) -> list[int]:
        return [node.lineno for node in nodes_of(path) if isinstance(node, ast.Name) and node.id == "print"]

    assert faults(shipped(), printed) == {}


# ---------------------------------------------------------------- where to add what


def operators() -> dict[str, list[type[Operator]]]:
    """Returns the operators by the module of `ops/` that holds them."""
    found: dict[str, list[type[Operator]]] = {}
    for path in sorted((PACKAGE / "ops").rglob("*.py")):
        module = module_of(path)
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, Operator) and not inspect.isabstract(value):
                named = isinstance(getattr(value, "name", None), str)
                if named and value.__module__ == module.__name__:
                    found.setdefault(path.stem, []).append(value)
    return found


def sources() -> set[str]:
    return {name for name in af.__all__ if inspect.isfunction(getattr(af, name))}


MADE_BY_RULES = {"column_program"}
"""Operators that nobody writes."""


SAME_WORD = {
    "disk_cache": "`cache(path)`: one method, two operators, too long for one module",
    "shared_cache": '`cache("s3://…")`: the same method',
    "agreed_steps": "`split_by_rank(coordinator=)`: at the end of the whole plan",
    "parts": "`split_by_rank` in lanes: one method, two ways to run a plan",
    "whole": "`split_by_rank` of any plan: the other way",
    "global_shuffle": "`shuffle()`: one method, two operators, too long for one module",
}
"""Modules of operators that another module's method makes, with a reason."""


@pytest.mark.parametrize("module", sorted(operators().keys() - MADE_BY_RULES - SAME_WORD.keys()))
def test_an_operator_has_one_word_through_the_stack(module: str) -> None:
    names = {operator.name for operator in operators()[module]}
    methods = {name for name in vars(af.Dataset) if not name.startswith("_")}
    if module in methods:
        assert names == {module}
        assert len(list((ROOT / "tests/ops").glob(f"*/test_{module}.py"))) == 1
    else:
        words = [word for word in sources() if word in names or word.partition("_")[0] == module]
        assert words, f"no source and no method of Dataset makes the operators of {module}.py"
        tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
        assert [word for word in words if not any(f"af.{word}(" in text for text in tests)] == []


def test_rules_are_one_file_each() -> None:
    modules = {path.stem for path in (PACKAGE / "optimizer").glob("*.py")} - {"__init__", "rules"}
    assert modules == {rule.name for rule in RULES}
    for rule in RULES:
        assert rule.apply.__module__ == f"arrowflow.optimizer.{rule.name}"
        assert rule.reason


# ---------------------------------------------------------------- sizes


def test_modules_are_short() -> None:
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files()}
    assert {name for name, count in lines.items() if count > 600} <= {"dataset.py"}
    long = {name for name, count in lines.items() if count > 400}
    assert long == LONG.keys(), (
        "split what is too long, or give a reason in LONG, which has none that is not needed"
    )


def test_functions_are_short() -> None:
    lengths = sorted(
        (function.end_lineno or function.lineno) - function.lineno + 1
        for path in shipped()
        for function in functions(nodes_of(path))
    )
    assert statistics.median(lengths) <= 10
    assert lengths[int(0.9 * len(lengths))] <= 35


def test_a_node_has_few_questions() -> None:
    """What only sources of files, split plans or a cheaper way to rows need is asked of `FileSource`, `InLanes`, `RowAccess`."""
    public = {name for name in dir(Node) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(Node)} | {"name", "traits"}
    assert len(public - fields) <= 25


def depth(node: ast.AST) -> int:
    """Returns how deep compound statements are nested; an `elif` is as deep as its `if`, a function starts anew."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef | ast.Lambda):
            continue
        chained = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        deepest = max(deepest, depth(child) + (isinstance(child, COMPOUND) and not chained))
    return deepest


def test_nesting_is_shallow() -> None:
    def deep(path: Path) -> list[str]:
        return [function.name for function in functions(nodes_of(path)) if depth(function) > 4]

    assert faults(files(), deep) == {}


def test_depth_counts_as_it_says() -> None:
    code = "def f():\n if a:\n  pass\n elif b:\n  for c in d:\n   with e:\n    pass\n else:\n  def g():\n   if h: pass\n"
    (function,) = (node for node in functions(ast.walk(ast.parse(code))) if node.name == "f")
    assert depth(function) == 3


# ---------------------------------------------------------------- words


def documented(owner: Any, module: str) -> Iterator[tuple[str, Any]]:
    """Yields the public functions, classes and methods that are written in a module, with their names."""
    for name, member in vars(owner).items():
        value = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if name.startswith("_") or getattr(value, "__module__", None) != module:
            continue
        if inspect.isfunction(value) or inspect.isclass(value):
            yield name, getattr(owner, name)
        if inspect.isclass(value):
            yield from ((f"{name}.{inner}", one) for inner, one in documented(value, module))


def test_everything_public_has_a_docstring() -> None:
    """Its own, or that of the method which it overrides."""

    def silent(path: Path) -> list[str]:
        module = module_of(path)
        members = [(module.__name__, module), *documented(module, module.__name__)]
        return [name for name, value in members if not inspect.getdoc(value)]

    assert faults(files(), silent) == {}


def test_every_method_of_dataset_and_every_source_has_an_example() -> None:
    methods = {name: getattr(af.Dataset, name) for name in vars(af.Dataset) if not name.startswith("_")}
    functions = {name: getattr(af, name) for name in sources()}
    documents = {name: inspect.getdoc(value) or "" for name, value in (methods | functions).items()}
    assert [name for name, document in documents.items() if ">>> " not in document] == []


@pytest.mark.parametrize("path", [path for path in files() if path.name == "__init__.py"], ids=name_of)
def test_all_is_sorted_and_true(path: Path) -> None:
    module = module_of(path)
    given: list[str] = getattr(module, "__all__", [])
    assert given == sorted(set(given), key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert [name for name in given if not hasattr(module, name)] == []
    imported = {
        alias.asname or alias.name
        for node in tree_of(path).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("arrowflow")
        for alias in node.names
    }
    used = {node.id for node in nodes_of(path) if isinstance(node, ast.Name)}
    assert imported - used - set(given) == set(), "imported for nobody"


# ---------------------------------------------------------------- ARCHITECTURE.md


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def between(start: str, stop: str) -> str:
    found = re.search(rf"<!-- {start} -->(.*?)<!-- {stop} -->", page(), re.DOTALL)
    assert found, f"ARCHITECTURE.md has no {start}"
    return found[1]


def test_the_page_is_short() -> None:
    assert len(page().splitlines()) <= 130


def test_the_page_names_every_layer_and_none_that_is_not_there() -> None:
    named = re.findall(
        r"`([\w.]+/?)`", "".join(re.findall(r"^\|([^|]*)\|", between("modules", "/modules"), re.MULTILINE))
    )
    there = {layer_of(path) for path in files()} - {"__init__"}
    assert sorted(named) == sorted(
        f"{layer}{'/' if (PACKAGE / layer).is_dir() else '.py'}" for layer in there
    )


def test_the_cells_of_tables_are_short() -> None:
    tables = [PAGE, *PACKAGE.rglob("README.md")]
    lines = [line for path in tables for line in path.read_text(encoding="utf-8").splitlines()]
    assert max(len(cell) for line in lines if line.startswith("|") for cell in line.split("|")) <= 200


# ---------------------------------------------------------------- the README.md of each folder


def folders() -> list[Path]:
    return sorted({path.parent for path in files()} - {PACKAGE})


@pytest.mark.parametrize("folder", folders(), ids=name_of)
def test_a_folder_has_a_page_that_names_its_modules(folder: Path) -> None:
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# {name_of(folder)}"
    text = [line for line in lines if not line.startswith("| `")]
    assert len(text) <= 24, "shorten the page"
    for said in ("Belongs here", "Does not", "Copy", "Imported by"):
        assert any(line.startswith(f"- **{said}:** ") for line in lines)
    named = re.findall(
        r"`([\w.]+/?)`", "".join(line.split("|")[1] for line in lines if line.startswith("| `"))
    )
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    inside = {f"{path.name}/" for path in folders() if path.parent == folder}
    assert set(named) == modules | inside, "the table of README.md has other names than the folder"
    assert len(named) == len(set(named))


@pytest.mark.parametrize("folder", [PACKAGE, *folders()], ids=name_of)
def test_a_folder_is_small(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    assert len(modules) <= 15


def test_no_modules_import_each_other() -> None:
    """Imports under `TYPE_CHECKING` count: who reads one module of a cycle has to read all."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files()
    }
    left = {
        name: {
            found if found in names else found.rpartition(".")[0]
            for found in imports(nodes_of(path))
            if found in names or found.rpartition(".")[0] in names
        }
        for name, path in names.items()
    }
    left = {name: below & left.keys() - {name} for name, below in left.items()}
    while left:
        lowest = {name for name, below in left.items() if not below & left.keys()}
        assert lowest, f"cycles of imports lie among {sorted(left)}"
        left = {name: below for name, below in left.items() if name not in lowest}


def test_paths_on_the_page_exist() -> None:
    text = re.sub(r"<!-- modules -->.*?<!-- /modules -->", "", page(), flags=re.DOTALL)
    paths = set(re.findall(r"`([\w./]+(?:\.py|\.md|/))`", text))
    assert paths
    assert [path for path in paths if not any((base / path).exists() for base in (ROOT, PACKAGE))] == []


def test_the_page_lists_the_rules_in_their_order() -> None:
    named = re.findall(r"^\d+\. `(\w+)`", between("rules", "/rules"), re.MULTILINE)
    assert named == [rule.name for rule in RULES]

"""Nothing here imports pandas, which pyarrow does at many a corner where it is installed: 600 ms at the first call."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pytest

from tests.ops.tables import PNG

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 60

PRELUDE = """
import pickle
import sys
import numpy as np
import polars as pl
import pyarrow as pa
import arrowflow as af

def wants_no_pandas(what):
    assert "pandas" not in sys.modules, what + " imported pandas"

folder = sys.argv[1]
"""

PIPELINES = {
    "schema": """
        dataset = af.read_parquet(folder)
        dataset.schema, dataset.num_rows, repr(dataset), dataset.explain()
    """,
    "read_parquet": "rows = sum(batch.num_rows for batch in af.read_parquet(folder))",
    "columns": "list(af.read_parquet(folder, columns=['x', 's']))",
    "filter_polars": "list(af.read_parquet(folder).filter((pl.col('x') > 10) & pl.col('s').is_in(['a', 'b'])))",
    "filter_pyarrow": "list(af.read_parquet(folder).filter(pickle.loads(bytes.fromhex(sys.argv[2]))))",
    "filter_a_date": """
        import datetime
        list(af.read_parquet(folder).filter(pl.col("d") >= datetime.date(1970, 2, 1)))
    """,
    "with_columns": """
        dataset = af.read_parquet(folder).with_columns(
            twice=pl.col("x") * 2, low=pl.col("s").str.to_lowercase(), flag=pl.col("f").fill_null(0) > 0.5
        )
        list(dataset)
    """,
    "cast_and_fill_null": """
        list(af.read_parquet(folder).fill_null({"f": 0.0}).cast({"x": pa.float32()}).rename({"x": "y"}).drop("s"))
    """,
    "stack_shuffle_batch": """
        dataset = af.read_parquet(folder).fill_null(0.0).stack(dense=["f", "g"]).shuffle(100, seed=1).batch(32)
        list(dataset)
    """,
    "map_arrow": "list(af.read_parquet(folder).map(lambda batch: batch.select(['x'])).batch(16))",
    "map_numpy": """
        dataset = af.read_parquet(folder).select("x").map(lambda arrays: {"y": arrays["x"] * 2}, format="numpy")
        list(dataset)
    """,
    "map_polars": """
        list(af.read_parquet(folder).map(lambda frame: frame.with_columns(pl.col("x").alias("y")), format="polars"))
    """,
    "fit": """
        dataset = af.read_parquet(folder)
        dataset.describe()
        stats = dataset.fit(mean=["f"], min_max=["g"], quantiles={"x": 4}, vocabulary={"s": 3})
        list(dataset.select(f=stats.standardize("f"), g=stats.rescale("g"), x=stats.bucketize("x"), s=stats.index("s")))
    """,
    "take_skip_shard_repeat": "list(af.read_parquet(folder).skip(3).shard(2, 0).take(50).repeat(2).batch(8))",
    "to_numpy": """
        dataset = af.read_parquet(folder).fill_null(0.0).stack(dense=["f", "g"]).batch(32).to_numpy()
        for batch in dataset:
            batch["dense"].sum()
    """,
    "to_polars": "list(af.read_parquet(folder).batch(32).to_polars())",
    "to_dlpack": """
        for batch in af.read_parquet(folder).select("x").batch(32).to_dlpack():
            np.from_dlpack(batch["x"])
    """,
    "to_table_and_reader": """
        af.read_parquet(folder).to_table()
        af.read_parquet(folder).to_reader().read_all()
        pl.DataFrame(af.read_parquet(folder))
    """,
    "range": "list(af.range(100_000).shuffle(1000).batch(100).to_numpy())",
    "from_numpy": "list(af.from_numpy({'a': np.arange(10), 'b': np.ones((10, 3))}).batch(4).to_numpy())",
    "from_generator": "list(af.from_generator(lambda: ({'a': i, 'b': 'text'} for i in range(10))).batch(4))",
    "from_polars": "list(af.from_arrow(pl.DataFrame({'a': [1, 2, 3]})).batch(2))",
    "ipc": """
        pl.read_parquet(folder).write_ipc(folder + "/../all.arrow")
        list(af.read_ipc(folder + "/../all.arrow").filter(pl.col("x") > 3).batch(10))
    """,
    "a_footer": """
        from arrowflow.formats import FORMATS
        from arrowflow.storage import resolve
        store, files = resolve(folder, suffixes=(".parquet",), operator="read_parquet")
        parquet, seen = FORMATS["parquet"], []
        footer = parquet.footer(store, files[0])
        parquet.prune(footer, footer.splits[0], lambda found, rows: seen.append(dict(found)) or True)
        list(parquet.read(store, footer, footer.splits[0], footer.schema))
        assert seen[0]
    """,
    "programs": """
        from arrowflow.expr import (
            Cast, FillNull, Keep, Project, Stack, Where, compile_steps, parse_expression, prunable
        )
        import pyarrow.compute as pc
        def parsed(expression):
            return parse_expression(expression, operator="t")
        buffer = pa.py_buffer(bytes(80))
        batch = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.int64(), 10, [None, buffer])], names=["x"])
        x = pc.field("x")
        steps = [
            Where(parsed(pl.col("x") < 1)),
            Where(parsed(pc.equal(x, x))),
            Where(parsed(pc.is_null(pc.bit_wise_and(x, x)) == pc.is_null(x))),
            Project((("a", FillNull("x", 1)), ("b", parsed(pl.col("x").cast(pl.String))), ("x", Keep("x")))),
            Project((("m", Stack(("a", "x"), pa.float32())), ("b", Keep("b")), ("c", Cast("x", pa.string())))),
        ]
        program = compile_steps(steps, batch.schema)
        assert program.run(batch).num_rows == 10, program.explain()
        prunable(steps[0].predicate, batch.schema)
    """,
    "exports": """
        from arrowflow.loaders.dlpack import DlpackExport
        from arrowflow.loaders.numpy import NumpyExport
        from arrowflow.loaders.polars import PolarsExport
        kinds = [pa.int32(), pa.bool_(), pa.date32(), pa.string(), pa.list_(pa.int8(), 2), pa.timestamp("us")]
        batch = pa.RecordBatch.from_arrays([pa.nulls(4, kind).slice(4) for kind in kinds], names=list("abcdef"))
        for exporter in (NumpyExport(batch.schema, owned=True), PolarsExport(batch.schema)):
            exporter(batch), exporter.chunk(batch)(0, 0), exporter.explain()
        DlpackExport(batch.select(["a"]).schema, owned=False)(batch.select(["a"]))
        text = pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], "i4")), pa.py_buffer(b"ab")]
        )
        batch = pa.RecordBatch.from_arrays([text], names=["t"])
        assert NumpyExport(batch.schema, owned=True)(batch)["t"][0] == "ab"
    """,
    "explode": """
        lists = af.from_arrow(pl.DataFrame({"a": [[1, 2], [], None]}))
        list(lists.explode("a"))
    """,
    "join": """
        rows = af.from_arrow(pl.DataFrame({"a": [1, None, 3], "s": ["x", None, "y"]}))
        for key in ("a", "s"):
            table = pl.DataFrame(rows).select(key, v=pl.col(key)).head(1)
            list(rows.join(table, key)), list(rows.join(table, key, how="inner", unique=False))
    """,
    "fill_null_of_an_enum": """
        enum = pl.Enum(["a", "b"])
        list(af.from_arrow(pl.DataFrame({"a": ["a", None]}, schema={"a": enum})).fill_null("b"))
    """,
    "fill_null_of_a_number": """
        list(af.from_arrow(pl.DataFrame({"a": [1, None], "s": ["x", None]})).fill_null({"a": 3, "s": ""}))
    """,
    "bad_rows": """
        import logging
        from pathlib import Path
        logging.getLogger("arrowflow").setLevel(logging.ERROR)  # a line for each file
        for suffix, lines in (("csv", ["a,b", "1,x", "no,y", "3", "4,z"]), ("json", ['{"a": 1}', '{"a": "no"}', "{"])):
            file = Path(folder).parent / f"bad.{suffix}"
            file.write_text("\\n".join(lines) + "\\n")
            read = af.read_csv if suffix == "csv" else af.read_json
            found = read(file, schema={"a": pa.int64()}, on_error="skip").to_table()["a"].to_pylist()
            assert found == ([1, 4] if suffix == "csv" else [1]), found
    """,
    "texts": """
        import logging
        from pathlib import Path
        logging.getLogger("arrowflow").setLevel(logging.ERROR)
        file = Path(folder).parent / "lines.txt"
        file.write_bytes(b"one\\r\\n\\xff\\ntwo\\n")
        assert af.read_text(file, on_error="skip").to_table()["text"].to_pylist() == ["one", "two"]
    """,
    "whole_files": """
        from pathlib import Path
        for name in "ab":
            (Path(folder).parent / "whole" / name).mkdir(parents=True)
            (Path(folder).parent / "whole" / name / "x").write_bytes(name.encode())
        found = af.read_files(Path(folder).parent / "whole", labels="folder")
        list(found.batch(2)), list(found.shuffle(seed=1).batch(2)), list(found.shuffle(8, seed=1))
    """,
    "images": """
        import importlib.util, logging
        logging.getLogger("arrowflow").setLevel(logging.ERROR)
        images = pl.DataFrame({"image": [bytes.fromhex(sys.argv[3]), None, b"no image"]})
        if importlib.util.find_spec("cv2"):
            found = af.from_arrow(images).decode_image("image", 1, crop="random", on_error="skip")
            assert sum(batch.num_rows for batch in found) == 2
    """,
    "webdataset": """
        import io, tarfile
        file = folder + "/../rows.tar"
        with tarfile.open(file, "w") as archive:
            for name, data in {"a.cls": b"1", "a.txt": b"x", "b.bin": b"y"}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        assert af.read_webdataset(file).to_table().num_rows == 2
    """,
    "orc": """
        assert af.read_orc(folder + "/../rows.orc").filter(pl.col("x") > 97).to_table().num_rows == 2
    """,
    "avro": """
        pl.DataFrame({"x": [1, 2], "l": [["a"], None]}).write_avro(folder + "/../rows.avro", compression="snappy")
        assert af.read_avro(folder + "/../rows.avro").filter(pl.col("x") > 1).to_table().num_rows == 1
    """,
    "delta": """
        import importlib.util
        if importlib.util.find_spec("deltalake"):
            import deltalake
            rows = pl.DataFrame({"x": [1, 2], "part": ["a", "b"]})
            deltalake.write_deltalake(folder + "/../delta", rows, partition_by=["part"])
            list(af.read_delta(folder + "/../delta").filter(pl.col("part") == "a"))
    """,
    "states": """
        loader = af.read_parquet(folder).drop("f").shuffle(64).batch(16).to_numpy()
        for _ in loader:
            break
        state = loader.state_dict()
        loader.load_state_dict(state)
        list(loader)
        loader.stats()
    """,
}
"""Every pipeline runs in the order of this table, so that the first one that imports pandas is named."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import datetime

    import polars as pl

    path = tmp_path_factory.mktemp("cold") / "files"
    path.mkdir()
    for number in range(2):
        frame = pl.DataFrame(
            {
                "x": list(range(100)),
                "f": [None if i % 7 == 0 else i / 100 for i in range(100)],
                "g": [float(i) for i in range(100)],
                "s": ["abc"[i % 3] for i in range(100)],
                "d": [datetime.date(1970, 1, 1) + datetime.timedelta(days=i) for i in range(100)],
            }
        )
        frame.write_parquet(path / f"{number}.parquet", row_group_size=25)
    pyarrow.orc.write_table(pa.table({"x": range(100)}), path.parent / "rows.orc")  # which imports pandas
    return path


def bare(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process that has imported nothing."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # Writing `pc.field("x") > 10` is what imports pandas, in the user's own code: here it comes ready-made.
    predicate = pickle.dumps((pc.field("x") > 10) & (pc.field("f") < 0.5)).hex()
    return bare(PRELUDE + code, str(folder), predicate, PNG.hex())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_the_check_would_see_pandas(folder: Path) -> None:
    found = run("import pandas\nwants_no_pandas('the test itself')\n", folder)
    assert "the test itself imported pandas" in found.stderr


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_no_pipeline_imports_pandas(folder: Path) -> None:
    lines = ["failures = []"]
    for name, code in PIPELINES.items():
        body = textwrap.indent(textwrap.dedent(code), "    ")
        lines.append(
            f"def pipeline():\n{body}\npipeline()\n"
            f"if 'pandas' in sys.modules:\n"
            f"    failures.append({name!r})\n"
            f"    for module in [key for key in sys.modules if key.partition('.')[0] == 'pandas']:\n"
            f"        del sys.modules[module]\n"
        )
    lines.append("assert not failures, f'these imported pandas: {failures}'")
    found = run("\n".join(lines), folder)
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""


def test_importing_the_library_imports_no_optional_package_and_starts_nothing(folder: Path) -> None:
    code = (
        "optional = {'pandas', 'torch', 'jax', 'duckdb', 'fsspec', 'pytest', 'hypothesis'}\n"
        "assert not optional & sys.modules.keys(), optional & sys.modules.keys()\n"
        "import threading\n"
        "from arrowflow.executor import process_exit\n"
        "af.range(10).batch(2).schema\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert process_exit._Process.owner is None\n"
    )
    found = run(code, folder)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("frozen", [False, True])
def test_the_import_leaves_few_young_objects_to_the_collector(frozen: bool) -> None:
    """Otherwise it would look at all of them in the first run."""
    code = (
        "import gc\n"
        f"{'gc.freeze()' if frozen else ''}\n"
        "import arrowflow\n"
        f"assert gc.isenabled() and bool(gc.get_freeze_count()) == {frozen}\n"
        f"assert {frozen} or len(gc.get_objects(generation=0)) < 1000\n"
    )
    found = bare(code)
    assert found.returncode == 0, found.stderr


def test_on_windows_the_import_says_what_to_do(folder: Path) -> None:
    code = "import sys\nsys.platform = 'win32'\nimport arrowflow"
    found = bare(code)
    assert "ImportError: arrowflow runs on Linux and macOS, not on Windows" in found.stderr
    assert "WSL 2" in found.stderr

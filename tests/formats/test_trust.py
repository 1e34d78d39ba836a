"""Nothing in a data file is executed: no pickles in the metadata of extension types, and no names of modules."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from tests.formats.reading import KINDS, read_all, write_table

FORMATS = {"parquet": af.read_parquet, "ipc": af.read_ipc}
opened: list[str] = []


def leave_a_trace() -> None:
    opened.append("unpickled")


class Payload:
    """Unpickled, it leaves a trace."""

    def __reduce__(self) -> Any:
        return leave_a_trace, ()


@pytest.fixture(autouse=True)
def _nothing_is_executed() -> Iterator[None]:
    opened.clear()
    yield
    assert not opened


def write(path: Path, schema: pa.Schema) -> None:
    write_table(path, pa.table([pa.array([1, 2, 3])], schema=schema))


PICKLED = pickle.dumps(Payload())
PANDAS = {
    "index_columns": [{"kind": "range", "name": None, "start": 0, "stop": 3, "step": 1}],
    "column_indexes": [{"name": None, "pandas_type": "os.system", "numpy_type": "object", "metadata": None}],
    "columns": [
        {"name": "x", "field_name": "x", "pandas_type": "object", "numpy_type": "os:system", "metadata": None}
    ],
    "creator": {"library": "__import__('os')", "version": "1"},
    "pandas_version": "2.0",
}
METADATA = {
    "a pickled extension type": {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": PICKLED,
    },
    "an unknown extension type": {"ARROW:extension:name": "os.system", "ARROW:extension:metadata": PICKLED},
    "metadata of pandas": {},
}


def test_the_payload_would_leave_a_trace() -> None:
    pickle.loads(PICKLED)
    assert opened
    opened.clear()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", METADATA)
def test_metadata_are_not_executed(tmp_path: Path, format: str, case: str) -> None:
    field = pa.field("x", pa.int64(), metadata=METADATA[case])
    path = tmp_path / f"a.{format}"
    write(path, pa.schema([field], metadata={"pandas": json.dumps(PANDAS), "x": PICKLED}))
    for kind in KINDS:
        assert read_all(af.formats.FORMATS[format], path, kind=kind)["x"].to_pylist() == [1, 2, 3]
    ds = FORMATS[format](path)
    assert ds.to_table()["x"].to_pylist() == [1, 2, 3]
    assert [batch["x"].tolist() for batch in ds.batch(2).to_numpy()] == [[1, 2], [3]]
    assert next(iter(ds.to_polars()))["x"].to_list() == [1, 2, 3]
    assert ds.schema.field("x").type == pa.int64()


@pytest.mark.parametrize("format", FORMATS)
def test_a_registered_type_is_made_by_its_own_class_and_nothing_else(tmp_path: Path, format: str) -> None:
    class Unit(pa.ExtensionType):
        def __init__(self, unit: bytes = b"m") -> None:
            self.unit = unit
            super().__init__(pa.int64(), "arrowflow.tests.unit")

        def __arrow_ext_serialize__(self) -> bytes:
            return self.unit

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Unit:
            return cls(serialized)

    pa.register_extension_type(Unit())
    try:
        path = tmp_path / f"a.{format}"
        names = {"ARROW:extension:name": "arrowflow.tests.unit", "ARROW:extension:metadata": PICKLED}
        write(path, pa.schema([pa.field("x", pa.int64(), metadata=names)]))
        found = FORMATS[format](path).to_table()
        assert found["x"].type.unit == PICKLED
        assert found["x"].chunk(0).storage.to_pylist() == [1, 2, 3]
    finally:
        pa.unregister_extension_type("arrowflow.tests.unit")

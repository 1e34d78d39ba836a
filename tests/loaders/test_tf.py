"""`to_tf`: the batches of `to_numpy` as tensors of TensorFlow, for Keras and `tf.data`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.loaders.tf import TfExport
from tests.ops.tables import ALL_TYPES, refused

pytestmark = [
    pytest.mark.slow,  # the import takes seconds
    pytest.mark.any_version,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

TABLE = pa.table(
    {
        "x": pa.array([1.5, None, 3.5, 4.5, 5.5], pa.float32()),
        "pair": pa.array([[row, -row] for row in range(5)], pa.list_(pa.int16(), 2)),
        "tokens": pa.array([[1], [2, 3], [], [4, 5, 6], [7]], pa.list_(pa.int32())),
        "text": ["a", "ü", "", "d", "e"],
        "up": [True, False, True, False, True],
    }
)


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def test_batches_are_those_of_numpy(tf: Any) -> None:
    ds = af.from_arrow(TABLE).batch(2)
    asked: dict[str, Any] = {"null": {"x": "mask"}, "lists": "ragged", "dtypes": {"up": "int64"}}
    for mine, theirs in zip(ds.to_tf(**asked), ds.to_numpy(**asked), strict=True):
        assert list(mine) == list(theirs)
        for name, array in theirs.items():
            if name == "tokens":
                assert mine[name].values.numpy().tolist() == array.values.tolist()
                assert mine[name].row_splits.numpy().tolist() == array.offsets.tolist()
            elif name == "text":
                assert [text.decode() for text in mine[name].numpy()] == array.tolist()
            else:
                np.testing.assert_array_equal(mine[name].numpy(), array, strict=True)


def test_the_spec_is_known_before_the_first_row(tf: Any) -> None:
    ds = af.from_arrow(TABLE).fill_null(0).batch(2, drop_remainder=True)
    assert ds.to_tf(columns=["pair", "text", "up"], dtypes={"up": "bfloat16"}).element_spec == {
        "pair": tf.TensorSpec((2, 2), tf.int16),
        "text": tf.TensorSpec((2,), tf.string),
        "up": tf.TensorSpec((2,), tf.bfloat16),
    }
    padded = af.from_arrow(TABLE).batch(2).to_tf(columns=["tokens"], lists="padded")
    assert padded.element_spec == {"tokens": tf.TensorSpec((None, None), tf.int32)}
    assert [batch["tokens"].shape for batch in padded] == [(2, 2), (2, 3), (1, 1)]
    ragged = af.from_arrow(TABLE).batch(2).to_tf(columns=["tokens"], lists="ragged")
    assert ragged.element_spec == {"tokens": tf.RaggedTensorSpec((None, None), tf.int32, 1, tf.int64)}


def test_each_type_has_a_tensor_or_a_refusal(tf: Any) -> None:
    for name in ALL_TYPES.column_names:
        ds = af.from_arrow(ALL_TYPES.select([name])).batch(3)
        try:
            expected = [batch[name] for batch in ds.to_numpy(null="mask", lists="padded")]
            found = list(ds.to_tf(null="mask", lists="padded"))
        except af.SchemaError:
            continue
        for batch, array in zip(found, expected, strict=True):
            if array.dtype != object:
                np.testing.assert_array_equal(batch[name].numpy(), array)


def test_each_iteration_is_the_next_epoch(tf: Any) -> None:
    ds = af.range(20).shuffle(20, seed=3).batch(4)
    batches = ds.to_tf()
    found = [[batch["id"].numpy().tolist() for batch in batches] for _ in range(2)]
    again = af.range(20).shuffle(20, seed=3).batch(4).to_numpy()
    assert found == [[batch["id"].tolist() for batch in again] for _ in range(2)]
    assert found[0] != found[1]
    assert batches.cardinality() == 5
    assert af.range(20).filter(pl.col("id") > 3).batch(4).to_tf().cardinality() == tf.data.UNKNOWN_CARDINALITY


def test_tensorflow_gets_the_memory_of_a_batch_and_a_copy_of_shared_memory(tf: Any) -> None:
    memory = pa.allocate_buffer(256)
    np.frombuffer(memory, np.float32)[:] = 1
    rows = pa.record_batch({"x": pa.Array.from_buffers(pa.float32(), 64, [None, memory])})

    def delivered(*, owned: bool) -> int:
        array = TfExport(rows.schema, owned=owned)(rows)["x"]
        spec = tf.TensorSpec((64,), tf.float32)
        (tensor,) = tf.data.Dataset.from_generator(lambda: [array], output_signature=spec)
        taken: int = np.asarray(memoryview(tensor)).ctypes.data
        assert taken == array.ctypes.data, "TensorFlow copies nothing itself"
        return taken

    assert delivered(owned=True) == memory.address
    assert delivered(owned=False) != memory.address


KERAS = """
import keras, numpy as np, arrowflow as af
x = np.random.default_rng(0).normal(size=(512, 3)).astype(np.float32)
rows = af.from_numpy({"x": x, "y": x @ np.array([1, -2, 3], np.float32)})
batches = rows.shuffle(512, seed=1).batch(32).to_tf()
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
model.fit(batches.map(lambda batch: (batch["x"], batch["y"])), epochs=4, shuffle=False, verbose=0)
np.testing.assert_allclose(model.get_weights()[0].ravel(), [1, -2, 3], atol=0.05)
"""


def test_keras_trains(tmp_path: Path) -> None:
    """In a process of its own, since Keras has one backend a process."""
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "KERAS_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "error:Your input ran out of data", "-c", KERAS]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_a_loop_that_stops_leaves_no_run(tf: Any) -> None:
    """The fixture that finds threads left behind looks after each test."""
    batches = af.range(10_000).repeat().batch(4).to_tf()
    assert [int(batch["id"][0]) for batch in batches.take(3)] == [0, 4, 8]
    assert [int(batch["id"][0]) for batch in batches.take(1)] == [0]


def test_errors(tf: Any) -> None:
    ds = af.from_arrow(TABLE)
    refused(af.PlanError, lambda: ds.map(lambda batch: batch).to_tf(), "to_tf", "pass schema=")
    refused(af.PlanError, lambda: ds.to_tf(columns=["z"]), "to_tf", "'z'")
    dates = af.from_arrow(pa.table({"d": pa.array([0], pa.date32())}))
    refused(af.SchemaError, dates.to_tf, "to_tf", "'d'", "TensorFlow")
    with pytest.raises(tf.errors.OpError, match=r"column 'x' has 1 null"):
        list(ds.batch(2).to_tf(columns=["x"]))


def test_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    refused(af.MissingPackageError, af.range(3).batch(2).to_tf, "to_tf", "pip install 'arrowflow[tf]'")

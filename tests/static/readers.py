"""The arguments of readers, for mypy and pyright, which check this file and never run it."""

from __future__ import annotations

from typing import assert_type

import polars as pl
import pyarrow as pa

import arrowflow as af


def readers() -> None:
    assert_type(af.read_parquet("a", columns=["x"], filter=pl.col("x") > 1, memory_map=False), af.Dataset)
    assert_type(af.read_ipc(["a", "b"], partitioning="hive", missing_columns="null"), af.Dataset)
    assert_type(af.read_csv("a", delimiter=";", null_values=["-"], block_bytes="1MiB"), af.Dataset)
    assert_type(af.read_json("a", schema=pa.schema({"x": pa.int64()}), on_error="skip"), af.Dataset)
    assert_type(af.read_tfrecord("a", raw=True, num_parallel_calls=2), af.Dataset)
    assert_type(af.read_images("a", labels="folder", max_bytes="4MiB"), af.Dataset)


def mistakes() -> None:
    af.read_parquet("a", delimiter=";")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    af.read_csv("a", delimeter=";")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    af.read_csv("a", skip_rows="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    af.read_files("a", label="folder")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    af.read_json("a", memory_map=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    af.read_tfrecord("a", missing_columns="nulls")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

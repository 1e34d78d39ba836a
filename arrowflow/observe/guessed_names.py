"""Names that people guess, by habit from other libraries, with the code that does the same here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def _each(guesses: Mapping[str, str]) -> dict[str, str]:
    """Returns the code for each single name."""
    return {name: code for names, code in guesses.items() for name in names.split()}


OF_DATASET: Final = _each(
    {
        # look
        "columns column_names names": "`ds.schema.names`",
        "dtypes": "`ds.schema.types`",
        "features element_spec collect_schema": "`ds.schema`",
        "count cardinality height size": "`ds.num_rows`, or `ds.to_table().num_rows` where only a run tells",
        "shape": "`(ds.num_rows, len(ds.schema))`",
        "show peek first": "`ds.head(5)`, or `ds.batch(n).to_numpy().peek()` for a batch",
        "tail": "`ds.skip(ds.num_rows - n).head(n)`",
        "info": "`print(ds)`, or `print(ds.explain())`",
        "state_dict load_state_dict set_epoch": "`ds.batch(n).to_numpy().state_dict()`: loaders and iterators have states",
        "stats trace": "`ds.batch(n).to_numpy().explain()`: loaders and iterators tell how they run",
        # columns
        "with_column assign add_column": '`ds.with_columns(z=pl.col("x") + 1)`',
        "select_columns": '`ds.select("x", "y")`',
        "remove_columns drop_columns": '`ds.drop("y")`',
        "rename_column rename_columns": '`ds.rename({"x": "z"})`',
        "astype cast_column": '`ds.cast({"x": pl.Float32})`',
        "unnest": '`ds.with_columns(a=pl.col("s").struct.field("a"))`',
        "fillna": "`ds.fill_null(0)`",
        "fill_nan": '`ds.with_columns(pl.col("x").fill_nan(0))`',
        "with_row_index with_row_count": "`ds.enumerate()`",
        # rows
        "limit": "`ds.take(n)`, or `ds.head(n)` for a data frame",
        "slice": "`ds.skip(n).take(n)`",
        "get_single_element": "`ds.head(1)`",
        "where query": '`ds.filter(pl.col("x") > 0)`',
        "drop_nulls dropna": '`ds.filter(pl.col("x").is_not_null())`',
        "drop_duplicates distinct": '`ds.unique("x")`',
        "map_batches": "`ds.map(fn)`, or `ds.batch(n).map(fn)` for batches of n rows",
        "ignore_errors": '`ds.with_options(af.Options(on_error="skip"))`',
        "train_test_split random_split": "`ds.split([0.9, 0.1], seed=7)`",
        "random_sample": "`ds.split([0.1, 0.9])[0]` for a share of the rows, or `ds.shuffle(10_000).take(n)`",
        # order
        "sort sort_values order_by": '`af.from_arrow(pl.DataFrame(ds).sort("x"))`, with all rows in memory',
        "group_by groupby": '`pl.DataFrame(ds).group_by("x")`, with all rows in memory',
        "agg aggregate sum mean": "`ds.reduce(0, lambda state, batch: state + batch.num_rows)`",
        "merge lookup": '`ds.join(frame, "x")`, with `frame` in memory',
        "random_shuffle": "`ds.shuffle(10_000)`",
        "union concat append extend": "`ds.concatenate(more)`",
        "zip": "`af.zip(ds, labels)`",
        "sample_from_datasets mix": "`af.sample_from_datasets([ds, more], [0.9, 0.1])`",
        "choose_from_datasets": "`af.choose_from_datasets([ds, more], choices)`",
        # batches
        "rebatch repartition": "`ds.batch(n)`, which cuts batches anew",
        "rolling sliding_window": "`ds.window(n)`",
        "pack": '`ds.select("tokens").pack_sequences("tokens", 128)`',
        "pad": "`ds.padded_batch(n)`",
        # out
        "iter_batches iter as_numpy_iterator numpy values": "`ds.batch(n).to_numpy()`",
        "iter_torch_batches to_dataloader dataloader torch to_tensor with_format": "`ds.batch(n).to_torch()`",
        "iter_jax_batches jax": "`ds.batch(n).to_jax()`",
        "iter_tf_batches to_tf_dataset tensorflow": "`ds.batch(n).to_tf()`",
        "iter_rows rows take_all to_dicts to_list to_pylist": "`ds.to_table().to_pylist()`, with all rows in memory",
        "to_dict to_pydict": "`ds.to_table().to_pydict()`",
        "collect to_arrow": "`ds.to_table()`",
        "to_pandas": "`ds.to_table().to_pandas()`, or `ds.batch(n).to_polars()` for frames of n rows",
        "to_batches": "`list(ds.batch(n))`, or `ds.to_reader()` for record batches as they come",
        "sink_parquet to_parquet write save save_to_disk": '`ds.write_parquet("folder")`',
        "sink_ipc to_feather write_feather": '`ds.write_ipc("folder")`',
        "sink_csv to_csv": '`ds.write_csv("folder")`',
        "sink_ndjson to_json write_ndjson": '`ds.write_json("folder")`',
        "materialize persist snapshot": '`ds.cache("folder")`, or `ds.cache()` for memory',
        "options": "`ds.with_options(af.Options(seed=1))`",
        "to_ddp distribute split_by_node streaming_split": "`ds.batch(n).split_by_rank(0, 1)`",
    }
)
"""The spelling to write for a method that datasets do not have."""

OF_LIBRARY: Final = _each(
    {
        # files
        "scan_parquet": "`af.read_parquet(path)`",
        "scan_ipc read_feather read_arrow": "`af.read_ipc(path)`",
        "scan_csv": "`af.read_csv(path)`",
        "scan_ndjson read_ndjson read_jsonl": "`af.read_json(path)`",
        "read_tfrecords TFRecordDataset": "`af.read_tfrecord(path)`",
        "WebDataset webdataset read_tar": "`af.read_webdataset(path)`",
        "read_lines scan_lines TextLineDataset": "`af.read_text(path)`",
        "read_binary_files": "`af.read_files(path)`",
        "image_folder ImageFolder image_dataset_from_directory": '`af.read_images(folder, labels="folder")`',
        "scan_orc": "`af.read_orc(path)`",
        "scan_avro": "`af.read_avro(path)`",
        "scan_delta": "`af.read_delta(path)`",
        "scan_iceberg": "`af.read_iceberg(path)`",
        "read_excel": "`af.from_arrow(pl.read_excel(path))`",
        "read_sql read_database": "`af.from_arrow(duckdb.sql(query))`, or `af.from_arrow(pl.read_database(query, connection))`",
        "read_npy read_numpy": '`af.from_numpy({"x": numpy.load(path)})`',
        "load_dataset from_huggingface read_huggingface": "`af.from_arrow(datasets.load_dataset(name))`",
        "write_parquet": '`ds.write_parquet("folder")`',
        # memory
        "from_pandas": "`af.from_arrow(pa.Table.from_pandas(df))`",
        "from_polars from_table from_batches from_duckdb from_ray": "`af.from_arrow(data)`",
        "from_dict from_pydict from_tensor_slices from_tensors from_torch": '`af.from_numpy({"x": array})`, of columns; a '
        "dataset of torch is `af.from_generator(lambda: ({'x': x} for x in data))`",
        "from_dicts from_pylist from_list from_items from_records": "`af.from_arrow(pa.Table.from_pylist(rows))`",
        "from_iterable from_iterator from_rows": "`af.from_generator(lambda: rows)`",
        # datasets
        "concat concatenate": "`ds.concatenate(more)`",
        "interleave interleave_datasets mix": "`af.sample_from_datasets([ds, more], [0.9, 0.1])`",
        "DataLoader loader": "`ds.batch(n).to_torch()`",
        "col lit when": "`pl.col('x')`: expressions are those of Polars and `pyarrow.compute`",
        "set_options": "`ds.with_options(af.Options(seed=1))`",
    }
)
"""The spelling to write for a function that the library does not have."""


def no_attribute(owner: object, called: str, name: str, guesses: Mapping[str, str]) -> AttributeError:
    """Returns the error for a name that `owner` does not have, with what to write if the name is a known guess."""
    text = f"{called} has no attribute {name!r}"
    code = guesses.get(name)
    return AttributeError(text if code is None else f"{text}; write {code}", name=name, obj=owner)

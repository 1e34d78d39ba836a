"""`tf_dataset`: the batches of a loader as a `tf.data.Dataset`.

TensorFlow takes memory that is aligned to 64 bytes as it is, and copies other memory. It takes a tensor's memory for its
own, so an array that others share is copied before. Batches pass through `tf.data.Dataset.from_generator`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from arrowflow.errors import ArrowflowError, PlanError, SchemaError
from arrowflow.interchange.to_numpy import ColumnExport, Ragged, is_ragged, refusal
from arrowflow.loaders.base import Loader
from arrowflow.loaders.export_request import PLAIN, ExportRequest
from arrowflow.loaders.numpy import Arrays, ArraysExport
from arrowflow.ops.batches.batch import Batch
from arrowflow.optional import optional
from arrowflow.plan.traits import Borders
from arrowflow.run import Prepared

if TYPE_CHECKING:
    import tensorflow as tf


class TfExport(ArraysExport):
    """Turns record batches of one schema into dicts of what TensorFlow makes tensors of; ragged lists into its own."""

    framework: ClassVar[str] = "a tensor of TensorFlow"
    kinds: ClassVar[str] = "biufcVO"  # V is bfloat16, O are texts
    shared: ClassVar[str] = "shared: TensorFlow takes memory for its own"
    alignment: ClassVar[int] = 64

    def __init__(self, schema: Any, *, owned: bool, request: ExportRequest = PLAIN) -> None:
        self._tf = optional("tensorflow", user="to_tf", extra="tf")
        super().__init__(schema, owned=owned, request=request)
        self._ragged = request.lists == "ragged"

    def spec(self, rows: int | None) -> dict[str, tf.TypeSpec]:
        """Returns the `element_spec`, where batches have so many rows, or any number for None."""
        return {column.name: self._spec(column, (rows, *column.row_shape)) for column in self.columns}

    def _spec(self, column: ColumnExport, shape: tuple[int | None, ...]) -> tf.TypeSpec:
        tf = self._tf
        try:
            dtype = tf.string if column.dtype.kind == "O" else tf.as_dtype(column.dtype)
        except TypeError as error:
            raise SchemaError(refusal(column.name, column.type, self.framework)) from error
        if self._ragged and is_ragged(column.type):
            return tf.RaggedTensorSpec(shape, dtype, ragged_rank=1, row_splits_dtype=tf.int64)
        return tf.TensorSpec(shape, dtype)

    def _made(self, arrays: Arrays) -> Arrays:
        of_lists = self._tf.RaggedTensor.from_row_splits
        return {
            name: of_lists(array.values, array.offsets.astype(np.int64), validate=False)
            if isinstance(array, Ragged)
            else array
            for name, array in super()._made(arrays).items()
        }


def tf_dataset(prepared: Prepared, request: ExportRequest, loader: Loader[Arrays]) -> tf.data.Dataset:
    """Returns the batches of a loader of this plan, whose next epoch each iteration runs.

    Raises:
        PlanError: Only running the pipeline tells the schema.
    """
    schema = prepared.optimised.schema
    if schema is None:
        raise PlanError(
            "to_tf: TensorFlow asks for the types of columns before the first row, and a map or a generator declares "
            "none; pass schema= to it"
        )
    last = prepared.bound
    while last.traits.one_to_one and last.traits.borders is Borders.KEEP:
        (last,) = last.inputs
    # The size of all batches, or None where it is not the same for all.
    rows = last.size if isinstance(last, Batch) and (last.drop_remainder or last.mask is not None) else None
    try:
        spec = TfExport(schema, owned=False, request=request).spec(rows)
    except ArrowflowError as error:
        error.locate(operator="to_tf")
        raise
    data = optional("tensorflow", user="to_tf", extra="tf").data
    dataset = data.Dataset.from_generator(lambda: loader, output_signature=spec)
    if not prepared.options.skip_steps:  # with them epochs have other numbers of batches
        with suppress(TypeError):  # it is not known, or endless
            return dataset.apply(data.experimental.assert_cardinality(len(loader)))
    return dataset

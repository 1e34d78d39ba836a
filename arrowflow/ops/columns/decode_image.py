"""`decode_image`: a column of encoded images becomes one of pixels.

Every image is decoded by itself, so a bad one is a bad row. Random crops and flips are drawn from (seed, operator, epoch, split,
piece) and the number of the row in the piece, as a `map` with a seed draws: the same at any parallelism and after a resume.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.bad_rows import BY_OPTIONS, BadRowPolicy
from arrowflow.errors import DataError, PlanError, SchemaError, shown
from arrowflow.kernels.context import Context
from arrowflow.kernels.gather import chosen
from arrowflow.kernels.items import Origin, Outcome, Recalled
from arrowflow.kernels.kept_images import KeptImages
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.kernels.pieces import PieceOperator
from arrowflow.kernels.recut import recut_specs
from arrowflow.ops.columns.column_program import check_columns
from arrowflow.ops.columns.image_decoder import DRAWS, MODES, RESIZES, Draws, ImageDecoder, opencv
from arrowflow.ops.functions.bad_results import by_row, results_specs
from arrowflow.ops.order.source_order import bound_seed
from arrowflow.ops.order.spans import array_of
from arrowflow.options import OnError, ResolvedOptions, check_choice, check_flag, check_seed, parallel_calls
from arrowflow.plan.file_source import Keeps
from arrowflow.plan.node import BindContext, Columns, Node
from arrowflow.plan.traits import Traits
from arrowflow.random import IMAGE_DRAWS, generator
from arrowflow.types import is_string, is_untyped

_CROPS: Final = ("centre", "random", None)
_PATH: Final = "path"
"""The column of `read_files` and `read_images` that tells whose image a row has. Errors name it, also where nobody selects it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeImage(PieceOperator, Keeps):
    """Its input, with the pixels of the images in one column in place of their bytes: (height, width, channels) of uint8.

    Row order: as its input. Memory: input and output of each call. Deterministic; random parts depend on (seed, operator,
    epoch, split, piece) and the row of the piece. Resume: (position before the piece, rows, split, piece).

    Attributes:
        column: The column.
        decoder: How images are decoded.
        seed: The seed of what is drawn; None until bound, then derived from `Options.seed` and the operator's place.
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        policy: The treatment of images that cannot be decoded.
        place: Bound: the operator's place in the plan as written.
        keeps: Pixels that come again from memory; None where none are kept.
    """

    name: ClassVar[str] = "decode_image"

    column: str
    decoder: ImageDecoder
    seed: int | None = None
    num_parallel_calls: int | None = None
    policy: BadRowPolicy = BY_OPTIONS
    place: int = dataclasses.field(default=0, compare=False)
    keeps: KeptImages | None = dataclasses.field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        below: Node,
        column: str,
        size: int | tuple[int, int],
        *,
        mode: Any,
        resize: Any,
        crop: Any,
        flip: bool,
        area: tuple[float, float],
        ratio: tuple[float, float],
        seed: int | None,
        num_parallel_calls: int,
        on_error: OnError | None,
        quarantine: str | os.PathLike[str] | None,
    ) -> Self:
        if not isinstance(column, str):
            raise PlanError(f"decode_image: expected the name of a column, got {shown(column)}")
        for name, value, known in ("mode", mode, MODES), ("resize", resize, RESIZES), ("crop", crop, _CROPS):
            check_choice("decode_image", name, value, known)
        decoder = ImageDecoder(
            _size(size),
            mode,
            resize,
            crop,
            check_flag("decode_image", "flip", flip),
            _bounds("area", area),
            _bounds("ratio", ratio),
        )
        if decoder.area[1] > 1:
            raise PlanError(f"decode_image: area is a share of the image, at most 1, got {shown(area)}")
        opencv()
        return cls(
            inputs=(below,),
            column=column,
            decoder=decoder,
            seed=check_seed(cls.name, seed),
            num_parallel_calls=parallel_calls(cls.name, num_parallel_calls),
            policy=BadRowPolicy.of(cls.name, on_error, quarantine),
        )

    @property
    def traits(self) -> Traits:  # type: ignore[override]  # bad rows may be left out
        """One row out per row in, unless bad rows are left out. Nothing is moved across draws, which count rows."""
        keeps, opaque = not self.policy.leaves_out, self.decoder.is_random
        return Traits(one_to_one=keeps, opaque=opaque, cuts_input=True, local=True, in_turn=True)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide how many rows a call gets."""
        return (self.column,)

    @property
    def title(self) -> str:
        return f"{self.name}({self.column})"

    def arguments(self) -> Mapping[str, Any]:
        """Returns the column, the size, and what differs from the defaults."""
        given = dataclasses.asdict(self.decoder)
        plain = dataclasses.asdict(ImageDecoder(self.decoder.size))
        more = {name: value for name, value in given.items() if name == "size" or value != plain[name]}
        seed = {"seed": self.seed} if self.decoder.is_random else {}
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in more.items()}
        return {"column": self.column, **listed, **seed, **self.policy.arguments()}

    def identity(self) -> dict[str, Any]:
        """Returns also the version of OpenCV, whose pixels a cache keeps."""
        return {**PieceOperator.identity(self), "opencv": opencv().__version__}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Notes its place, fixes the seed, and what becomes of bad images."""
        seed = bound_seed(self.seed, context) if self.decoder.is_random else None
        policy = self.policy.within(context.options)
        return dataclasses.replace(self, place=context.place, seed=seed, policy=policy).on(*inputs)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns its input's schema with nested lists of fixed size for the column."""
        check_columns((self.column,), inputs[0])
        if is_untyped(inputs[0]):
            return inputs[0]
        place = inputs[0].get_field_index(self.column)
        type = inputs[0].field(place).type
        if not (pa.types.is_binary(type) or pa.types.is_large_binary(type)):
            raise SchemaError(
                f"column {self.column!r} is {type}, and decode_image takes the bytes of encoded images (binary); read paths "
                "by af.read_files or af.read_images, which give the bytes"
            ).locate(operator=self.name)
        return inputs[0].set(place, pa.field(self.column, pixel_type(self.decoder.shape)))

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        schema = self.inputs[0].schema
        told = {_PATH} if schema is not None and _has_path(schema) else set()
        return (None if wanted is None else wanted | {self.column} | told,)

    def keeping(self, asked_bytes: int | None, *, copies: bool, only_dear: bool) -> Node:
        """Keeps pixels, unless something is drawn."""
        return self if self.decoder.is_random else dataclasses.replace(self, keeps=KeptImages(asked_bytes))

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        height, width, channels = self.decoder.shape
        call = KernelSpec(
            "stateless",
            lambda context: DecodeImageKernel(self, context),
            phase="decode",
            engine="opencv",
            random=self.decoder.is_random,
            max_calls=self.num_parallel_calls,
            facts=lambda: (
                f"{self.column} as ({height}, {width}, {channels}) of uint8, one call a piece",
                *(() if self.keeps is None else self.keeps.facts()),
            ),
            keeps=self.keeps,
        )
        return (
            *recut_specs(self),
            call,
            *results_specs(f"{self.title}-{self.place}", policy=self.policy, by_row=True),
        )


class DecodeImageKernel(StatelessKernel):
    """Decodes the images of a piece."""

    def __init__(self, node: DecodeImage, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._kept = node.keeps if node.keeps is not None and context.keeps else None

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch | Outcome | Recalled:
        node, decoder, kept = self._node, self._node.decoder, self._kept
        place = chunk.schema.get_field_index(node.column)
        images = chunk.column(place)
        pixels = pa.allocate_buffer(chunk.num_rows * int(np.prod(decoder.shape)))
        views = np.frombuffer(pixels, np.uint8).reshape(chunk.num_rows, *decoder.shape)
        draws = self._draws(chunk.num_rows, origin)
        bad: dict[int, str] = {}
        new: dict[bytes, npt.NDArray[np.uint8]] = {}
        recalled = 0
        stop, failure = chunk.num_rows, None
        for row, data in enumerate(_views(images)):
            if data is None:
                views[row] = 0
                continue
            key = None if kept is None else kept.key(data, views[row].nbytes)
            if kept is not None and key is not None and (known := kept.chunks.get(key)) is not None:
                views[row] = known
                recalled += 1
                continue
            try:
                decoder.decode(data, views[row], None if draws is None else draws[row])
            except DataError as error:
                file = chunk.column(_PATH)[row].as_py() if _has_path(chunk.schema) else None
                error = DataError(f"column {node.column!r}: {error}")
                error.locate(file=file)
                if not node.policy.leaves_out:
                    stop, failure = row, error
                    break
                bad[row] = str(error)
            else:
                if key is not None:
                    new[key] = views[row]
        height, *line = decoder.shape
        lines = array_of(pixel_type(line), chunk.num_rows * height, pixels)
        mask = images.is_null() if images.null_count else None
        column = pa.FixedSizeListArray.from_arrays(lines, height, mask=mask)
        made = chunk.set_column(place, pa.field(node.column, column.type), column)
        if bad:
            made = chosen(made, np.setdiff1d(np.arange(stop), list(bad)))
        elif failure is not None:
            made = made.slice(0, stop)
        made = by_row(node.policy, chunk, made if stop else None, bad, failure)
        return made if kept is None else Recalled(made, kept.group(new), recalled)

    def _draws(self, rows: int, origin: Origin) -> Draws | None:
        node = self._node
        if not node.decoder.is_random:
            return None
        assert node.seed is not None
        key = (node.seed, IMAGE_DRAWS, node.place, self._epoch, origin.split, origin.piece)
        return generator(key).random((rows, DRAWS))


def _has_path(schema: pa.Schema) -> bool:
    return _PATH in schema.names and is_string(schema.field(_PATH).type)


def _views(images: pa.Array) -> list[memoryview | None]:
    """Returns the bytes of each image, in the memory of the column; None for null."""
    width: npt.DTypeLike = np.int64 if pa.types.is_large_binary(images.type) else np.int32
    _, offsets, values = images.buffers()
    ends = np.frombuffer(offsets, width)[images.offset : images.offset + len(images) + 1].tolist()
    data = memoryview(b"" if values is None else values).cast("B")
    valid = images.is_valid().to_pylist()
    places = itertools.pairwise(ends)
    return [data[start:end] if here else None for (start, end), here in zip(places, valid, strict=True)]


def pixel_type(shape: Sequence[int]) -> pa.DataType:
    """Returns the type of a column of pixels.

    Examples:
        >>> print(pixel_type((2, 4, 3)))
        fixed_size_list<item: fixed_size_list<item: fixed_size_list<item: uint8>[3]>[4]>[2]
    """
    type = pa.uint8()
    for size in reversed(shape):
        type = pa.list_(type, size)
    return type


def _size(given: Any) -> tuple[int, int]:
    values = (given, given) if isinstance(given, int) else given
    is_pair = isinstance(values, tuple | list) and len(values) == 2
    if not is_pair or not all(
        isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values
    ):
        raise PlanError(
            f"decode_image: size is (height, width) in pixels, or one number for both, got {shown(given)}"
        )
    return (values[0], values[1])


def _bounds(name: str, given: Any) -> tuple[float, float]:
    try:
        low, high = map(float, given)
    except (TypeError, ValueError) as error:
        raise PlanError(f"decode_image: {name} is (least, most), got {shown(given)}") from error
    if not 0 < low <= high:
        raise PlanError(f"decode_image: {name} is (least, most), both above 0, got {shown(given)}")
    return (low, high)

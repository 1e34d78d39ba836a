"""The benchmarks' data: made once, seeded, kept under `benchmarks/data/` (ignored by git)."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA: Final = Path(__file__).parent / "data"

WIDE_ROWS: Final = 4_000_000
WIDE_FILES: Final = 16
WIDE_ROW_GROUP_ROWS: Final = 125_000
COUNTED_ROWS: Final = 1 << 20
COUNTED_FILES: Final = 16
VECTOR_ROWS: Final = 10_000_000
VECTOR_WIDTH: Final = 16
VECTOR_BATCH_ROWS: Final = 65_536
DENSE: Final = tuple(f"dense_{i}" for i in range(13))
DOCUMENTS: Final = 160_000
LABELLED: Final = DOCUMENTS // 4
DOCUMENT_FILES: Final = 4
DOCUMENT_ROW_GROUP_ROWS: Final = 5_000
VOCABULARY: Final = 50_000
SPARSE: Final = tuple(f"sparse_{i}" for i in range(26))
NULL_SHARE: Final = 0.1
MANY_COLUMNS_ROWS: Final = 1_000
IMAGES: Final = 2_000
IMAGE_FILES: Final = 4
IMAGE_ROW_GROUP_ROWS: Final = 125
IMAGE_WIDTH: Final = 500
IMAGE_HEIGHT: Final = 375


def lineitem(*, scale_factor: int = 2, parts: int = 16) -> list[str]:
    """Returns the paths of TPC-H `lineitem` shards, in sorted order."""
    folder = made_once(
        f"lineitem-sf{scale_factor}-{parts}", lambda to: _write_lineitem(to, scale_factor, parts)
    )
    return _parquet_files(folder / "lineitem")


def wide() -> list[str]:
    """Returns the paths of 4 M rows of a recommender's table: 13 nullable float32, 26 int32, a label."""
    return _parquet_files(made_once("wide", _write_wide))


def often(paths: list[str], times: int) -> list[str]:
    """Returns the paths of files under so many names each: a larger table, which is in memory as soon as the small one."""
    first = Path(paths[0]).parent

    def link(folder: Path) -> None:
        for number in range(times):
            for path in paths:
                (folder / f"{number}-{Path(path).name}").symlink_to(path)

    return _parquet_files(made_once(f"{first.parent.name}-{first.name}-{times}", link))


def shards(number: int, *, rows: int = 1_000) -> list[str]:
    """Returns the paths of `number` small Parquet files with the columns `id` and `value`."""
    return _parquet_files(made_once(f"shards-{number}", lambda to: _write_shards(to, number, rows)))


def documents() -> list[str]:
    """Returns the paths of 160,000 documents of 50 to 1,500 tokens, in the column `tokens` (list<int32>)."""
    return _parquet_files(made_once("documents", _write_documents))


def labelled_documents() -> list[str]:
    """Returns the paths of 40,000 such documents, with `labels` and `mask` of equal lengths (list<int32>)."""
    return _parquet_files(made_once("labelled-documents", _write_labelled_documents))


def document_tokens() -> int:
    """Returns the number of tokens in all documents."""
    groups = [pq.read_metadata(path) for path in documents()]
    return sum(
        one.row_group(index).column(0).num_values for one in groups for index in range(one.num_row_groups)
    )


def counted() -> list[str]:
    """Returns the paths of 2**20 rows that are numbered in the column `id`: 16 files of 8 row groups."""
    return _parquet_files(made_once("counted", _write_counted))


def vectors() -> list[str]:
    """Returns the paths of 10 M rows of 16 float32 side by side, as uncompressed IPC."""
    folder = made_once("vectors", _write_vectors)
    return sorted(str(path) for path in folder.glob("*.arrow"))


def embeddings() -> list[str]:
    """Returns the path of 384 Ki rows of 256 float32 side by side, as uncompressed IPC."""
    return [str(made_once("embeddings", _write_embeddings) / "embeddings.arrow")]


def embeddings_parquet() -> list[str]:
    """Returns the paths of the same rows as Parquet, in four files."""
    return _parquet_files(made_once("embeddings-parquet", _write_embeddings_parquet))


def columns() -> list[str]:
    """Returns the path of 1.5 Mi rows of 32 columns of float32, as uncompressed IPC."""
    return [str(made_once("columns", _write_columns) / "columns.arrow")]


def many_columns(number: int, *, nulls: bool) -> list[str]:
    """Returns the path of 1,000 rows of `number` columns of float32, of which a tenth of the values may be null."""
    folder = f"many-columns-{number}{'-with-nulls' * nulls}"
    return _parquet_files(made_once(folder, lambda to: _write_many_columns(to, number, nulls=nulls)))


def images() -> list[str]:
    """Returns the paths of 2,000 JPEGs of 500 x 375, in the column `jpeg`: 57 KiB each on average."""
    return _parquet_files(made_once("images", _write_images))


def row_group() -> str:
    """Returns the path of 16 M rows of 16 int64 columns in one row group of 2 GB."""
    (path,) = _parquet_files(made_once("row-group", _write_row_group))
    return path


def read_through(paths: list[str]) -> None:
    """Brings the files into the page cache."""
    for path in paths:
        with Path(path).open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def made_once(name: str, write: Callable[[Path], None]) -> Path:
    """Returns the folder of that name, in which `write` wrote files when it was first asked for."""
    folder = DATA / name
    if not folder.exists():
        unfinished = DATA / f"{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        print(f"writing {folder} ...", file=sys.stderr, flush=True)
        write(unfinished)
        unfinished.rename(folder)
    return folder


def _parquet_files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.parquet"))


def _write_lineitem(folder: Path, scale_factor: int, parts: int) -> None:
    command = [str(Path(sysconfig.get_path("scripts")) / "tpchgen-cli"), "parquet", "--quiet"]
    command += [f"--scale-factor={scale_factor}", f"--parts={parts}", "--tables=lineitem"]
    subprocess.run([*command, f"--output-dir={folder}"], check=True)


def _write_wide(folder: Path) -> None:
    rows = WIDE_ROWS // WIDE_FILES
    for number in range(WIDE_FILES):
        table = _wide_table(np.random.default_rng((7, number)), rows)
        path = folder / f"part-{number:03}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=WIDE_ROW_GROUP_ROWS)


def _wide_table(rng: np.random.Generator, rows: int) -> pa.Table:
    columns: dict[str, pa.Array] = {"label": pa.array(rng.integers(0, 2, rows, dtype=np.int32))}
    for name in DENSE:
        values = rng.lognormal(1.0, 1.0, rows).astype(np.float32)
        columns[name] = pa.array(values, mask=rng.random(rows) < NULL_SHARE)
    for name in SPARSE:
        columns[name] = pa.array((rng.zipf(1.2, rows) % 1_000_000).astype(np.int32))
    return pa.table(columns)


def _write_shards(folder: Path, number: int, rows: int) -> None:
    rng = np.random.default_rng(number)
    for shard in range(number):
        ids = np.arange(shard * rows, (shard + 1) * rows)
        table = pa.table({"id": ids, "value": rng.random(rows, dtype=np.float32)})
        pq.write_table(table, folder / f"shard-{shard:05}.parquet")


def _write_many_columns(folder: Path, number: int, *, nulls: bool) -> None:
    rng = np.random.default_rng(number)
    mask = rng.random(MANY_COLUMNS_ROWS) < NULL_SHARE if nulls else None
    columns = [pa.array(rng.random(MANY_COLUMNS_ROWS, np.float32), mask=mask) for _ in range(number)]
    table = pa.table(columns, names=[f"column_{at}" for at in range(number)])
    pq.write_table(table, folder / "part.parquet")


def _write_counted(folder: Path) -> None:
    rows = COUNTED_ROWS // COUNTED_FILES
    for number in range(COUNTED_FILES):
        table = pa.table({"id": np.arange(number * rows, (number + 1) * rows)})
        pq.write_table(table, folder / f"part-{number:03}.parquet", row_group_size=rows // 8)


def _write_vectors(folder: Path) -> None:
    rng = np.random.default_rng(13)
    type = pa.list_(pa.float32(), VECTOR_WIDTH)
    schema = pa.schema({"x": type})
    with pa.ipc.new_file(folder / "vectors.arrow", schema) as writer:
        for start in range(0, VECTOR_ROWS, VECTOR_BATCH_ROWS):
            rows = min(VECTOR_BATCH_ROWS, VECTOR_ROWS - start)
            values = pa.array(rng.standard_normal(rows * VECTOR_WIDTH, dtype=np.float32))
            column = pa.FixedSizeListArray.from_arrays(values, type=type)
            writer.write_batch(pa.record_batch([column], schema=schema))


def _write_embeddings(folder: Path) -> None:
    rng = np.random.default_rng(17)
    rows, type = 65_536, pa.list_(pa.float32(), 256)
    schema = pa.schema({"x": type})
    with pa.ipc.new_file(folder / "embeddings.arrow", schema) as writer:
        for _ in range(6):
            values = pa.array(rng.standard_normal(rows * 256, dtype=np.float32))
            column = pa.FixedSizeListArray.from_arrays(values, type=type)
            writer.write_batch(pa.record_batch([column], schema=schema))


def _write_embeddings_parquet(folder: Path) -> None:
    rng = np.random.default_rng(17)
    type = pa.list_(pa.float32(), 256)
    for number in range(4):
        values = pa.array(rng.standard_normal(98_304 * 256, dtype=np.float32))
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(values, type=type)})
        path = folder / f"part-{number:03}.parquet"
        pq.write_table(table, path, row_group_size=16_384, use_dictionary=False)


def _write_columns(folder: Path) -> None:
    rng = np.random.default_rng(19)
    names = [f"c{number}" for number in range(32)]
    with pa.ipc.new_file(
        folder / "columns.arrow", pa.schema([(name, pa.float32()) for name in names])
    ) as writer:
        for _ in range(24):
            arrays = [pa.array(rng.standard_normal(65_536, dtype=np.float32)) for _ in names]
            writer.write_batch(pa.record_batch(arrays, names=names))


def _write_row_group(folder: Path) -> None:
    rng, rows = np.random.default_rng(29), 16_000_000
    table = pa.table({f"c{number}": rng.integers(0, 1 << 62, rows) for number in range(16)})
    pq.write_table(table, folder / "part.parquet", row_group_size=rows, compression="zstd")


def _write_documents(folder: Path) -> None:
    rows = DOCUMENTS // DOCUMENT_FILES
    for number in range(DOCUMENT_FILES):
        rng = np.random.default_rng((11, number))
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(rng.integers(50, 1_501, rows), out=offsets[1:])
        tokens = rng.integers(0, VOCABULARY, offsets[-1], dtype=np.int32)
        table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))})
        path = folder / f"part-{number:03}.parquet"
        pq.write_table(table, path, row_group_size=DOCUMENT_ROW_GROUP_ROWS)


def _write_labelled_documents(folder: Path) -> None:
    import pyarrow.compute as pc

    for path in documents()[: DOCUMENT_FILES * LABELLED // DOCUMENTS]:
        tokens = pq.read_table(path).column("tokens").combine_chunks()
        lists = {
            "tokens": tokens.values,
            "labels": pc.subtract(tokens.values, 1),
            "mask": pc.bit_wise_and(tokens.values, 1),
        }
        table = pa.table(
            {name: pa.ListArray.from_arrays(tokens.offsets, each) for name, each in lists.items()}
        )
        pq.write_table(table, folder / Path(path).name, row_group_size=DOCUMENT_ROW_GROUP_ROWS)


def _write_images(folder: Path) -> None:
    rows = IMAGES // IMAGE_FILES
    for number in range(IMAGE_FILES):
        rng = np.random.default_rng((23, number))
        table = pa.table({"jpeg": pa.array([_jpeg(rng) for _ in range(rows)], pa.binary())})
        path = folder / f"part-{number:03}.parquet"
        pq.write_table(
            table, path, compression="none", use_dictionary=False, row_group_size=IMAGE_ROW_GROUP_ROWS
        )


def _jpeg(rng: np.random.Generator) -> bytes:
    """Returns clouds of noise, as strong at each scale as in a photograph, with a few sharp edges in front."""
    from PIL import Image, ImageDraw

    shape = (IMAGE_HEIGHT, IMAGE_WIDTH)
    down, across = np.fft.fftfreq(shape[0]) * shape[0], np.fft.rfftfreq(shape[1]) * shape[1]
    scale = np.maximum(np.hypot(down[:, None], across), 1) ** -rng.uniform(1.3, 1.7)
    clouds = np.moveaxis(np.fft.irfft2(np.fft.rfft2(rng.normal(size=(3, *shape))) * scale, shape), 0, 2)
    clouds += 3 * clouds.mean(2, keepdims=True)  # photographs vary in brightness more than in colour
    pixels = 128 + rng.uniform(30, 60) * clouds / clouds.std()
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(rng.integers(3, 12)):
        (left, right), (top, bottom) = np.sort(rng.random((2, 2))) * [[IMAGE_WIDTH], [IMAGE_HEIGHT]]
        colour = tuple(rng.integers(256, size=3).tolist())
        draw.ellipse((left, top, right, bottom), outline=colour, width=int(rng.integers(1, 12)))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()

"""Datasets whose rows are whole files, or the paths of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from inspect import signature
from typing import Any, Literal, TypedDict, Unpack

from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError, shown
from arrowflow.ops.sources.list_files import ListFiles
from arrowflow.ops.sources.read_files import MAX_FILE_BYTES, ReadFiles, ReadImages
from arrowflow.options import AUTOTUNE, parallel_calls, parse_bytes, with_arguments
from arrowflow.sources.readers import Paths, taken
from arrowflow.storage import place_of


class FileArguments(TypedDict, total=False):
    """The arguments of `read_files` and `read_images`."""

    labels: Literal["folder"] | Sequence[str] | None
    max_bytes: int | str | None
    filesystem: Any
    storage_options: Mapping[str, Any] | None
    num_parallel_calls: int


class ImageArguments(FileArguments, total=False):
    """The arguments of `read_images`."""

    size: int | tuple[int, int] | None


def _dataset(
    kind: type[ReadFiles],
    paths: Paths,
    *,
    labels: Any = None,
    max_bytes: int | str | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    num_parallel_calls: int = AUTOTUNE,
) -> Dataset:
    operator = kind.name
    most = MAX_FILE_BYTES if max_bytes is None else parse_bytes("max_bytes", max_bytes)
    if most > MAX_FILE_BYTES:
        raise PlanError(
            f"{operator}: max_bytes is at most {MAX_FILE_BYTES:,}, the most that a value has, got {most:,}"
        )
    return Dataset(
        kind(
            paths=taken(paths),
            filesystem=place_of(operator, filesystem, storage_options),
            labels=_labels(operator, labels),
            max_bytes=most,
            num_parallel_calls=parallel_calls(operator, num_parallel_calls),
        )
    )


def _labels(operator: str, given: Any) -> bool | tuple[str, ...]:
    """Returns whether folders are labels, or the labels themselves in the order of their numbers."""
    if given is None:
        return False
    if isinstance(given, str) and given == "folder":
        return True
    names = [] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if isinstance(given, Set):  # which has no order of its own
        names.sort(key=str)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise PlanError(
            f"{operator}: labels is 'folder', a list of the names of all folders that are labels, or None; got {shown(given)}"
        )
    return tuple(map(str, names))


_USUAL = {name: signature(_dataset).parameters[name].default for name in FileArguments.__annotations__}


@with_arguments(FileArguments, _USUAL)
def read_files(paths: Paths, **arguments: Unpack[FileArguments]) -> Dataset:
    """Reads whole files, one a row: `path` as text and `bytes` as binary, in the order of `paths`.

    Files are listed when the dataset is bound, and opened when their rows are needed; without `bytes` (as after
    `select("path")`) they are not opened. The number of rows is known at once. `shuffle(n)` also permutes the files;
    `shuffle()` without a size reads local files in any order. Resume seeks. Memory: up to 64 files or 4 MiB a call, or one
    larger file.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them. A directory
            gives all files in it and in its folders, but no names that start with `.` or `_`.
        labels: `"folder"` adds a column `label`: the name of the first folder below the directory, or below what stands
            before the wildcards of a glob. It is an enum of the sorted names, which loaders hand out as numbers. A list of
            names sets the numbers, as for folders of validation in which a class may be missing: `["cat", "dog"]`.
        max_bytes: The most bytes of a file, as a number or as a text like `"4MiB"`. A larger file is an error when the
            dataset is bound. By default the most that a value can have, some 2 GiB.
        filesystem: A file system of `pyarrow.fs` or fsspec. By default the paths tell it.
        storage_options: Arguments of the client that the paths need; `docs/storage.md` has examples.
        num_parallel_calls: Calls at the same time.

    Raises:
        SourceError: A path is missing, a glob or a directory is empty, a file is larger than `max_bytes` or lies in no
            folder that is its label; when the dataset is bound. Or a file has changed since, or cannot be read.
        PlanError: An argument makes no sense.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in "cat", "dog":
        ...     (folder / name).mkdir()
        ...     _ = (folder / name / "a.txt").write_text(f"I am a {name}.")
        >>> af.read_files(folder, labels="folder").select("bytes", "label").to_table().to_pylist()[1]
        {'bytes': b'I am a dog.', 'label': 'dog'}
    """
    return _dataset(ReadFiles, paths, **arguments)


@with_arguments(ImageArguments, _USUAL | {"size": None})
def read_images(paths: Paths, **arguments: Unpack[ImageArguments]) -> Dataset:
    """Reads files of images, one a row: `path` as text, `image` as the encoded bytes or as pixels, and perhaps `label`.

    As `read_files`, but a directory gives only files that end in `.jpg`, `.jpeg`, `.png`, `.webp`, `.bmp`, `.tif` or
    `.tiff`. `Dataset.decode_image` makes pixels of them, and with `size` this does so. Shuffle before, while images are small:
    `af.read_images(folder, labels="folder").shuffle().decode_image("image", 224, crop="random", flip=True).batch(128)`.

    Args:
        paths: As for `read_files`.
        labels: As for `read_files`: `"folder"` gives a folder of images for each class its number.
        size: Height and width in pixels, or one number for both: the images are decoded, as by `.decode_image("image", size)`.
            By default they stay encoded.
        max_bytes: As for `read_files`.
        filesystem: As for `read_files`.
        storage_options: As for `read_files`.
        num_parallel_calls: As for `read_files`.

    Raises:
        SourceError: As of `read_files`.
        PlanError: As of `read_files`.
        MissingPackageError: With `size`: OpenCV is not installed.

    Examples:
        >>> import arrowflow as af, cv2, numpy as np, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in "cat", "dog":
        ...     (folder / name).mkdir()
        ...     _ = cv2.imwrite(str(folder / name / "a.png"), np.zeros((20, 30, 3), np.uint8))
        >>> images = af.read_images(folder, labels="folder").decode_image("image", (8, 8)).batch(2)
        >>> batch = next(iter(images.to_numpy()))
        >>> batch["image"].shape, batch["label"]
        ((2, 8, 8, 3), array([0, 1], dtype=uint8))
    """
    return _images(paths, **arguments)


def _images(
    paths: Paths, *, size: int | tuple[int, int] | None = None, **arguments: Unpack[FileArguments]
) -> Dataset:
    images = _dataset(ReadImages, paths, **arguments)
    return images if size is None else images.decode_image("image", size)


def list_files(
    paths: Paths, *, filesystem: Any = None, storage_options: Mapping[str, Any] | None = None
) -> Dataset:
    """Lists files: their paths as text in the column `path`, in the order of `paths`; nothing of them is read.

    Local files come as absolute paths, files of a URL as URLs. So each path can be read by itself, as by `interleave`
    or `map`. Files are listed when the dataset is bound; files on local disks are listed anew for each run and
    question. For another order use `shuffle`.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them. A directory
            gives all files in it and in its folders, but no names that start with `.` or `_`.
        filesystem: A file system of `pyarrow.fs` or fsspec. By default the paths tell it. With `filesystem=` the
            listed paths are paths in that file system; read them with the same `filesystem`.
        storage_options: Arguments of the client that the paths need; `docs/storage.md` has examples.

    Raises:
        SourceError: A path is missing, or a glob or a directory is empty; when the dataset is bound.
        PlanError: `paths` are no paths, or lie in different file systems; when the dataset is bound.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in "b.parquet", "a.parquet", "notes.txt":
        ...     _ = (folder / name).write_bytes(b"...")
        >>> table = af.list_files(folder / "*.parquet").to_table()
        >>> [pathlib.Path(path).name for path in table.column("path").to_pylist()]
        ['a.parquet', 'b.parquet']
    """
    return Dataset(
        ListFiles(paths=taken(paths), filesystem=place_of("list_files", filesystem, storage_options))
    )

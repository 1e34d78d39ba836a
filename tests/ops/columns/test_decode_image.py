"""`decode_image`: pixels beside Pillow's and OpenCV's own, random parts that a resume repeats, and images that are none."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.columns import image_decoder
from arrowflow.ops.columns.image_decoder import DRAWS, Box, ImageDecoder, centre_box, header, random_box
from arrowflow.testing import batches_of, check_dataset
from tests.ops.tables import PNG, refused

pytestmark = pytest.mark.any_version

cv2 = pytest.importorskip("cv2")
Pixels = npt.NDArray[np.uint8]


def picture(width: int, height: int, seed: int = 0) -> Pixels:
    small = np.random.default_rng(seed).integers(0, 255, (5, 5, 3), np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def encoded(pixels: Pixels, ending: str = ".png") -> bytes:
    return bytes(cv2.imencode(ending, pixels[..., ::-1])[1].tobytes())


def table(*images: bytes | None) -> pa.Table:
    return pa.table({"row": range(len(images)), "image": pa.array(images, pa.binary())})


def decoded(ds: af.Dataset) -> Pixels:
    (batch,) = list(ds.batch(1_000).to_numpy())
    return np.asarray(batch["image"])


PICTURES = [picture(40 + 7 * seed, 60 - 3 * seed, seed) for seed in range(9)]
IMAGES = table(*map(encoded, PICTURES))


# ------------------------------------------------------------------------------------------------ pixels


def test_pixels_without_a_resize_are_those_that_were_encoded() -> None:
    pixels = picture(30, 20)
    ds = af.from_arrow(table(*(encoded(pixels, ending) for ending in (".png", ".bmp", ".tif")))).decode_image(
        "image", (20, 30)
    )
    assert ds.schema.field("image").type == pa.list_(pa.list_(pa.list_(pa.uint8(), 3), 30), 20)
    assert (decoded(ds) == pixels).all()


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp"])
def test_pixels_are_about_those_of_pillow(ending: str) -> None:
    image = pytest.importorskip("PIL.Image")
    data = encoded(picture(320, 192), ending)
    whole = image.open(io.BytesIO(data)).convert("RGB")
    ours = decoded(af.from_arrow(table(data)).decode_image("image", (48, 64), resize="area"))[0]
    theirs = np.asarray(whole.resize((64, 48), image.Resampling.BOX))
    assert np.abs(ours.astype(int) - theirs).mean() < 2
    middle = decoded(af.from_arrow(table(data)).decode_image("image", 48, resize="area", crop="centre"))[0]
    expected = np.asarray(whole.crop((64, 0, 256, 192)).resize((48, 48), image.Resampling.BOX))
    assert np.abs(middle.astype(int) - expected).mean() < 2
    grey = decoded(af.from_arrow(table(data)).decode_image("image", 48, resize="area", mode="L"))[0]
    assert grey.shape == (48, 48, 1)
    expected = np.asarray(whole.convert("L").resize((48, 48), image.Resampling.BOX))
    assert np.abs(grey[..., 0].astype(int) - expected).mean() < 2


def test_a_jpeg_that_is_shrunk_while_it_is_decoded_looks_the_same() -> None:
    pixels = picture(900, 700)
    data = encoded(pixels, ".jpg")
    expected = cv2.resize(pixels, (80, 80), interpolation=cv2.INTER_AREA)
    found = decoded(af.from_arrow(table(data)).decode_image("image", 80, resize="area"))[0]
    assert np.abs(found.astype(int) - expected).mean() < 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_exif_says(orientation: int) -> None:
    image = pytest.importorskip("PIL.Image")
    ops = pytest.importorskip("PIL.ImageOps")
    exif = image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.fromarray(picture(320, 200)).save(file, "JPEG", exif=exif, quality=95)
    upright = ops.exif_transpose(image.open(file))
    size = (upright.height // 4, upright.width // 4)
    found = decoded(af.from_arrow(table(file.getvalue())).decode_image("image", size, resize="area"))[0]
    expected = np.asarray(upright.resize(size[::-1], image.Resampling.BOX))
    assert np.abs(found.astype(int) - expected).mean() < 3


def test_null_stays_null() -> None:
    found = af.from_arrow(table(PNG, None, PNG).slice(1)).decode_image("image", 1).to_table()["image"]
    assert found.to_pylist() == [None, [[[7, 7, 7]]]]


# ------------------------------------------------------------------------------------------------ contracts


OPTIONS: list[dict[str, Any]] = [
    {},
    {"crop": "centre", "mode": "L"},
    {"crop": "random", "flip": True, "seed": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_contracts(options: dict[str, Any]) -> None:
    differ = "seed" in options
    source = af.from_arrow(IMAGES)
    check_dataset(lambda: source.decode_image("image", 8, **options).batch(4), epochs_differ=differ)
    check_dataset(lambda: source.batch(4).decode_image("image", 8, **options), epochs_differ=differ)


def test_draws_depend_on_seed_epoch_and_row() -> None:
    def run(seed: int | None, epoch: int = 0, cores: int = 1, rows: int = 9) -> Pixels:
        ds = (
            af.from_arrow(IMAGES)
            .take(rows)
            .decode_image("image", 8, crop="random", flip=True, seed=seed)
            .batch(9)
        )
        (batch,) = batches_of(ds.with_options(af.Options(cpu_budget=cores)), epoch=epoch)
        return np.array(batch["image"].to_pylist(), np.uint8)

    first = run(1)
    assert (first == run(1, cores=4)).all()
    assert (first[:4] == run(1, rows=4)).all()
    others = [run(2), run(1, epoch=1), run(None)]
    assert all((first != other).any() for other in others)


def test_a_global_shuffle_moves_bytes_and_not_pixels() -> None:
    ds = af.from_arrow(IMAGES).decode_image("image", 8).shuffle(seed=1)
    plain = {
        row["row"]: row["image"]
        for row in af.from_arrow(IMAGES).decode_image("image", 8).to_table().to_pylist()
    }
    found = ds.to_table().to_pylist()
    assert {row["row"]: row["image"] for row in found} == plain
    assert [row["row"] for row in found] != sorted(plain)


@pytest.mark.parametrize("rules", [(), ("limit_reads",)])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rows_are_skipped_after_it(options: dict[str, Any], rules: tuple[str, ...]) -> None:
    def run(change: Callable[[af.Dataset], af.Dataset]) -> list[dict[str, Any]]:
        rows = af.from_arrow(IMAGES.to_batches(4)).with_options(af.Options(disabled_rules=rules))
        return change(rows.decode_image("image", 4, **options)).to_table().to_pylist()

    whole = run(lambda ds: ds)
    for count in range(10):
        assert run(lambda ds, count=count: ds.skip(count)) == whole[count:]  # type: ignore[misc]
    assert run(lambda ds: ds.repeat(2).skip(5).take(9))[:4] == whole[5:]
    assert run(lambda ds: ds.assert_cardinality(9).skip(3)) == whole[3:]


def test_columns_that_are_not_read_are_pruned() -> None:
    ds = af.from_arrow(IMAGES.append_column("more", pa.nulls(9))).decode_image("image", 8).select("image")
    assert "more" not in ds.explain().rpartition("optimised plan")[2]
    assert ds.filter(pl.lit(True)).num_rows in (None, 9)


# ------------------------------------------------------------------------------------------------ boxes


def test_boxes_lie_within_the_image() -> None:
    assert centre_box(100, 50, (20, 20)) == Box(25, 0, 50, 50)
    assert centre_box(3, 1000, (1, 7)) == Box(0, 499, 3, 1)
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        width, height = rng.integers(1, 300, 2).tolist()
        box = random_box(width, height, rng.random(DRAWS), (0.08, 1), (3 / 4, 4 / 3))
        assert box.left >= 0 and box.left + box.width <= width and box.width > 0
        assert box.top >= 0 and box.top + box.height <= height and box.height > 0
        shares.append(box.width * box.height / (width * height))
    assert min(shares) < 0.15 and max(shares) > 0.8


def test_shapes_of_boxes_spread_over_their_range() -> None:
    rng = np.random.default_rng(0)
    boxes = [random_box(1_000, 1_000, rng.random(DRAWS), (0.2, 0.5), (1 / 2, 2)) for _ in range(400)]
    shapes = np.log2([box.width / box.height for box in boxes])
    # Uniform over the logarithm, as in torchvision, but for rounding.
    assert np.quantile(shapes, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx([-1, -0.5, 0, 0.5, 1], abs=0.1)
    shares = [box.width * box.height / 1e6 for box in boxes]
    assert np.quantile(shares, [0, 0.5, 1]) == pytest.approx([0.2, 0.35, 0.5], abs=0.02)


# ------------------------------------------------------------------------------------------------ bad input


JPEG = encoded(picture(64, 48), ".jpg")
BAD: dict[str, bytes] = {
    "no image": b"hello",
    "nothing": b"",
    "a JPEG cut short": JPEG[:-40],
    "a PNG cut short": encoded(picture(9, 9))[:-13],
    "a WebP cut short": encoded(picture(64, 48), ".webp")[:-20],
    "a header alone": JPEG[:3],
    "a bomb": PNG[:16] + (100_000).to_bytes(4, "big") * 2 + PNG[24:],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_errors_and_bad_rows(name: str, tmp_path: Path) -> None:
    images = af.from_arrow(table(PNG, BAD[name], PNG))
    refused(
        af.DataError, lambda: images.decode_image("image", 1).to_table(), "decode_image", "column 'image'"
    )
    delivered: list[list[int]] = []
    with pytest.raises(af.DataError):
        delivered.extend(batch["row"].to_pylist() for batch in images.decode_image("image", 1))
    assert delivered in ([], [[0]])
    assert images.decode_image("image", 1, on_error="skip").to_table()["row"].to_pylist() == [0, 2]
    kept = images.decode_image("image", 1, on_error="quarantine", quarantine=tmp_path)
    assert kept.to_table().num_rows == 2
    assert af.read_quarantine(tmp_path).to_table()["image"].to_pylist() == [BAD[name]]


def test_a_bad_image_has_a_name_also_where_nobody_selects_it(tmp_path: Path) -> None:
    for name, data in ("a", PNG), ("b", JPEG[:-40]), ("c", PNG):
        path = tmp_path / "images" / "kind" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    images = af.read_images(tmp_path / "images", labels="folder")
    with pytest.raises(af.DataError, match="cut short") as caught:
        images.decode_image("image", 1).select("image", "label").to_table()
    assert Path(caught.value.file or "") == tmp_path / "images" / "kind" / "b.jpg"
    kept = images.decode_image("image", 1, on_error="quarantine", quarantine=tmp_path / "bad").select("label")
    assert kept.to_table().column_names == ["label"] and kept.to_table().num_rows == 2
    (path,) = af.read_quarantine(tmp_path / "bad").to_table()["path"].unique().to_pylist()
    assert Path(path).name == "b.jpg"


def test_images_are_decoded_as_they_are_read(tmp_path: Path) -> None:
    for name in "ab":
        path = tmp_path / name / "1.png"
        path.parent.mkdir()
        path.write_bytes(PNG)
    images = af.read_images(tmp_path, labels="folder")
    assert images.decode_image("image", (4, 6)).to_table() == (
        af.read_images(tmp_path, labels="folder", size=(4, 6)).to_table()
    )
    refused(af.PlanError, lambda: af.read_images(tmp_path, size=0), "size is (height, width)")
    refused(TypeError, lambda: af.read_files(tmp_path, size=8), "no argument 'size'")  # type: ignore[call-arg]


def test_pixels_of_other_kinds_are_bad_images() -> None:
    floats = cv2.imencode(".pfm", np.full((8, 8, 3), 0.5, np.float32))[1].tobytes()
    ds = af.from_arrow(pa.table({"image": [floats]}))
    for mode in ("L", "RGB"):
        assert (
            ds.decode_image("image", 2, mode=mode, on_error="skip").to_table().num_rows == 0 or mode == "RGB"
        )
    refused(
        af.DataError, lambda: ds.decode_image("image", 2, mode="L").to_table(), "L of uint8 was asked for"
    )


def test_bytes_after_the_end_of_an_image_do_no_harm() -> None:
    found = af.from_arrow(table(JPEG + b"\0" * 9, JPEG + b"trailer")).decode_image("image", 8)
    assert found.to_table().num_rows == 2
    assert header(memoryview(b"\xff\xd8\xff\xff\xe0\x00\x04ab" + JPEG[2:])).is_whole


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda ds: ds.decode_image("row", 8).schema, af.SchemaError, "takes the bytes of encoded images"),
        (lambda ds: ds.decode_image("imge", 8).schema, af.PlanError, "did you mean 'image'"),
        (lambda ds: ds.decode_image(["image"], 8), af.PlanError, "expected the name of a column"),
        (lambda ds: ds.decode_image("image", 0), af.PlanError, "size is (height, width)"),
        (lambda ds: ds.decode_image("image", (8, 8, 3)), af.PlanError, "size is (height, width)"),
        (lambda ds: ds.decode_image("image", 8, mode="BGR"), af.PlanError, "mode is 'RGB' or 'L'"),
        (lambda ds: ds.decode_image("image", 8, crop="center"), af.PlanError, "'centre'"),
        (lambda ds: ds.decode_image("image", 8, resize="cubic"), af.PlanError, "'bicubic'"),
        (lambda ds: ds.decode_image("image", 8, area=(0, 1)), af.PlanError, "area is (least, most)"),
        (lambda ds: ds.decode_image("image", 8, area=(0.5, 2)), af.PlanError, "at most 1"),
        (lambda ds: ds.decode_image("image", 8, ratio=1), af.PlanError, "ratio is (least, most)"),
    ],
)
def test_arguments(call: Callable[[af.Dataset], object], error: type[Exception], text: str) -> None:
    refused(error, lambda: call(af.from_arrow(IMAGES)), text)


def test_too_many_pixels_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_decoder, "MAX_PIXELS", 3_000)
    pixels = np.empty((8, 8, 3), np.uint8)
    with pytest.raises(af.DataError, match="announces 64 x 48 pixels, more than 3,000"):
        ImageDecoder((8, 8)).decode(memoryview(JPEG), pixels)

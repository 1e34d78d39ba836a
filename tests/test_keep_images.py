"""`Options(keep=…)`: pixels that `decode_image` made once are kept for later epochs, and nothing else changes."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow import run as run_module
from arrowflow.kernels import kept
from arrowflow.kernels.kept_images import KeptImages

cv2 = pytest.importorskip("cv2")

ROWS = 120
SIZE = 12
PIXELS = 3 * SIZE**2
"""Bytes of the pixels of an image."""

Pixels = npt.NDArray[np.uint8]


@pytest.fixture(autouse=True)
def _chunks_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether sources keep chunks, too, depends on measured times; here they never do."""
    monkeypatch.setattr(kept, "DEAR_SECONDS", 1.0)


def encoded(number: int) -> bytes:
    small = np.random.default_rng(number).integers(0, 255, (6, 8, 3), np.uint8)
    return bytes(cv2.imencode(".png", cv2.resize(small, (40, 30)))[1])


def truth(number: int) -> Pixels:
    """Returns the pixels of an image as OpenCV makes them."""
    whole = cv2.imdecode(np.frombuffer(encoded(number), np.uint8), cv2.IMREAD_COLOR_RGB)
    return np.asarray(cv2.resize(whole, (SIZE, SIZE)))


def write(path: Path, first: int, rows: int = ROWS // 2, **others: bytes | None) -> None:
    """Writes images by number; `others` are those that take the place of some, such as `row_3=b""`."""
    images: list[bytes | None] = [encoded(number) for number in range(first, first + rows)]
    for name, image in others.items():
        images[int(name.removeprefix("row_"))] = image
    table = pa.table({"x": range(first, first + rows), "image": pa.array(images, pa.binary())})
    pq.write_table(table, path, row_group_size=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(2):
        write(tmp_path / f"{number}.parquet", number * ROWS // 2)
    return tmp_path


def images_of(folder: Path) -> af.Dataset:
    return af.read_parquet(folder).decode_image("image", SIZE)


def run(loader: Any) -> tuple[list[int], af.Statistics]:
    """Returns the ids of an epoch, whose pixels are checked and then overwritten, and its figures."""
    found = []
    for batch in loader:
        for number, pixels in zip(batch["x"].tolist(), batch["image"], strict=True):
            assert (pixels == truth(number)).all()
            found.append(number)
            if pixels.flags.writeable:
                pixels[...] = 77
    return found, loader.stats()


PLANS: dict[str, Callable[[Path], af.Dataset]] = {
    "decoded, then batched": lambda folder: images_of(folder).batch(16),
    "batched, then decoded": lambda folder: af.read_parquet(folder).batch(16).decode_image("image", SIZE),
    "shuffled": lambda folder: (
        af.read_parquet(folder).shuffle(40, seed=1).decode_image("image", SIZE).batch(16)
    ),
    "pixels shuffled": lambda folder: images_of(folder).shuffle(40, seed=1).batch(16),
    "filtered": lambda folder: (
        af.read_parquet(folder).filter(pl.col("x") >= 0).decode_image("image", SIZE).batch(16)
    ),
    "lanes": lambda folder: (
        images_of(folder).shuffle(40, seed=1).batch(20).split_by_rank(0, 1, how="parts", lanes=4)
    ),
    "of a cache": lambda folder: af.read_parquet(folder).batch(16).cache().decode_image("image", SIZE),
    "of a folder": lambda folder: (
        af.read_parquet(folder).batch(16).cache(folder / "cache").decode_image("image", SIZE)
    ),
    "of a function": lambda folder: (
        af.read_parquet(folder).map(lambda batch: batch).decode_image("image", SIZE).batch(16)
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_an_image_is_decoded_twice_and_then_taken_from_memory(name: str, folder: Path) -> None:
    keeps = PLANS[name](folder).to_numpy()
    plain = PLANS[name](folder).with_options(af.Options(keep=False)).to_numpy()
    for epoch in range(3):
        found, stats = run(keeps)
        assert found == run(plain)[0] and sorted(found) == list(range(ROWS))
        assert stats.kept_images == (ROWS if epoch == 2 else 0)
        assert stats.kept_bytes == (ROWS * PIXELS if epoch else 0)
        assert stats.keepable_bytes == ROWS * PIXELS
        assert stats.kept_rows == plain.stats().kept_images == plain.stats().kept_bytes == 0
    assert f"{ROWS} images of this run were not decoded again" in keeps.explain()


@pytest.mark.parametrize("name", PLANS)
def test_states_are_those_without_and_runs_go_on_from_each_of_them(name: str, folder: Path) -> None:
    keeps = PLANS[name](folder).with_options(af.Options(keep="8MiB"))
    loader, plain = keeps.to_numpy(), PLANS[name](folder).with_options(af.Options(keep=False)).to_numpy()
    for epoch in range(3):
        found, states = [], []
        for one, other in zip(loader, plain, strict=True):
            found.append(one["x"].tolist())
            assert found[-1] == other["x"].tolist()
            states.append(json.dumps(loader.state_dict()))
            assert states[-1] == json.dumps(plain.state_dict())
        at = 2 * epoch + 1
        for resumed in (keeps, PLANS[name](folder)):
            again = resumed.to_numpy()
            again.load_state_dict(json.loads(states[at]))
            assert run(again)[0] == [number for ids in found[at + 1 :] for number in ids]


def test_a_size_is_taken_from_the_first_epoch_on(folder: Path) -> None:
    ds = images_of(folder).batch(16).with_options(af.Options(keep="1MiB"))
    assert "keeps pixels for later epochs, if there is room" in ds.explain()
    loader = ds.to_numpy()
    for epoch in range(2):
        found, stats = run(loader)
        assert found == list(range(ROWS))
        assert (stats.kept_images, stats.kept_bytes) == (epoch * ROWS, ROWS * PIXELS)
    total = f"{ROWS * PIXELS:,}"
    list(ds)
    assert f"decode_image: keeps {total} of {total} bytes for later epochs" in ds.explain()


@pytest.mark.parametrize("name", ["batched, then decoded", "shuffled"])
def test_half_of_the_room_saves_half_of_the_decoding(name: str, folder: Path) -> None:
    asked = ROWS * PIXELS // 2
    loader = PLANS[name](folder).with_options(af.Options(keep=asked)).to_numpy()
    before = 0
    for _ in range(3):
        found, stats = run(loader)
        assert sorted(found) == list(range(ROWS))
        assert 0.6 * asked <= stats.kept_bytes <= asked < stats.keepable_bytes
        assert stats.kept_images == before, "those that fit stay"
        before = stats.kept_bytes // PIXELS
    assert "more ram_budget would save more decoding" in loader.explain()


def test_the_ledger_stays_within_any_budget(folder: Path) -> None:
    largest = (folder / "0.parquet").stat().st_size
    for budget in (200_000, 300_000, 400_000):
        options = af.Options(ram_budget=budget, keep=budget)
        loader = PLANS["batched, then decoded"](folder).with_options(options).to_numpy()
        for _ in range(3):
            found, stats = run(loader)
            assert found == list(range(ROWS))
            assert stats.ledger_peak_bytes <= budget + largest
            assert stats.kept_bytes <= budget


def test_pixels_go_before_a_call_waits_for_memory(folder: Path) -> None:
    largest, budget = (folder / "0.parquet").stat().st_size, 3 * 100 * PIXELS
    options = af.Options(ram_budget=budget, keep=budget)
    loader = images_of(folder).shuffle(100, seed=1).batch(16).with_options(options).to_numpy()
    for _ in range(3):
        found, stats = run(loader)
        assert sorted(found) == list(range(ROWS))
        assert stats.kept_bytes < stats.keepable_bytes, "nothing went, or this test cannot fail"
        assert stats.ledger_peak_bytes <= budget + largest


def test_epochs_within_a_run_take_from_the_second_one(folder: Path) -> None:
    loader = af.read_parquet(folder).repeat(4).batch(15).decode_image("image", SIZE).to_numpy()
    found, stats = run(loader)
    assert found == 4 * list(range(ROWS))
    assert ROWS <= stats.kept_images <= 2 * ROWS


def test_rows_in_any_order_have_their_pixels(folder: Path) -> None:
    options = af.Options(deterministic=False, keep="1MiB", cpu_budget=4)
    loader = images_of(folder).batch(16).with_options(options).to_numpy()
    for epoch in range(3):
        found, stats = run(loader)
        assert sorted(found) == list(range(ROWS))
        assert stats.kept_images == (ROWS if epoch else 0)


def test_files_of_images_are_kept_as_well(folder: Path) -> None:
    for number in range(ROWS):
        (folder / f"{number:03}.png").write_bytes(encoded(number))
    loader = af.read_images(folder).shuffle(seed=1).decode_image("image", SIZE).batch(16).to_numpy()
    for epoch in range(3):
        for batch in loader:
            for path, pixels in zip(batch["path"].tolist(), batch["image"], strict=True):
                assert (pixels == truth(int(Path(path).stem))).all()
        assert loader.stats().kept_images == (ROWS if epoch == 2 else 0)


def test_a_file_that_has_changed_is_decoded_anew(folder: Path) -> None:
    loader = images_of(folder).batch(16).with_options(af.Options(keep="1MiB")).to_numpy()
    for _ in range(2):
        run(loader)
    write(folder / "1.parquet", 5 * ROWS)
    for epoch in range(2):
        found, stats = run(loader)
        assert found == [*range(ROWS // 2), *range(5 * ROWS, 5 * ROWS + ROWS // 2)]
        assert stats.kept_images == epoch * ROWS


def test_of_files_elsewhere_the_images_that_stay_are_taken() -> None:
    import fsspec

    memory, place = fsspec.filesystem("memory"), "/keep-images"

    def upload(name: str, first: int) -> None:
        images = pa.array([encoded(number) for number in range(first, first + 20)], pa.binary())
        with memory.open(f"{place}/{name}.parquet", "wb") as file:
            pq.write_table(pa.table({"x": range(first, first + 20), "image": images}), file)

    upload("0", 0)
    upload("1", 20)
    options = af.Options(keep="1MiB")
    ds = af.read_parquet(place, filesystem=memory).decode_image("image", SIZE).batch(5).with_options(options)
    loader = ds.to_numpy()
    assert run(loader)[0] == list(range(40))
    upload("1", 70)
    try:
        found, stats = run(loader)
    except af.SourceError:  # the file was found before, with other sizes
        found, stats = run(loader)
    assert found == [*range(20), *range(70, 90)]
    assert stats.kept_images in (0, 20)
    assert run(loader)[1].kept_images == 40


@pytest.mark.parametrize("random", [{"crop": "random"}, {"flip": True}])
def test_random_parts_are_drawn_anew(random: dict[str, Any], folder: Path) -> None:
    def made(keep: Any) -> af.Loader[dict[str, Any]]:
        ds = af.read_parquet(folder).decode_image("image", SIZE, seed=1, **random).batch(ROWS)
        return ds.with_options(af.Options(keep=keep)).to_numpy()

    loader, plain = made("1MiB"), made(False)
    epochs = []
    for _ in range(3):
        (own,), (other,) = loader, plain
        assert (own["image"] == other["image"]).all()
        epochs.append(own["image"].copy())
        assert loader.stats().kept_images == 0
    assert "keeps pixels" not in af.read_parquet(folder).decode_image("image", SIZE, **random).explain()
    assert (epochs[0] != epochs[1]).any() and (epochs[1] != epochs[2]).any()


def test_bad_images_are_left_out_and_told_in_each_epoch(folder: Path) -> None:
    write(folder / "1.parquet", ROWS // 2, row_3=b"no image", row_7=encoded(0)[:50], row_9=None)
    bad = {ROWS // 2 + row for row in (3, 7, 9)}

    def made(keep: Any) -> af.Loader[dict[str, Any]]:
        ds = af.read_parquet(folder).decode_image("image", SIZE, on_error="skip")
        return (
            ds.filter(pl.col("image").is_not_null()).batch(16).with_options(af.Options(keep=keep)).to_numpy()
        )

    loader, plain = made("1MiB"), made(False)
    for epoch in range(3):
        found, stats = run(loader)
        assert found == run(plain)[0] == [number for number in range(ROWS) if number not in bad]
        assert stats.skipped_rows == plain.stats().skipped_rows == 2
        assert stats.kept_images == ((ROWS - 3) if epoch else 0)
        assert stats.kept_bytes == (ROWS - 3) * PIXELS


def test_a_bad_image_ends_each_epoch_at_its_row(folder: Path) -> None:
    write(folder / "1.parquet", ROWS // 2, row_3=b"no image")
    loader = images_of(folder).batch(3).with_options(af.Options(keep="1MiB")).to_numpy()
    for epoch in range(3):
        batches = iter(loader)
        found = [next(batches)["x"].tolist() for _ in range((ROWS // 2 + 3) // 3)]
        assert sum(map(len, found)) == found[-1][-1] + 1 == ROWS // 2 + 3
        with pytest.raises(af.DataError, match="are no image"):
            next(batches)
        assert loader.stats().kept_images >= (ROWS // 2 + 3 if epoch else 0)


def test_null_stays_null_and_equal_images_are_kept_once(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", 0, 8, row_2=None, row_5=encoded(1), row_6=encoded(1))
    ds = images_of(tmp_path).batch(8).with_options(af.Options(keep="1MiB"))
    expected = [None if row == 2 else truth(1 if row in (5, 6) else row).tolist() for row in range(8)]
    for _ in range(3):
        (batch,) = iter(ds)
        assert batch["image"].to_pylist() == expected
    assert kept_by(ds).num_bytes == 5 * PIXELS


def kept_by(pipeline: Any) -> KeptImages:
    prepared = pipeline._ready() if isinstance(pipeline, af.Dataset) else pipeline._prepared()
    (found,) = [each for each in run_module._kept(prepared.chain) if isinstance(each, KeptImages)]
    return found


CALLS: dict[str, Callable[[af.Dataset], Any]] = {
    "to_table": lambda ds: ds.to_table(),
    "peek": lambda ds: ds.batch(10).to_numpy().peek(),
    "keep=False": lambda ds: list(ds.with_options(af.Options(keep=False))),
    "cache": lambda ds: list(ds.cache()),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_kept_where_nobody_comes_again(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    key = KeptImages.key

    def noted(own: KeptImages, *arguments: Any) -> Any:
        asked.append(arguments)
        return key(own, *arguments)

    monkeypatch.setattr(KeptImages, "key", noted)
    CALLS[name](images_of(folder))
    assert not asked
    list(images_of(folder))
    assert asked, "or this test cannot fail"


def test_pixels_go_with_the_plan_and_not_to_other_processes(folder: Path) -> None:
    loader = images_of(folder).batch(16).with_options(af.Options(keep="1MiB")).to_numpy()
    run(loader)
    own = kept_by(loader)
    copy = pickle.loads(pickle.dumps(own))
    assert own.chunks and not copy.chunks and copy.asked_bytes == own.asked_bytes == 1 << 20
    assert next(iter(islice(loader, 1)))["x"].tolist() == list(range(16))
    del loader
    gc.collect()
    assert own.is_gone and not own.chunks and not own.num_bytes


def test_chunks_of_local_files_leave_the_room_unless_they_were_dear(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dear_seconds, rows in (1.0, 0), (0.0, ROWS):
        monkeypatch.setattr(kept, "DEAR_SECONDS", dear_seconds)
        loader = PLANS["shuffled"](folder).with_options(af.Options(keep="4MiB")).to_numpy()
        for epoch in range(2):
            found, stats = run(loader)
            assert sorted(found) == list(range(ROWS))
            assert (stats.kept_rows, stats.kept_images) == (epoch * rows, epoch * ROWS)
        both = f"{ROWS} rows and {ROWS} images of this run were not decoded again"
        assert (both in loader.explain()) == bool(rows)


def test_a_large_group_has_whole_pages_of_its_own() -> None:
    own = KeptImages(1 << 30)
    made = {bytes([number]): np.full((300, 400, 3), number, np.uint8) for number in range(4)}
    group = own.group(made)
    assert group is not None and group.num_bytes % 4096 == 0 <= group.num_bytes - 4 * 360_000 < 4096 * 16
    for pixels in made.values():
        pixels[...] = 99
    assert [(pixels == number).all() for number, pixels in enumerate(group.chunks.values())] == 4 * [True]

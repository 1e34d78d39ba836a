"""`af.image`: augmentations, beside the same formulas in floats."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrowflow as af
from arrowflow.testing import check_resume
from tests.ops.tables import refused

pytest.importorskip("cv2")


def images(count: int = 3, height: int = 17, width: int = 5) -> Any:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def rounded(values: Any) -> Any:
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)


def test_flips_are_those_of_numpy() -> None:
    assert np.array_equal(af.image.flip_left_right(images()), images()[:, :, ::-1])
    assert np.array_equal(af.image.flip_up_down(images()), images()[:, ::-1])
    found = af.image.random_flip_up_down(images(100), np.random.default_rng(1))
    chosen = np.random.default_rng(1).random(100) < 0.5
    for one, before, flipped in zip(found, images(100), chosen, strict=True):
        assert np.array_equal(one, before[::-1] if flipped else before)
    assert 30 < chosen.sum() < 70


@pytest.mark.parametrize("delta", [0.0, 0.3, -1.0, np.array([0.1, -0.2, 0.5])])
def test_brightness_is_added(delta: Any) -> None:
    expected = rounded(images() + 255.0 * np.broadcast_to(delta, 3)[:, None, None, None])
    assert np.array_equal(af.image.adjust_brightness(images(), delta), expected)


@pytest.mark.parametrize("factor", [0.0, 1.0, 2.5, np.array([0.1, 1.2, 0.5])])
def test_contrast_is_around_the_mean_of_each_channel(factor: Any) -> None:
    means = images().mean(axis=(1, 2), keepdims=True)
    expected = rounded((images() - means) * np.broadcast_to(factor, 3)[:, None, None, None] + means)
    assert np.array_equal(af.image.adjust_contrast(images(), factor), expected)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.01, 1.7, 2.5, 1e9])
def test_saturation_is_that_of_hsv(factor: float) -> None:
    def changed(pixel: Any) -> Any:
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255))
        return np.array(colorsys.hsv_to_rgb(hue, min(1.0, saturation * factor), value)) * 255

    found = af.image.adjust_saturation(images(), factor).astype(float)
    assert np.abs(found - np.apply_along_axis(changed, -1, images().astype(float))).max() <= 0.51


def test_more_saturation_is_at_most_the_whole_one() -> None:
    found = af.image.adjust_saturation(np.array([[[[95, 130, 194]]]], np.uint8), 2.5)
    assert np.abs(found.ravel().astype(int) - [0, 69, 194]).max() <= 1
    gray = np.full((1, 2, 2, 3), 77, np.uint8)
    assert np.array_equal(af.image.adjust_saturation(gray, 3.0), gray)


@pytest.mark.parametrize("delta", [0.0, 0.25, -0.5, 1.0])
def test_hue_is_that_of_hsv(delta: float) -> None:
    def changed(pixel: Any) -> Any:
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255))
        return np.array(colorsys.hsv_to_rgb((hue + delta) % 1, saturation, value)) * 255

    found = af.image.adjust_hue(images(), delta).astype(float)
    assert np.abs(found - np.apply_along_axis(changed, -1, images().astype(float))).max() <= 0.51


RANDOM: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "flip": lambda x, rng: af.image.random_flip_left_right(x, rng),
    "brightness": lambda x, rng: af.image.random_brightness(x, 0.3, rng),
    "contrast": lambda x, rng: af.image.random_contrast(x, 0.5, 1.5, rng),
    "saturation": lambda x, rng: af.image.random_saturation(x, 0.5, 1.5, rng),
    "hue": lambda x, rng: af.image.random_hue(x, 0.3, rng),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_resumed_run_draws_the_same(name: str) -> None:
    def augment(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"image": RANDOM[name](batch["image"], rng)}

    check_resume(lambda: af.from_numpy({"image": images(12)}).map(augment, format="numpy", seed=3).batch(5))


@pytest.mark.parametrize("name", RANDOM)
def test_each_image_has_a_draw_of_its_own_and_the_input_stays(name: str) -> None:
    before = np.broadcast_to(images(1), (20, 17, 5, 3)).copy()
    before.flags.writeable = False
    found = RANDOM[name](before, np.random.default_rng(2))
    assert len({image.tobytes() for image in found}) > 1
    assert found.dtype == np.uint8 and found.shape == before.shape and found.flags.writeable
    assert np.array_equal(before, np.broadcast_to(images(1), before.shape))
    assert RANDOM[name](before[:0], np.random.default_rng(2)).shape == (0, 17, 5, 3)


def test_bad_arguments_are_told() -> None:
    refused(
        af.PlanError, lambda: af.image.flip_left_right(images()[0]), "image.flip_left_right", "(17, 5, 3)"
    )
    refused(af.PlanError, lambda: af.image.adjust_hue(images() / 255, 0.1), "float64", "uint8")
    refused(af.PlanError, lambda: af.image.adjust_hue(images(), [0.1, 0.2]), "delta", "3 images")
    rng = np.random.default_rng(0)
    refused(
        af.PlanError,
        lambda: af.image.random_contrast(images(), 2, 1, rng),
        "random_contrast",
        "between 2 and 1",
    )
    refused(
        af.PlanError, lambda: af.image.random_flip_up_down(images(), rng, 1.5), "random_flip_up_down", "1.5"
    )

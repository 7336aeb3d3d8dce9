from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from png_reader import read_png

from merlin.base.png import colour_map, coloured, png


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4]), st.randoms(use_true_random=False))
def test_a_picture_reads_back_pixel_by_pixel(height: int, width: int, channels: int, random) -> None:
    pixels = np.array([random.randrange(256) for _ in range(height * width * channels)], np.uint8)
    pixels = pixels.reshape(height, width, channels)
    assert np.array_equal(read_png(png(pixels)), pixels)


def test_equal_steps_of_the_colour_map_are_equal_steps_of_brightness() -> None:
    colours = colour_map().astype(float) / 255
    assert colours.shape == (256, 3)
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    lightness = np.where(luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance)
    steps = np.diff(lightness[::16])
    assert steps.min() > 0
    assert steps.max() < 2.5 * steps.min()


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([[0.0, 1.0]], (0, 255)),
        ([[-3e38, 3e38]], (0, 255)),
        ([[-1.7e308, 1.7e308]], (0, 255)),
        ([[5, 7]], (0, 255)),
        ([[4.0, 4.0]], (128, 128)),
        ([[0.0, 5e-324]], (0, 255)),
    ],
)
def test_the_least_and_the_greatest_value_get_the_ends_of_the_colour_map(values, ends) -> None:
    pixels = coloured(np.array(values))
    assert [pixels[0, i, :3].tolist() for i in (0, -1)] == [colour_map()[end].tolist() for end in ends]
    assert (pixels[..., 3] == 255).all()


def test_what_is_not_finite_is_clear_and_spoils_nothing() -> None:
    pixels = coloured(np.array([[np.nan, 1.0, np.inf, 2.0, -np.inf]]))
    assert pixels[0, :, 3].tolist() == [0, 255, 0, 255, 0]
    assert pixels[0, 1, :3].tolist() == colour_map()[0].tolist()
    assert coloured(np.full((2, 2), np.nan))[..., 3].max() == 0

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from tune_speed.reporting.figures.canvas import DARK, LIGHT, LOOKS, SENTINELS, SERIES, Palette

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
# Machado, Oliveira and Fernandes 2009, severity 1.0.
VISIONS = {
    "typical": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# Ottosson 2020, A perceptual color space for image processing.
LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def apart(colours: Sequence[str], vision: np.ndarray) -> float:
    seen = [np.clip(vision @ linear(colour), 0, 1) for colour in colours]
    places = [OKLAB @ np.cbrt(LMS @ rgb) for rgb in seen]
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(places, 2))


@THEMES
def test_lines_and_text_stand_out_from_the_surface(theme: Palette) -> None:
    assert min(contrast(theme[role], theme["surface"]) for role in SERIES) >= 3
    assert contrast(theme["ink"], theme["surface"]) >= 7
    assert contrast(theme["muted"], theme["surface"]) >= 4.5


@THEMES
@pytest.mark.parametrize("vision", VISIONS)
def test_series_stay_apart_for_colour_blind_readers(theme: Palette, vision: str) -> None:
    assert apart([theme[role] for role in SERIES], VISIONS[vision]) > 0.05


def test_both_themes_have_every_role_and_no_sentinel_is_a_colour_of_theirs() -> None:
    assert list(LIGHT) == list(DARK) == list(SENTINELS)
    sentinels = set(SENTINELS.values())
    assert len(sentinels) == len(LIGHT)
    assert sentinels.isdisjoint([*LIGHT.values(), *DARK.values()])


def test_statuses_differ_by_more_than_their_colour() -> None:
    assert len({(look.marker, look.is_filled) for look in LOOKS.values()}) == len(LOOKS)

import io
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments.ablations import ablated, make_run, planted
from hypothesis import assume, given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tune_speed.core.errors import StorageError
from tune_speed.experiments.ablation.plot import (
    MOST_TICKS,
    NEAR,
    _far_ticks,
    ablation_figure,
    plot_ablation,
)
from tune_speed.experiments.ablation.result import AblationResult
from tune_speed.reporting.plot_style import DPI

AXES = {"precision": "bf16", "loader.pin_memory": True}
LN_SPEEDS = {"precision=bf16": 0.4, "loader.pin_memory=true": 0.0}
PINNED = "loader.pin_memory=true"


def made(*, design: Any = "factorial", absent: Mapping[str, str] | None = None) -> AblationResult:
    runs = planted(AXES, design=design, ln_speeds=LN_SPEEDS)
    own = {name: each for name, each in runs.items() if name not in (absent or {})}
    return ablated(own, axes=AXES, design=design, not_applicable=absent)


def labels(figure: Figure) -> list[str]:
    return [axes.get_xlabel() for axes in figure.axes]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plot_is_written_in_the_format_of_its_suffix(
    tmp_path: Path, suffix: str, start: bytes
) -> None:
    path = tmp_path / "folder" / f"ablation{suffix}"
    plot_ablation(made(), path)
    assert path.read_bytes().startswith(start)


def test_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        plot_ablation(made(), tmp_path / "file" / "ablation.png")


def test_factorial_has_main_effects_and_interactions_below_the_arms() -> None:
    assert labels(ablation_figure(made())) == [
        "speed-up, against the base",
        "accuracy, against the base",
        "speed-up, main effects",
        "accuracy, main effects",
        "speed-up, interactions",
        "accuracy, interactions",
    ]
    assert len(labels(ablation_figure(made(design="one-at-a-time")))) == 2


def test_what_a_step_adds_stands_below_the_arms() -> None:
    figure = ablation_figure(made(design="cumulative"))
    assert labels(figure)[2:] == [
        "speed-up, added to the step before",
        "accuracy, added to the step before",
    ]
    assert [label.get_text() for label in figure.axes[2].get_yticklabels()] == [PINNED]


def test_every_arm_but_the_base_has_a_row_with_its_speed_up() -> None:
    result = made()
    speed, gain, *_ = ablation_figure(result).axes
    names = [label.get_text().replace("\n", " ") for label in speed.get_yticklabels()]
    assert names == [arm.name for arm in result.arms if arm.name != "base"]
    assert speed.get_xscale() == "log" and gain.get_xscale() == "linear"
    drawn = [text.get_text() for text in speed.texts]
    found = [arm.speed_up for arm in result.arms if arm.speed_up is not None]
    assert drawn == [f"{estimate.value:.2f}×" for estimate in found]


def test_arm_that_is_not_applicable_says_so_in_its_row() -> None:
    result = made(design="one-at-a-time", absent={PINNED: "no CUDA"})
    for panel in ablation_figure(result).axes:
        assert [text.get_text() for text in panel.texts][1] == "not applicable here"


def test_arm_without_a_run_says_so_too() -> None:
    figure = ablation_figure(ablated({}, axes=AXES))
    assert {text.get_text() for text in figure.axes[0].texts} == {"no runs yet"}


def test_enormous_intervals_leave_room_for_the_points() -> None:
    """Two seeds that differ by 5 %: the interval spans a factor of more than ten."""
    runs = {
        "base": [make_run(seed=s, time_s=t) for s, t in ((0, 10.0), (1, 10.0))],
        "precision=bf16": [make_run(seed=s, time_s=t) for s, t in ((0, 8.0), (1, 9.5))],
        PINNED: [make_run(seed=s, time_s=t) for s, t in ((0, 10.1), (1, 10.2))],
    }
    result = ablated(runs, axes=AXES, seeds=2)
    low, high = ablation_figure(result).axes[0].get_xlim()
    mixed = result.arms[1].speed_up
    assert mixed is not None and mixed.low is not None and mixed.value is not None
    assert mixed.low < low < 1 < mixed.value < high < 2


@given(st.floats(-300, 300), st.floats(math.log10(NEAR), 300))
def test_log_axis_of_any_range_has_a_few_ticks(start: float, decades: float) -> None:
    assume(start + decades < 300)
    low, high = 10.0**start, 10.0 ** (start + decades)
    ticks = _far_ticks(low, high)
    assert 2 <= len(ticks) <= MOST_TICKS and low <= ticks[0] and ticks[-1] <= high
    assert (1.0 in ticks) == (low <= 1.0 <= high)


@pytest.mark.parametrize("gain", [0.02, -0.3, 0.6, -1.0, 1.5, -2.2, 3.0, -4.5, 9.0])
def test_labels_of_ticks_do_not_overlap(gain: float) -> None:
    """Speed-ups from a few per cent to ranges of 0.001 to 20 and beyond, with two seeds."""
    ln_speeds = {"precision=bf16": gain, PINNED: -gain / 3}
    synergy = math.copysign(1, gain)
    runs = planted(AXES, design="factorial", ln_speeds=ln_speeds, synergy=synergy, seeds=2)
    figure = ablation_figure(ablated(runs, axes=AXES, design="factorial", seeds=2))
    figure.savefig(io.BytesIO(), format="png", dpi=DPI)
    for panel in figure.axes:
        low, high = panel.get_xlim()
        ticks = zip(panel.get_xticks(), panel.get_xticklabels(), strict=True)
        boxes = [label.get_window_extent() for tick, label in ticks if low <= tick <= high]
        assert len(boxes) >= 2
        assert all(left.x1 + 4 < right.x0 for left, right in itertools.pairwise(boxes))


def test_names_wrap_without_marks_and_without_a_formula() -> None:
    """The dollar at the 32nd character must keep what escapes it."""
    name = f"{'x' * 31}$y$ {'z' * 20}"
    axes = {"trick": {name: {"batch_size": 64}}, "precision": "bf16"}
    figure = ablation_figure(ablated({}, axes=axes, design="factorial"))
    figure.savefig(io.BytesIO(), format="png")
    drawn = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    texts = (drawn[0], drawn[2], ablation_figure(made()).get_suptitle())
    assert all("\n" in text and "\N{REPLACEMENT CHARACTER}" not in text for text in texts)
    assert drawn[0].replace("\\$", "$").replace("\n", "") == name


def test_points_are_where_the_estimates_are() -> None:
    result = made(design="one-at-a-time")
    speed = ablation_figure(result).axes[0]
    points = [line.get_xdata()[0] for line in speed.lines if line.get_marker() == "o"]
    assert points == [arm.speed_up.value for arm in result.arms if arm.speed_up is not None]


def test_names_of_formulas_are_drawn_as_they_are() -> None:
    axes = {"trick": {"$x^2$ and $\\nothing{": {"batch_size": 64}}}
    figure = ablation_figure(ablated({}, axes=axes))
    figure.savefig(io.BytesIO(), format="png")

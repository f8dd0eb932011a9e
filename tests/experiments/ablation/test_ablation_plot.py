import io
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments.ablations import ablated, make_run, planted
from matplotlib.figure import Figure

from tune_speed.core.errors import StorageError
from tune_speed.experiments.ablation.plot import ablation_figure, plot_ablation
from tune_speed.experiments.ablation.result import AblationResult
from tune_speed.reporting.plot_style import DPI

AXES = {"precision": "bf16", "loader.pin_memory": True}
LN_SPEEDS = {"precision=bf16": 0.4, "loader.pin_memory=true": 0.0}
PINNED = "loader.pin_memory=true"


def made(*, design: Any = "factorial", absent: Mapping[str, str] | None = None) -> AblationResult:
    runs = planted(AXES, design=design, ln_speeds=LN_SPEEDS)
    own = {name: each for name, each in runs.items() if name not in (absent or {})}
    return ablated(own, axes=AXES, design=design, not_applicable=absent)


def names_of(figure: Figure) -> list[str]:
    return [label.get_text().replace("\n", " ") for label in figure.axes[0].get_yticklabels()]


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


@pytest.mark.parametrize("design", ["factorial", "one-at-a-time", "cumulative"])
def test_each_arm_but_the_base_has_a_row_and_then_each_effect(design: str) -> None:
    result = made(design=design)
    arms = [arm.name for arm in result.arms if arm.name != "base"]
    effects = {
        "factorial": ["main effects:", "precision=bf16", PINNED, "interactions:",
                      f"precision=bf16 × {PINNED}"],
        "one-at-a-time": [],
        "cumulative": ["added to the step before:", "precision=bf16", PINNED],
    }  # fmt: skip
    assert names_of(ablation_figure(result)) == [*arms, *effects[design]]


def test_points_and_labels_are_the_estimates_on_an_axis_of_factors() -> None:
    result = made(design="one-at-a-time")
    panel = ablation_figure(result).axes[0]
    values = [arm.speed_up.value or 0.0 for arm in result.arms if arm.speed_up is not None]
    points = [line.get_xdata()[0] for line in panel.lines if line.get_marker() == "o"]
    assert points == pytest.approx([math.log(value) for value in values])
    assert [text.get_text() for text in panel.texts] == [f"{value:.2f}×" for value in values]
    assert panel.xaxis.get_major_formatter()(math.log(1.5)) == "1.5×"


def test_arms_without_runs_say_why() -> None:
    result = made(design="one-at-a-time", absent={PINNED: "no CUDA"})
    for panel in ablation_figure(result).axes:
        assert [text.get_text() for text in panel.texts][1] == "not applicable here"
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
    low, high = map(math.exp, ablation_figure(result).axes[0].get_xlim())
    mixed = result.arms[1].speed_up
    assert mixed is not None and mixed.low is not None and mixed.value is not None
    assert mixed.low < low < 1 < mixed.value < high < 2


@pytest.mark.parametrize("gain", [0.02, -0.3, 0.6, -1.0, 3.0, 9.0])
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
    axes = {"trick": {name: {"batch_size": 64}}, "precision": {"$\\nothing{": {"epochs": 2}}}
    figure = ablation_figure(ablated({}, axes=axes, design="factorial"))
    figure.savefig(io.BytesIO(), format="png")
    drawn = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "\n" in drawn[0] and "\N{REPLACEMENT CHARACTER}" not in drawn[0]
    assert drawn[0].replace("\\$", "$").replace("\n", "") == name

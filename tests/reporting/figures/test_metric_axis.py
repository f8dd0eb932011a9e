import pytest

from tune_speed.core.targets import Target
from tune_speed.reporting.figures.axes import draw_metric_axis, steep
from tune_speed.reporting.figures.canvas import LIGHT, Canvas


@pytest.mark.parametrize("target", [0.3, 0.79, 0.8, 0.97, 0.999])
@pytest.mark.parametrize("values", [(0.1, 0.98), (0.5,), (0.97, 0.9999), (1.0, 0.0)])
def test_all_values_and_the_target_are_within_the_axis(
    target: float, values: tuple[float, ...]
) -> None:
    canvas = Canvas(LIGHT, height=200)
    draw_metric_axis(canvas, canvas.panel, values, Target(metric="accuracy", value=target))
    low, high = canvas.panel.get_ylim()
    shown = [min(value, 0.9995) if target >= 0.8 else value for value in (*values, target)]
    assert all(low <= value <= high for value in shown)


def test_halving_the_error_is_the_same_step_everywhere() -> None:
    heights = steep([0.8, 0.9, 0.95, 0.975])
    assert heights[1:] - heights[:-1] == pytest.approx([heights[1] - heights[0]] * 3)


def test_ticks_do_not_crowd() -> None:
    canvas = Canvas(LIGHT, height=200)
    draw_metric_axis(canvas, canvas.panel, [0.0, 0.9999], Target(metric="accuracy", value=0.97))
    ticks = steep(canvas.panel.get_yticks())
    assert (ticks[1:] - ticks[:-1] > 0.08 * (ticks[-1] - ticks[0])).all()


@pytest.mark.parametrize(("target", "is_told"), [(0.97, True), (0.5, False)])
def test_axis_that_is_logarithmic_in_the_error_says_so(target: float, is_told: bool) -> None:
    canvas = Canvas(LIGHT, height=200)
    goal = Target(metric="macro_f1", value=target)
    draw_metric_axis(canvas, canvas.panel, [0.3, 0.9], goal)
    words = "macro f1 (logarithmic in the error, 1 − macro f1)" if is_told else "macro f1"
    assert canvas.panel.get_title(loc="left") == words

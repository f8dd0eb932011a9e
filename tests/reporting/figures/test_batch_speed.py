import statistics

import pytest
from helpers.reporting.figures import make_part, make_trial, sketched, viewed

from tune_speed.reporting.figures.canvas import LIGHT
from tune_speed.reporting.figures.step_time import STEP_TIME, medians, speeds
from tune_speed.reporting.study.view import ViewedTrial


def timed(batch: int, step_ms: float, *, accumulation: int = 1, **recipe: object) -> ViewedTrial:
    trial = make_trial(batch_size=batch, step_time_ms=step_ms, accumulation_steps=accumulation)
    changed = {"model": {"resnet20": {}}, "precision": "fp32", **recipe}
    return viewed(trial.record.model_copy(update={"recipe": changed}))


def test_batch_is_that_of_a_whole_step() -> None:
    (speed,) = speeds(make_part(timed(64, 100.0, accumulation=2, devices=4)))
    assert speed.batch == 512
    assert speed.samples_per_s == pytest.approx(5120)


def test_each_precision_has_a_line_through_its_medians() -> None:
    times = {32: [1.0, 2.0, 9.0], 64: [3.0, 4.0]}
    fp32 = [timed(batch, t) for batch, group in times.items() for t in group]
    sketch = sketched(STEP_TIME, make_part(*fp32, timed(32, 0.5, precision="bf16")))
    drawn = sketch.canvas.panels[1].get_lines()
    assert len(drawn) == 2
    assert list(drawn[0].get_ydata()) == pytest.approx(
        [statistics.median(group) for group in times.values()]
    )


def test_models_are_named_where_there_are_several() -> None:
    one = make_part(timed(32, 1.0), timed(64, 2.0, precision="bf16"))
    assert {speed.line for speed in speeds(one)} == {"fp32", "bf16"}
    two = make_part(timed(32, 1.0), timed(64, 2.0, model={"vit": {}}))
    assert {speed.line for speed in speeds(two)} == {"resnet20, fp32", "vit, fp32"}


def test_alt_tells_the_fastest_batch() -> None:
    sketch = sketched(STEP_TIME, make_part(timed(32, 10.0), timed(64, 10.0)))
    assert sketch.alt == (
        "fp32 is fastest at 6400 samples per second, with an effective batch size of 64"
        " (of 2 sizes)."
    )


def test_nothing_is_drawn_where_speed_was_never_varied() -> None:
    assert STEP_TIME.draw(make_part(timed(32, 1.0), timed(32, 1.1)), LIGHT) is None


def test_spread_goes_from_least_to_greatest() -> None:
    found = speeds(make_part(timed(32, 3.0), timed(32, 1.0), timed(32, 2.0)))
    assert medians(found, "step_ms") == {32: (1.0, 2.0, 3.0)}

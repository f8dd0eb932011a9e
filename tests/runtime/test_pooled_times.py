"""Pooled step times: against a simulated machine that drifts, whose truth is known, and by hand."""

import math

import numpy as np
import pytest
from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.records import Clocks, RunResult, StepTime, Timing, TrialRecord
from tune_speed.core.words import joined
from tune_speed.runtime.pooled_times import pooled, power_of_run, reclocked, with_window


def window(key: str, step_s: float, reference_s: float | None = 0.01, **fields: object) -> StepTime:
    given = {"low_s": step_s, "high_s": step_s, "num_steps": 9, "measured_in": "s/t0000"}
    told = {"key": key, "step_s": step_s, "reference_s": reference_s, "place": "here"}
    return StepTime.model_validate({**given, **told, **fields})


def times(*windows: StepTime, **settings: object) -> dict[str, float]:
    found = pooled(windows, **settings)  # type: ignore[arg-type]
    return {key: each.step_s for key, each in found.items()}


def test_a_window_without_a_reference_is_what_it_is() -> None:
    alone = window("a", 0.1, None, low_s=0.09, high_s=0.12)
    assert pooled([alone]) == {"a": alone}


def test_all_kinds_are_told_at_the_median_speed() -> None:
    # The machine was slow by 2, usual, and fast by 2; each kind takes 100 ms at its usual speed.
    found = times(window("a", 0.2, 0.02), window("b", 0.1, 0.01), window("c", 0.05, 0.005))
    assert found == pytest.approx({"a": 0.1, "b": 0.1, "c": 0.1})


def test_the_speed_is_that_which_the_study_saw_and_else_that_of_all() -> None:
    ours, theirs = window("a", 0.1, 0.02), window("b", 0.1, 0.01, measured_in="t/t0000")
    assert times(ours, theirs, study="s") == pytest.approx({"a": 0.1, "b": 0.2})
    assert times(ours, theirs, study="new") == pytest.approx({"a": 0.075, "b": 0.15})


def test_the_speed_may_be_given() -> None:
    assert times(window("a", 0.1, 0.02), usual={"here": 0.01}) == pytest.approx({"a": 0.05})


def test_places_have_speeds_of_their_own() -> None:
    found = times(window("a", 0.1, 0.02), window("b", 0.1, 0.001, place="a GPU"))
    assert found == pytest.approx({"a": 0.1, "b": 0.1})


def test_disturbed_windows_count_only_where_there_are_no_others() -> None:
    noisy = window("a", 0.9, 0.02, disturbed="others")
    assert times(noisy, window("a", 0.1)) == pytest.approx({"a": 0.1})
    (alone,) = pooled([noisy]).values()
    assert alone.step_s == pytest.approx(0.9) and alone.disturbed == "others"
    assert not pooled([noisy, window("a", 0.1)])["a"].disturbed


def test_interval_of_a_drifting_machine_covers_the_truth_and_the_order_holds() -> None:
    # Twelve kinds, a random walk of the machine's speed by 3 % from window to window with spells at
    # half the speed, and 2 % of chance in a window. Today's clock: the first window as it is.
    random = np.random.default_rng(7)
    covered, num_all, ours_off, first_off = 0, 0, list[float](), list[float]()
    for _ in range(100):
        truth = np.exp(random.normal(-3, 0.5, 12))
        speed, windows = 0.0, list[StepTime]()
        for number in range(36):
            speed += random.normal(0, 0.03)
            factor = math.exp(speed) * (2.0 if number % 9 < 3 else 1.0)
            step_s = truth[number % 12] * factor * math.exp(random.normal(0, 0.02))
            reference_s = 0.01 * factor * math.exp(random.normal(0, 0.005))
            windows.append(window(f"k{number % 12}", step_s, reference_s))
        found = pooled(windows)
        (usual_s,) = {each.reference_s for each in found.values()}
        assert usual_s is not None
        for kind, true_s in enumerate(truth * usual_s / 0.01):
            each = found[f"k{kind}"]
            assert each.num_windows == 3
            covered += each.low_s <= true_s <= each.high_s
            num_all += 1
            ours_off.append(math.log(each.step_s / true_s))
            first_off.append(math.log(windows[kind].step_s / true_s))
    assert 0.93 <= covered / num_all <= 0.985
    assert np.std(ours_off) < 0.015 and np.std(first_off) > 0.25


def test_one_window_more_is_as_if_all_were_pooled() -> None:
    first, second, third = window("a", 0.1), window("a", 0.3, 0.02), window("a", 0.12)
    usual = {"here": 0.01}
    known = pooled([first, second], usual=usual)["a"]
    both, together = with_window(known, third), pooled([first, second, third], usual=usual)["a"]
    assert (both.step_s, both.num_windows) == (pytest.approx(together.step_s), 3)
    assert both.reference_s == together.reference_s == 0.01


def test_a_disturbed_window_more_changes_nothing_and_the_first_undisturbed_one_all() -> None:
    disturbed = window("a", 0.9, disturbed="others")
    known = pooled([window("a", 0.1)])["a"]
    assert with_window(known, disturbed) == known
    mended = with_window(pooled([disturbed])["a"], window("a", 0.1))
    assert (mended.step_s, mended.num_windows, mended.disturbed) == (pytest.approx(0.1), 1, "")


# --- Records


def clocked(*step_times: StepTime, shape_steps: tuple[tuple[int, int], ...]) -> TrialRecord:
    """Returns a run that ended after all its steps, evaluated after half of them and at its end."""
    ends = [0.0]
    for number, steps in shape_steps:
        ends += [ends[-1] + (i + 1) * step_times[number].step_s for i in range(steps)]
    num_steps, init_s = len(ends) - 1, 0.5
    at = {step: init_s + ends[step] for step in (num_steps // 2, num_steps)}
    evaluations = [make_evaluation(step=0, train_s=0.0)]
    evaluations += [make_evaluation(step=step, train_s=train_s) for step, train_s in at.items()]
    update = {
        "timing": Timing.ISOLATED,
        "evaluations": tuple(evaluations),
        "clocks": Clocks(train_s=at[num_steps]),
        "time_to_target_s": at[num_steps],
        "steps": num_steps,
        "samples": 32 * num_steps,
        "images_per_s": 32 * num_steps / at[num_steps],
        "step_time_ms": 1000 * ends[-1] / num_steps,
        "init_s": init_s,
        "step_times": step_times,
        "shape_steps": shape_steps,
        "shared_train_s": 9.0,
        "slowdown": 9.0 / at[num_steps],
    }
    record = make_record()
    return record.model_copy(update={"runs": (make_run().model_copy(update=update),)})


def told(run: RunResult) -> tuple[object, ...]:
    curve = [each.train_s for each in run.evaluations]
    return *curve, run.time_to_target_s, run.clocks.train_s, run.step_time_ms, run.images_per_s


def test_reclocked_run_is_the_one_that_the_new_step_times_would_have_given() -> None:
    shape_steps = ((0, 4), (1, 6), (0, 2))
    old = clocked(window("a", 0.1), window("b", 0.2), shape_steps=shape_steps)
    new = window("a", 0.05, num_windows=2), window("b", 0.3, num_windows=3)
    wanted = clocked(*new, shape_steps=shape_steps).runs[0]
    found = reclocked(old, {each.key: each for each in new}).runs[0]
    assert told(found) == pytest.approx(told(wanted))
    assert found.slowdown == pytest.approx(wanted.slowdown)
    assert found.step_times == new
    assert joined(found.note) == "re-clocked: 100 → 50 ms a step, by 5 windows"


def test_what_has_other_step_times_or_none_is_left_as_it_is() -> None:
    record = clocked(window("a", 0.1), shape_steps=((0, 4),))
    assert reclocked(record, {"b": window("b", 0.3)}) is record
    assert reclocked(record, {"a": window("a", 0.1)}) is record
    plain = make_record()
    assert reclocked(plain, {"a": window("a", 0.3)}) is plain


def test_note_tells_the_first_figure_however_often_it_changed() -> None:
    record = clocked(window("a", 0.1), shape_steps=((0, 4),))
    for step_s in (0.05, 0.06):
        record = reclocked(record, {"a": window("a", step_s)})
    assert joined(record.runs[0].note) == "re-clocked: 100 → 60 ms a step, by 1 window"


def test_run_whose_windows_were_all_disturbed_says_so() -> None:
    record = clocked(window("a", 0.1), shape_steps=((0, 4),))
    disturbed = window("a", 0.2, disturbed="others")
    assert reclocked(record, {"a": disturbed}).runs[0].timing is Timing.DISTURBED


def test_power_of_windows_is_the_mean_of_those_that_have_one() -> None:
    powers = (200.0, None, 300.0)
    windows = [window("a", 0.1, power_w=power_w) for power_w in powers]
    assert pooled(windows)["a"].power_w == 250.0
    known = pooled(windows[:2])["a"]
    assert known.power_w == 200.0
    assert with_window(window("a", 0.1), windows[0]).power_w == 200.0
    assert with_window(window("a", 0.1, power_w=100.0), windows[0]).power_w == 150.0
    assert "power_w" not in window("a", 0.1).model_dump()


def test_power_of_a_run_weighs_each_stretch_by_its_seconds() -> None:
    """100 steps of 0.1 s at 200 W and 50 of 0.4 s at 500 W: 12 kJ in 30 s."""
    kinds = (window("a", 0.1, power_w=200.0), window("b", 0.4, power_w=500.0))
    assert power_of_run(kinds, ((0, 60), (1, 50), (0, 40))) == pytest.approx(12_000 / 30)
    assert power_of_run(kinds[:1], ()) == pytest.approx(200.0)
    assert power_of_run((*kinds, window("c", 1.0)), ((0, 1), (2, 1))) is None

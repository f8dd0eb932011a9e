import pytest
from helpers.making import make_run

from tune_speed.core.records import RunResult, StepTime
from tune_speed.tuning.driver.learning import AGE_S, MOST_WINDOWS, SHARE, WindowHistory


def window(key: str = "k", *, at: str = "", study: str = "s", **fields: object) -> StepTime:
    told = {"key": key, "step_s": 0.1, "low_s": 0.1, "high_s": 0.1, "num_steps": 9}
    seen = {"measured_in": f"{study}/t0000", "measured_at": at, "place": "p", "reference_s": 0.01}
    return StepTime.model_validate({**told, **seen, **fields})


def run_of(*windows: StepTime, step_times: tuple[StepTime, ...] = ()) -> RunResult:
    return make_run().model_copy(update={"windows": windows, "step_times": step_times})


def test_a_window_that_comes_with_each_report_counts_once() -> None:
    history, each = WindowHistory("s", ()), window()
    for _ in range(3):
        history.add(run_of(each))
    assert history.pooled()["k"].num_windows == 1


def test_times_are_told_at_the_speed_that_the_first_trial_told_and_settled_at_the_median() -> None:
    history = WindowHistory("s", ())
    slow = window("a", reference_s=0.03)
    history.add(run_of(slow, step_times=(slow,)))
    for number in range(2):
        quick = window(f"b{number}", step_s=0.1, reference_s=0.01)
        history.add(run_of(quick))
    assert history.pooled()["a"].step_s == pytest.approx(0.1)
    assert history.pooled()["b0"].step_s == pytest.approx(0.3)
    settled = history.settled()
    assert settled["a"].step_s == pytest.approx(0.1 / 3)
    assert settled["b0"].step_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("ages_s", "is_due"),
    [
        ([AGE_S - 5], False),
        ([AGE_S + 5], True),
        ([99, AGE_S + 5], False),
        ([99, 2 * AGE_S + 5], True),
        ([1e6] * MOST_WINDOWS, False),
    ],
)
def test_kind_is_due_when_its_last_window_is_old(ages_s: list[float], is_due: bool) -> None:
    history, now_s = WindowHistory("s", ()), 1e7
    for number, age_s in enumerate(ages_s):
        history.add(run_of(window(at=str(number))), now_s=now_s - age_s)
    assert history.due(now_s=now_s) == (("k",) if is_due else ())


def test_kind_whose_windows_were_all_disturbed_is_due_at_once() -> None:
    history = WindowHistory("s", ())
    history.add(run_of(window(disturbed="others")), now_s=1e7)
    assert history.due(now_s=1e7) == ("k",)


def test_windows_of_earlier_sessions_and_studies_are_old() -> None:
    assert WindowHistory("s", [window(study="other")]).due(now_s=1e3) == ("k",)


def test_windows_beyond_the_first_of_a_kind_keep_to_their_share_of_the_time() -> None:
    once = WindowHistory("s", [window("a"), window("b"), window("a", study="other")])
    twice = WindowHistory("s", [window("a"), window("a", at="later")])
    for history, windows in ((once, 1), (twice, 2)):
        assert history.due(now_s=windows / SHARE - 1) == ()
        assert "a" in history.due(now_s=windows / SHARE + 1)

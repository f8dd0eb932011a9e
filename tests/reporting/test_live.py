import io
from collections.abc import Callable

from making import make_evaluation, make_record, make_run
from rich.console import Console

from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.live import LiveView


def make_view(
    *, finished: list[TrialRecord] | None = None, left_s: Callable[[], float | None] = lambda: None
) -> tuple[LiveView, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=200, soft_wrap=True)
    view = LiveView(console, trials=5, finished=finished or [], time_left_s=left_s)
    return view, out


def start(view: LiveView, trial_id: str) -> None:
    view.trial_started(trial_id=trial_id, params={}, recipe={})


def test_standing_counts_done_running_and_failed_trials() -> None:
    view, _ = make_view()
    for number in range(3):
        start(view, f"t000{number}")
    view.trial_finished(record=make_record("t0000", Status.FAILED))
    view.trial_evaluated(trial_id="t0001", evaluation=make_evaluation(accuracy=0.75))
    standing = view.standing()
    for part in ("1/5 trials", "2 running", "0 met the target", "1 failed", "0.750 in t0001"):
        assert part in standing


def test_standing_names_the_best_so_far() -> None:
    view, out = make_view()
    for number, time_s in enumerate([3.0, 1.5, 2.0]):
        start(view, f"t000{number}")
        view.trial_finished(record=make_record(f"t000{number}", time_s=time_s))
    assert "best 1.50 s (t0001)" in view.standing()
    marked = [line[:5] for line in out.getvalue().splitlines() if "best so far" in line]
    assert marked == ["t0000", "t0001"]


def test_trials_of_an_earlier_session_count() -> None:
    view, _ = make_view(finished=[make_record("t0000", time_s=4.0)])
    assert "1/5 trials" in view.standing()
    assert "best 4.00 s (t0000)" in view.standing()


def test_time_left_is_the_budgets_where_that_ends_first() -> None:
    view, _ = make_view(left_s=lambda: 95.4)
    assert "about 1 min 35 s left" in view.standing()


def test_time_left_without_budget_or_pace_is_unknown() -> None:
    view, _ = make_view()
    assert "time left unknown" in view.standing()


def test_ended_trial_is_told_with_the_reasons_for_its_start_and_end() -> None:
    view, out = make_view()
    start(view, "t0000")
    stop = "stopped at 41.0 s: leader t0003 met the target in 38.2 s"
    run = make_run(Status.CAPPED).model_copy(update={"stop_reason": stop})
    record = make_record("t0000", Status.CAPPED, runs=(run,))
    view.trial_finished(record=record.model_copy(update={"proposal_reason": "gain: 42% likely"}))
    assert f"{stop}  [lr=0.1 · gain: 42% likely]" in out.getvalue()


def test_note_stays_as_a_line() -> None:
    view, out = make_view()
    view.note("the search ends here")
    assert out.getvalue() == "the search ends here\n"


def test_interrupted_trial_is_told_with_the_reason() -> None:
    view, out = make_view()
    start(view, "t0000")
    view.trial_interrupted(trial_id="t0000", reason="the search was stopped")
    assert out.getvalue() == "t0000 interrupted: the search was stopped\n"
    assert "0 running" in view.standing()


def test_piped_output_has_no_escape_codes() -> None:
    view, out = make_view()
    view.start()
    view.trial_finished(record=make_record("t0000"))
    view.tick()
    view.stop()
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().startswith("t0000 reached")

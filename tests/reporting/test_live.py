import io
import re
from collections.abc import Callable
from typing import Any

from helpers.making import make_evaluation, make_record, make_run
from rich.console import Console
from rich.text import Text

from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.targets import Target
from tune_speed.core.words import ProposalReason, StopReason
from tune_speed.reporting.live import MOST_RUNNING, LiveView
from tune_speed.reporting.table import as_text


def make_view(
    *,
    finished: list[TrialRecord] | None = None,
    left_s: Callable[[], float | None] = lambda: None,
    is_terminal: bool = False,
    is_verbose: bool = False,
    width: int = 200,
) -> tuple[LiveView, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=width, soft_wrap=True, force_terminal=is_terminal)
    target = Target(metric="accuracy", value=0.9)
    view = LiveView(
        console,
        trials=5,
        finished=finished or [],
        time_left_s=left_s,
        target=target,
        is_verbose=is_verbose,
    )
    return view, out


def start(view: LiveView, trial_id: str) -> None:
    view.trial_started(trial_id=trial_id, params={}, recipe={})


LIKELY = ProposalReason.model_validate("gain: 42% likely")


def test_standing_and_lines_of_a_search(kept_text: Callable[[str, str], None]) -> None:
    view, out = make_view(finished=[make_record("t0000", time_s=4.0)], left_s=lambda: 95.4)
    kept_text(view.standing(), "resumed")
    for number in range(1, 4):
        start(view, f"t000{number}")
    stop = "stopped at 41.0 s: leader t0003 met the target in 38.2 s"
    run = make_run(Status.CAPPED).model_copy(
        update={"stop_reason": StopReason.model_validate(stop)}
    )
    record = make_record("t0001", Status.CAPPED, runs=(run,))
    view.trial_finished(record=record.model_copy(update={"proposal_reason": LIKELY}))
    view.trial_finished(record=make_record("t0002", Status.FAILED))
    view.trial_evaluated(trial_id="t0003", evaluation=make_evaluation(accuracy=0.75))
    kept_text(view.standing().rpartition(" · ")[0], "running")
    view.trial_interrupted(trial_id="t0003", reason="the search was stopped")
    view.note("the search ends here")
    kept_text(out.getvalue(), "lines")
    view, _ = make_view()
    view.trials = 1
    kept_text(view.standing(), "one trial, no budget")


def test_standing_names_the_best_so_far() -> None:
    view, out = make_view()
    for number, time_s in enumerate([3.0, 1.5, 2.0]):
        start(view, f"t000{number}")
        view.trial_finished(record=make_record(f"t000{number}", time_s=time_s))
    assert "best 1.50 s (t0001)" in view.standing()
    marked = [line[:5] for line in out.getvalue().splitlines() if "best so far" in line]
    assert marked == ["t0000", "t0001"]


def test_time_left_comes_with_the_chance_of_the_goal_until_that_is_met() -> None:
    def missed(number: int) -> TrialRecord:
        run = make_run(Status.MISSED, accuracy=0.85)
        record: TrialRecord = make_record(f"t000{number}", Status.MISSED, runs=(run,))
        return record

    view, _ = make_view(finished=[missed(number) for number in range(5)], left_s=lambda: 95.4)
    assert "by then" not in view.standing()
    view.trial_finished(record=missed(5))
    assert re.search(r"left, (<1|\d+)% to meet the target by then", view.standing())
    view.replan(trials=9)
    assert "6/9 trials" in view.standing()


def test_piped_output_has_no_escape_codes() -> None:
    view, out = make_view()
    view.start()
    view.trial_finished(record=make_record("t0000"))
    view.tick()
    view.stop()
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().startswith("t0000 reached")


# --- A terminal


PARAMS = {"optimizer.sgd.lr": 0.25, "batch_size": 64, "epochs": 2.5}


def shown_on_a_terminal(*records: TrialRecord, **options: Any) -> list[str]:
    view, out = make_view(is_terminal=True, **options)
    for record in records:
        view.trial_finished(record=record)
    return [Text.from_ansi(line).plain for line in out.getvalue().splitlines()]


def test_ended_trials_have_one_aligned_line_each_that_breaks_no_word() -> None:
    best = make_record("t0000", params=PARAMS)
    failed = make_record("t0001", Status.DIVERGED, time_s=12.5, params=PARAMS)
    for width in (34, 60, 80, 140):
        lines = shown_on_a_terminal(best, failed, width=width)
        assert len(lines) == 2 and max(map(len, lines)) <= width
        words = {word for line in lines for word in line.split()}
        assert words <= {
            *("t0000", "t0001", "reached", "diverged", "1.00", "12.50", "s", "0.9500", "best"),
            *("lr=0.25", "batch_size=64", "epochs=2.5", "…"),
        }
        assert len({line.index(" s ") for line in lines}) == 1


def test_why_a_trial_was_proposed_and_ended_is_said_on_request() -> None:
    record = make_record("t0000").model_copy(update={"proposal_reason": LIKELY})
    assert "likely" not in "".join(shown_on_a_terminal(record))
    verbose = "".join(shown_on_a_terminal(record, is_verbose=True))
    assert "gain: 42% likely" in verbose and "ended as reached" in verbose


def test_statuses_are_coloured() -> None:
    view, out = make_view(is_terminal=True)
    view.trial_finished(record=make_record("t0000"))
    view.trial_finished(record=make_record("t0001", Status.FAILED))
    reached, failed = out.getvalue().splitlines()
    assert reached.startswith("\x1b[32mt0000 reached\x1b[0m")
    assert failed.startswith("\x1b[31mt0001 failed\x1b[0m")


def test_picture_of_what_has_ended_and_what_runs(kept_text: Callable[[str, str], None]) -> None:
    def picture() -> str:
        return re.sub(r"\d+ s( ·|$| left)", r"… s\1", as_text(view.picture()), flags=re.MULTILINE)

    view, _ = make_view(is_terminal=True)
    view.trial_finished(record=make_record("t0000", Status.MISSED))
    kept_text(picture(), "missed")
    view.trial_finished(record=make_record("t0001", time_s=1.5))
    view.trial_started(trial_id="t0002", params=PARAMS, recipe={})
    view.trial_started(trial_id="t0003", params=PARAMS, recipe={})
    view.trial_evaluated(trial_id="t0003", evaluation=make_evaluation(step=7, accuracy=0.75))
    kept_text(picture(), "running")


def test_picture_of_very_many_running_trials_names_the_first() -> None:
    view, _ = make_view(is_terminal=True)
    for number in range(MOST_RUNNING + 3):
        start(view, f"t{number:04d}")
    lines = as_text(view.picture()).splitlines()
    assert len(lines) == 2 + MOST_RUNNING + 1 and lines[-1] == "and 3 more"

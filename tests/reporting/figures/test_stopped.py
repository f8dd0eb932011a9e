import pytest
from helpers.reporting.figures import make_part, make_trial, random_part, sketched

from tune_speed.core.records import Status
from tune_speed.reporting.figures.bars import MOST_KINDS, STOPPED, bars
from tune_speed.reporting.study.view import (
    ENDED_BELOW,
    OTHER_STOP,
    REACHED,
    STOP_KINDS,
    stop_kind,
)

STOPS = {
    "stopped at 0.4 s: 2.1% likely to meet the target by 1.1 s": STOP_KINDS["unlikely"],
    "stopped at 1.2 s: leader t0007 met the target in 1.1 s": STOP_KINDS["slower"],
    "max_train_s = 60 s passed with accuracy 0.8": "stopped: the workload's time limit",
    "somebody said so": OTHER_STOP,
}


@pytest.mark.parametrize(("reason", "kind"), STOPS.items())
def test_reasons_to_stop_lose_their_figures(reason: str, kind: str) -> None:
    record = make_trial(status=Status.CAPPED, stop_reason=reason).record
    assert stop_kind(record) == kind
    assert not any(character.isdigit() for character in kind)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (Status.REACHED, "target met: accuracy 0.9 ≥ 0.9", REACHED),
        (Status.MISSED, "the run ended with accuracy 0.5, target 0.9", ENDED_BELOW),
        (Status.FAILED, "RuntimeError: 7 things", "failed: RuntimeError"),
        (Status.FAILED, "torch.cuda.OutOfMemoryError: x", "failed: OutOfMemoryError"),
        (Status.FAILED, "its process died: killed", "failed: its process died"),
        (Status.FAILED, "<script>", "failed"),
        (Status.OOM, "out of memory, down to a micro-batch of 1", "out of memory"),
    ],
)
def test_other_ends_are_told_by_their_status(status: Status, reason: str, kind: str) -> None:
    assert stop_kind(make_trial(status=status, stop_reason=reason).record) == kind


def test_every_trial_and_second_is_in_one_bar() -> None:
    part = random_part(50)
    found = bars(part)
    assert sum(ending.trials for ending in found) == 50
    spent = sum(trial.record.runs[0].clocks.train_s for trial in part.trials)
    assert sum(ending.train_s for ending in found) == pytest.approx(spent)


def test_bars_are_shares_of_trials_and_of_time() -> None:
    part = make_part(
        make_trial("t0", time_s=30.0), *(make_trial(f"m{i}", Status.MISSED) for i in range(3))
    )
    sketch = sketched(STOPPED, part)
    widths = [bar.get_width() for bar in sketch.canvas.panel.patches]
    assert widths == pytest.approx([25.0, 75.0, 100 * 30 / 33, 100 * 3 / 33])
    assert sketch.alt == (
        "4 trials, 33 s of training. met the target: 1 in 30 s; ended below the target: 3 in 3 s."
    )


def test_many_kinds_of_errors_become_one() -> None:
    errors = [
        make_trial(f"t{i}", Status.FAILED, stop_reason=f"{'ABCDEFGHIJKLMNOP'[i]}Error: x")
        for i in range(15)
    ]
    found = bars(make_part(*errors))
    assert len(found) == MOST_KINDS
    assert found[-1].kind == "other ends"
    assert sum(ending.trials for ending in found) == 15

import pytest
from helpers.reporting.pages import ordinary, trained, viewed

from tune_speed.core.records import Status
from tune_speed.core.words import StopReason
from tune_speed.reporting.study.endings import endings_of


def test_reasons_that_differ_in_their_figures_are_one() -> None:
    records = [
        trained(f"t{i:04d}", Status.CAPPED, time_s=1.0 + i).model_copy(deep=True) for i in range(3)
    ]
    reasons = [
        "stopped at 0.5 s: 3% likely to meet the target",
        "stopped at 0.7 s: 12% likely to meet it",
    ]
    records = [
        r.model_copy(
            update={
                "runs": (
                    r.runs[0].model_copy(update={"stop_reason": StopReason.model_validate(reason)}),
                )
            }
        )
        for r, reason in zip(records, [*reasons, reasons[0]], strict=True)
    ]
    (ending,) = endings_of(viewed(records).parts[0])
    assert len(ending.trials) == 3
    assert ending.example == reasons[0]
    assert (ending.train_s, ending.share) == (6.0, 1.0)


def test_what_took_most_training_stands_first() -> None:
    endings = [e for e in endings_of(viewed(ordinary()).parts[0]) if e.status != "reached"]
    assert [ending.status for ending in endings] == ["missed", "capped", "failed"]
    # 15 of 3.5 + 15 + 0.25 + 0.1 seconds.
    assert endings[0].share == pytest.approx(15 / 18.85)

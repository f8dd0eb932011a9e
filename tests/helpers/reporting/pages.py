"""Studies for tests of pages, made of records."""

import random
from collections.abc import Sequence
from typing import Any

from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.page.site import study_page
from tune_speed.reporting.study.view import OpenTrial, StudyView, ViewedTrial
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.tracking.reader.changes import SearchRun

RECIPE = {
    "model": {"resnet20": {}},
    "optimizer": {"sgd": {"lr": 0.3}},
    "epochs": 2.5,
    "batch_size": 64,
    "accumulation_steps": 2,
}
ENDS = (
    *((Status.REACHED, 0.5 + 0.1 * i) for i in range(5)),
    *((Status.MISSED, 2.0 + 0.5 * i) for i in range(5)),
    (Status.CAPPED, 0.25),
    (Status.FAILED, 0.1),
)
"""How the trials of an ordinary study end, with the seconds that each trains."""


def trained(
    trial_id: str, status: Status = Status.REACHED, *, time_s: float = 1.0, **changes: Any
) -> TrialRecord:
    """Returns a record whose recipe can be written as YAML, with a curve and two parameters."""
    accuracy = 0.95 if status is Status.REACHED else 0.8 + time_s / 100
    run = make_run(status, time_s=time_s, accuracy=accuracy).model_copy(
        update={
            "evaluations": (
                make_evaluation(step=5, train_s=time_s / 2, accuracy=0.5),
                make_evaluation(step=10, train_s=time_s, accuracy=accuracy),
            )
        }
    )
    params = {"optimizer.sgd.lr": 0.1 * time_s, "batch_size": 64}
    record = make_record(trial_id, status, runs=(run,), params=params)
    return TrialRecord.model_validate({**dict(record), "recipe": RECIPE, **changes})


def ordinary(**changes: Any) -> list[TrialRecord]:
    """Returns the trials of a study in which some met the target."""
    return [
        trained(
            f"t{i:04d}",
            status,
            time_s=time_s,
            started_at=f"2026-01-01T00:00:{4 * i:02d}.000+00:00",
            finished_at=f"2026-01-01T00:00:{4 * i + 3:02d}.000+00:00",
            **changes,
        )
        for i, (status, time_s) in enumerate(ENDS)
    ]


def certified(trial_id: str, *times_s: float, misses: int = 0, **changes: Any) -> TrialRecord:
    """Returns a certified record with a run for each time, and some misses."""
    runs = [make_run(time_s=time_s, seed=seed) for seed, time_s in enumerate(times_s)]
    runs += [make_run(Status.MISSED, time_s=3.0, accuracy=0.7, seed=99)] * misses
    changes = {"kind": "certified", "evaluated_on": "test", "runs": tuple(runs), **changes}
    return trained(trial_id, **changes)


def viewed(records: Sequence[TrialRecord], **changes: Any) -> StudyView:
    """Returns the study of `records` as it is looked at."""
    trials = [
        ViewedTrial(record=record, run_id=f"{i:032x}", url=None, has_curve=True)
        for i, record in enumerate(records)
    ]
    facts: dict[str, Any] = {
        "study": records[0].study if records else "study",
        "uri": "sqlite:///mlflow.db",
        "url": None,
        "ui_command": "mlflow ui --backend-store-uri sqlite:///mlflow.db",
        "read_at": "2026-01-01T00:01:00+00:00",
        "searches": (searched(),),
        "trials": tuple(t for t in trials if t.record.kind == "estimate"),
        "certified": tuple(t for t in trials if t.record.kind == "certified"),
        "running": (),
        "interrupted": 0,
        "boards": tuple(make_boards([(t.run_id, t.record) for t in trials], with_misses=True)),
    }
    return StudyView(**{**facts, **changes})


def searched(*, is_running: bool = False) -> SearchRun:
    moments = {"started_at": "2026-01-01T00:00:00+00:00", "updated_at": "2026-01-01T00:00:59+00:00"}
    tags = {"policy": "time_to_target", "sampler": "gain"}
    return SearchRun(run_id="a" * 32, is_running=is_running, tags=tags, **moments)


def running(trial_id: str) -> OpenTrial:
    return OpenTrial(
        trial_id=trial_id,
        run_id="b" * 32,
        started_at="2026-01-01T00:00:50+00:00",
        params={"optimizer.sgd.lr": "0.1"},
        metrics={"accuracy": 0.4321, "train_s": 1.5},
    )


def page_of(records: Sequence[TrialRecord], **changes: Any) -> str:
    """Returns the page of a study of `records`."""
    return study_page(
        viewed(records, **changes), recipe_yaml=lambda t: recipe_yaml(t.record, run_id=t.run_id)
    )


def varied(count: int = 40, *, study: str = "study") -> list[TrialRecord]:
    """Returns trials of a search over an optimizer and numbers, in which a third meet the target.

    Each ran as it was proposed; some parameters play a part with one optimizer only.
    """
    draws = random.Random(0)
    records = []
    for number in range(count):
        name = ("sgd", "adamw")[number % 2]
        rates = {"lr": 10 ** draws.uniform(-4, 0), "weight_decay": 10 ** draws.uniform(-5, -2)}
        plain = {"epochs": draws.uniform(1, 30), "batch_size": draws.choice([32, 64, 128])}
        own = {f"optimizer.{name}.{key}": value for key, value in rates.items()}
        status = (Status.REACHED, Status.MISSED, Status.CAPPED)[number % 3]
        records.append(
            trained(
                f"t{number:04d}",
                status,
                time_s=draws.uniform(1, 30),
                study=study,
                params={"optimizer": name, **own, **plain},
                recipe={**RECIPE, **plain, "optimizer": {name: rates}, "clip_norm": None},
                started_at=f"2026-01-01T00:{number:02d}:00.000+00:00",
                finished_at=f"2026-01-01T00:{number:02d}:50.000+00:00",
            )
        )
    return records

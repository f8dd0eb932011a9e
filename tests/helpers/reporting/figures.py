"""Parts of studies to draw."""

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.words import StopReason
from tune_speed.reporting.figures import Drawn, draw_svg
from tune_speed.reporting.figures.canvas import LIGHT, FigureKind, Sketch
from tune_speed.reporting.study.view import StudyPart, ViewedTrial, part_key

START = datetime(2026, 1, 1, tzinfo=UTC)
TARGET = 0.9


def make_trial(
    trial_id: str = "t0000",
    status: Status = Status.REACHED,
    *,
    time_s: float = 1.0,
    accuracy: float = 0.95,
    curve: Sequence[float] = (),
    params: Mapping[str, Any] | None = None,
    started_s: float = 0.0,
    took_s: float = 1.0,
    runs: Sequence[RunResult] = (),
    **run: Any,
) -> ViewedTrial:
    """Returns a trial; `curve` are its accuracies at even times, `run` fields of its run."""
    if "stop_reason" in run:
        run["stop_reason"] = StopReason.model_validate(run["stop_reason"])
    own = make_run(status, time_s=time_s, accuracy=accuracy).model_copy(update=run)
    if curve:
        steps = enumerate(curve)
        evaluations = tuple(
            make_evaluation(step=i, train_s=time_s * i / (len(curve) - 1), accuracy=a)
            for i, a in steps
        )
        own = own.model_copy(update={"evaluations": evaluations})
    record = make_record(trial_id, status, params=dict(params or {}), runs=tuple(runs) or (own,))
    started = START + timedelta(seconds=started_s)
    times = {
        "started_at": started.isoformat(),
        "finished_at": (started + timedelta(seconds=took_s)).isoformat(),
    }
    return viewed(record.model_copy(update=times), has_curve=bool(curve))


def viewed(record: TrialRecord, *, has_curve: bool = False) -> ViewedTrial:
    run_id = f"run-{record.kind}-{record.trial_id}"
    return ViewedTrial(record=record, run_id=run_id, url=None, has_curve=has_curve)


def make_part(
    *trials: ViewedTrial,
    certified: Sequence[ViewedTrial] = (),
    target: float = TARGET,
    **more: Any,
) -> StudyPart:
    """Returns a part; `more` are fields of the target."""
    workload = {
        "dataset": {"name": "digits"},
        "target": {"metric": "accuracy", "value": target, **more},
        "mode": "fixed_length",
    }
    estimates, others = (
        tuple(
            viewed(t.record.model_copy(update={"workload": workload}), has_curve=t.has_curve)
            for t in group
        )
        for group in (trials, certified)
    )
    key = part_key((estimates or others)[0].record) if trials or certified else None
    assert key is not None or not (estimates or others)
    return StudyPart(key=key, trials=estimates, certified=others)  # type: ignore[arg-type]


def random_part(count: int, *, seed: int = 0, name: str = "t{:04}") -> StudyPart:
    """Returns a part in which a third of the trials meet the target, and some lack a parameter."""
    draws = random.Random(seed)
    trials = []
    for number in range(count):
        status = draws.choice([Status.REACHED, Status.MISSED, Status.CAPPED])
        hit = status is Status.REACHED
        accuracy = draws.uniform(0.9, 0.99) if hit else draws.uniform(0.3, 0.899)
        optimizer = draws.choice(["sgd", "adamw"])
        params = {
            "optimizer": optimizer,
            f"optimizer.{optimizer}.lr": 10 ** draws.uniform(-4, 0),
            "epochs": draws.uniform(1, 30),
            "batch_size": draws.choice([32, 64, 128]),
        }
        trial = make_trial(
            name.format(number),
            status,
            time_s=draws.uniform(1, 30),
            curve=(0.1, 0.7 * accuracy, accuracy),
            params=params,
            started_s=2.0 * number,
            took_s=5.0,
            batch_size=params["batch_size"],
            step_time_ms=params["batch_size"] * draws.uniform(0.9, 1.1),
        )
        trials.append(trial)
    return make_part(*trials)


def certified_trial(trial_id: str, times_s: Sequence[float | None]) -> ViewedTrial:
    """Returns a certified trial with a run a time; None: it missed."""
    runs = tuple(
        make_run(Status.MISSED if t is None else Status.REACHED, time_s=t or 9.0, seed=seed)
        for seed, t in enumerate(times_s)
    )
    return viewed(make_record(trial_id, runs=runs, kind="certified"))


def line(sketch: Sketch, gid: str, *, panel: int = 0) -> list[tuple[float, float]]:
    lines = sketch.canvas.panels[panel].get_lines()
    x, y = next(each for each in lines if each.get_gid() == gid).get_data()
    return list(zip(map(float, x), map(float, y), strict=True))


def points(sketch: Sketch, *, panel: int = 0) -> dict[str, tuple[float, float]]:
    """Returns where each trial's point stands; a trial has one a panel."""
    found = {}
    for drawn in sketch.canvas.panels[panel].collections:
        for url, (x, y) in zip(drawn.get_urls(), drawn.get_offsets(), strict=False):
            if url:
                mark = sketch.canvas.marks[int(url.removeprefix("mark:"))]
                found[mark.trial_id] = (float(x), float(y))
    return found


def sketched(kind: FigureKind, part: StudyPart) -> Sketch:
    sketch = kind.draw(part, LIGHT)
    assert sketch is not None
    return sketch


def svg(name: str, part: StudyPart) -> Drawn:
    drawn = draw_svg(name, part, id_prefix="a")
    assert drawn is not None
    return drawn

"""A store filled with synthetic trials, each as `Tracker` would have left it, but in bulk.

Experiments and the searches' own runs are made by the tracker's own code. The trials' rows
(parameters, metrics with their curves, tags with the record) are what `tracking.schema` gives for
their records, put into MLflow's tables; files are left out. A test compares such runs with those
that `Tracker` wrote. Half of the trials meet the target; of a study's trials the last three are
certified results of five runs.
"""

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from tune_speed.core.records import (
    Clocks,
    Evaluation,
    RunResult,
    Status,
    StepTime,
    Timing,
    TrialRecord,
)
from tune_speed.tracking import Store, schema
from tune_speed.tracking.search_summary import Summary
from tune_speed.tracking.writer import descriptions
from tune_speed.tracking.writer.runs import StudyRuns

TRIALS_PER_STUDY = 500
CERTIFIED_PER_STUDY = 3
BATCH = 250
WORKLOADS = ("digits", "cifar10_94")
DEVICES = ("cpu (1 threads, Intel(R) Xeon(R) Processor)", "NVIDIA H200")
START = datetime(2026, 1, 1, tzinfo=UTC)
LARGE_INDEXES = """
SELECT name, sql FROM sqlite_master
WHERE type = 'index' AND tbl_name IN ('metrics', 'params') AND sql IS NOT NULL
"""
STUDY_TAGS = {"policy": "time_to_target", "sampler": "gain", "protocol_version": "2"}


def fill(uri: str, *, num_trials: int, trials_per_study: int = TRIALS_PER_STUDY) -> float:
    """Puts `num_trials` trials into the store at `uri`; returns how long that took [s]."""
    began = time.monotonic()
    store = Store(uri)
    with in_a_hurry(store.create()._tracking_client.store.engine):
        for number, first in enumerate(range(0, num_trials, trials_per_study)):
            count = min(trials_per_study, num_trials - first)
            add_study(store, list(records(f"study-{number:04d}", count, seed=number)))
    return time.monotonic() - began


@contextmanager
def in_a_hurry(engine: Any) -> Iterator[None]:
    """Fills an SQLite file without waiting for the disk; the large indexes are made at the end."""
    if engine.dialect.name != "sqlite":
        yield
        return
    from sqlalchemy import event, text

    event.listen(engine, "connect", _do_not_wait)
    engine.dispose()  # What was connected before does wait.
    with engine.begin() as connection:
        indexes = connection.execute(text(LARGE_INDEXES)).all()
        for name, _ in indexes:
            connection.execute(text(f"DROP INDEX {name}"))
    yield
    with engine.begin() as connection:
        for _, definition in indexes:
            connection.execute(text(definition))
    event.remove(engine, "connect", _do_not_wait)
    engine.dispose()


def _do_not_wait(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -1000000")


def add_study(store: Store, made: list[TrialRecord]) -> StudyRuns:
    study = made[0].study
    tags = {**STUDY_TAGS, "workload": made[0].workload_name}
    runs = StudyRuns.open(store, study=study, search_id=f"search-{study}", tags=tags)
    summary = Summary()
    for record in made:
        summary.add(record)
    add_trials(store.client, runs, made, study_tags=tags)
    points, own = summary.points(), summary.tags(now=START, run_ids={})
    runs.write(runs.parent, points=points, tags=own)
    runs.end(runs.parent, "FINISHED")
    return runs


def add_trials(
    client: Any, runs: StudyRuns, made: list[TrialRecord], *, study_tags: dict[str, str]
) -> None:
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import insert

    shared = {**schema.study_tag_entries(made[0].study, study_tags), **schema.user_tags()}
    location = client.get_experiment(runs.experiment_id).artifact_location
    # MLflow's client shows no engine; the store behind it has one.
    engine = client._tracking_client.store.engine
    for first in range(0, len(made), BATCH):
        rows: dict[Any, list[dict[str, Any]]] = {
            table: []
            for table in (
                models.SqlRun,
                models.SqlParam,
                models.SqlMetric,
                models.SqlLatestMetric,
                models.SqlTag,
            )
        }
        for record in made[first : first + BATCH]:
            tags = {**shared, schema.PARENT: runs.parent.run_id}
            for table, new in zip(
                rows, _rows_of(record, runs.experiment_id, location, tags), strict=True
            ):
                rows[table] += new
        with engine.begin() as connection:
            for table, new in rows.items():
                connection.execute(insert(table.__table__), new)


def records(
    study: str, count: int, *, seed: int, certified: int = CERTIFIED_PER_STUDY
) -> Iterator[TrialRecord]:
    chance = random.Random(seed)
    device = DEVICES[seed % 2]
    workload = WORKLOADS[seed // 2 % 2]
    for number in range(count):
        is_certified = number >= count - certified
        seeds = 5 if is_certified else 1
        yield _record(study, number, workload, device, chance, num_seeds=seeds)


def _record(
    study: str, number: int, workload: str, device: str, chance: random.Random, *, num_seeds: int
) -> TrialRecord:
    params = {
        "optimizer": "sgd",
        "optimizer.sgd.lr": 10 ** chance.uniform(-2, 0),
        "optimizer.sgd.weight_decay": 10 ** chance.uniform(-5, -2),
        "lr_schedule.one_cycle.pct_start": chance.uniform(0.1, 0.5),
        "epochs": chance.randint(2, 6),
        "batch_size": chance.choice([32, 64, 128, 256]),
    }
    trial_id = f"t{number:04d}"
    luck = chance.random()
    rare = {0: Status.OOM, 1: Status.DIVERGED, 2: Status.FAILED, 3: Status.CAPPED}
    status = Status.REACHED if luck < 0.5 else rare.get(int((luck - 0.5) * 40), Status.MISSED)
    runs = tuple(
        _run(status, seed=number + 2**31 * i, params=params, device=device, chance=chance)
        for i in range(num_seeds)
    )
    start = START + timedelta(seconds=2 * number)
    wall_s = sum(run.clocks.wall_s for run in runs)
    return TrialRecord(
        study=study,
        trial_id=trial_id,
        params=params,
        proposal_reason="gain: 13% likely to meet the target at a cost of 1.0 s, leader 1.2 s",
        recipe=_recipe(params),
        workload=_workload(workload),
        workload_name=workload,
        workload_hash=f"{WORKLOADS.index(workload):016x}",
        space_hash="28fdc25554829dbe",
        evaluated_on="validation" if num_seeds == 1 else "test",
        status=status,
        runs=runs,
        kind="estimate" if num_seeds == 1 else "certified",
        device=device,
        max_cotenants=0 if num_seeds > 1 else 1,
        environment=ENVIRONMENT,
        started_at=start.isoformat(timespec="milliseconds"),
        finished_at=(start + timedelta(seconds=wall_s)).isoformat(timespec="milliseconds"),
    )


def _run(
    status: Status, *, seed: int, params: dict[str, Any], device: str, chance: random.Random
) -> RunResult:
    steps = 5 * int(params["epochs"])
    step_s = 0.0002 * params["batch_size"] * chance.uniform(0.9, 1.1)
    train_s = steps * step_s
    accuracy = chance.uniform(0.97, 0.99) if status is Status.REACHED else chance.uniform(0.5, 0.97)
    return RunResult(
        status=status,
        seed=seed,
        stop_reason=f"the run ended with accuracy {accuracy:.4f}, target 0.97",
        time_to_target_s=train_s if status is Status.REACHED else None,
        evaluations=tuple(_evaluation(i, steps, train_s, accuracy) for i in range(1, 6)),
        clocks=Clocks(
            setup_s=0.0139,
            compile_s=chance.uniform(0.05, 0.1),
            train_s=train_s,
            eval_s=0.1,
            wall_s=1.2 * train_s + 0.2,
            waiting_s=6.3e-05,
        ),
        steps=steps,
        samples=steps * params["batch_size"],
        images_per_s=params["batch_size"] / step_s,
        step_time_ms=1000 * step_s,
        timing=Timing.ISOLATED,
        step_times=(
            StepTime(
                key="23900a30425bdbe9",
                step_s=step_s,
                low_s=0.99 * step_s,
                high_s=1.01 * step_s,
                num_steps=21,
                measured_in="luck/t0000",
            ),
        ),
        shared_train_s=1.2 * train_s,
        slowdown=1.2,
        cotenants=("luck/t0032", "luck/t0034"),
        cpu_wait_s=0.2,
        peak_memory_gib=chance.uniform(0.5, 1.0),
        memory_limit_gib=11.770288467407227,
        batch_size=params["batch_size"],
        accumulation_steps=1,
        device=device,
        traceback="Traceback: it broke" if status is Status.FAILED else None,
    )


def _evaluation(number: int, steps: int, train_s: float, accuracy: float) -> Evaluation:
    """Returns the evaluation after `number` fifths of a run."""
    part = number / 5
    return Evaluation(
        step=round(part * steps),
        samples=round(part * steps) * 64,
        epoch=round(part * steps) / 5,
        train_s=part * train_s,
        accuracy=accuracy * part**0.1,
        macro_f1=0.99 * accuracy * part**0.1,
        micro_f1=accuracy * part**0.1,
        loss=0.3 / part,
        train_loss=0.25 / part,
    )


def _recipe(params: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"resnet20": {"stem": "cifar", "dropout": 0.0}},
        "optimizer": {
            "sgd": {
                "lr": params["optimizer.sgd.lr"],
                "lr_per_examples": None,
                "weight_decay": params["optimizer.sgd.weight_decay"],
                "decay_norms_and_biases": False,
                "momentum": 0.9,
                "nesterov": True,
                "decoupled_weight_decay": False,
            }
        },
        "lr_schedule": {
            "one_cycle": {
                "pct_start": params["lr_schedule.one_cycle.pct_start"],
                "div_factor": 5.737911422980784,
                "final_div_factor": 486.888300553127,
                "anneal": "cos",
                "cycle_momentum": True,
                "base_momentum": 0.85,
                "max_momentum": 0.95,
            }
        },
        "epochs": float(params["epochs"]),
        "batch_size": params["batch_size"],
        "accumulation_steps": 1,
        "effective_batch_size": None,
        "precision": "fp32",
        "augmentation": {"pad": 0, "flip": "none", "cutout": 0},
        "label_smoothing": 0.0,
        "clip_norm": None,
        "loader": {"resident": {}},
        "channels_last": True,
        "compile": False,
        "deterministic": True,
    }


def _workload(name: str) -> dict[str, Any]:
    return {
        "dataset": {"name": name, "scale": 1},
        "target": {"metric": "accuracy", "value": 0.97},
        "mode": "fixed_length",
        "max_train_s": 60.0,
        "split": {"validation_frac": 0.2, "test_frac": 0.2, "seed": 0},
        "eval_every_samples": None,
        "eval_batch_size": 1000,
    }


def _rows_of(
    record: TrialRecord, experiment_id: str, location: str, tags: dict[str, str]
) -> tuple[list[dict[str, Any]], ...]:
    """Returns a trial's rows in the tables of runs, parameters, metrics, last metrics and tags."""
    run_id, name = uuid.uuid4().hex, record.trial_id
    start_ms = schema.time_ms(record.started_at)
    assert start_ms is not None
    params = schema.param_entries(record.recipe, record.params)
    params |= schema.ran_entries(record.recipe, params)
    points = list(dict.fromkeys(schema.record_points(record, start_ms=start_ms)))
    last: dict[str, schema.Point] = {}
    for point in points:
        last[point.key] = max(last.get(point.key, point), point, key=_lateness)
    started = schema.start_tags(name, kind=record.kind) | schema.searched_tag(tuple(record.params))
    note = {descriptions.NOTE: descriptions.trial_note(record, run_id=run_id)}
    all_tags = {"mlflow.runName": name, **tags, **started, **schema.record_tags(record), **note}
    run = {
        "run_uuid": run_id,
        "name": name,
        "source_type": "UNKNOWN",
        "source_name": "",
        "entry_point_name": "",
        "user_id": tags["mlflow.user"],
        "status": "FAILED" if record.status is Status.FAILED else "FINISHED",
        "start_time": start_ms,
        "end_time": start_ms + 2000,
        "source_version": "",
        "lifecycle_stage": "active",
        "artifact_uri": f"{location}/{run_id}/artifacts",
        "experiment_id": int(experiment_id),
    }
    return (
        [run],
        [{"key": k, "value": v, "run_uuid": run_id} for k, v in params.items()],
        [_metric(point, run_id) for point in points],
        [_metric(point, run_id) for point in last.values()],
        [{"key": k, "value": v, "run_uuid": run_id} for k, v in all_tags.items()],
    )


def _lateness(point: schema.Point) -> tuple[int, int, float]:
    return point.step, point.timestamp_ms, point.value


def _metric(point: schema.Point, run_id: str) -> dict[str, Any]:
    return {
        "key": point.key,
        "value": point.value,
        "timestamp": point.timestamp_ms,
        "step": point.step,
        "is_nan": False,
        "run_uuid": run_id,
    }


ENVIRONMENT = {
    "tune_speed": "0.1.0",
    "python": "3.11.7",
    "platform": "Linux-6.18-x86_64-with-glibc2.36",
    "host": "node17",
    "commit": "c481fa7d29f8dabd7dc8c088b3da06734f11ca82-dirty",
    "torch": "2.15.0",
    "torchvision": "0.29.2",
    "timm": "1.0.31",
    "numpy": "2.4.6",
    "ray": "2.60.0",
    "optuna": "5.0.0",
    "mlflow": "3.17.2",
}

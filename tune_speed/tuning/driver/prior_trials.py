"""What a policy learns from trials that it did not run in this session, from their records.

A finished trial of another study counts as this study would have judged it: its curve of the target
metric carries over, and how it ended is judged again by this study's workload. Times and memory
carry over from the same device, torch and protocol only; failures, other data, other evaluation
grids and other recipes than this space's do not at all.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from tune_speed.components.plugins import registry
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import PROTOCOL_VERSION, RunResult, Status, TrialRecord
from tune_speed.core.targets import Task
from tune_speed.core.words import StopKind
from tune_speed.study.parameter import is_number
from tune_speed.study.space import SearchSpace
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload
from tune_speed.tuning.policy.base import Outcome, PriorTrial
from tune_speed.tuning.policy.curve import Curve

NO_CURVE = "a curve that is gone from MLflow"


class Machine(NamedTuple):
    """Where trials run, as records name it."""

    device: str
    torch: str


class CarriedOver(NamedTuple):
    """What this study can learn from another one's trials."""

    trials: tuple[PriorTrial, ...]
    left_out: Mapping[str, int]
    """Number of trials by the reason for which they do not carry over."""


def outcome_of(record: TrialRecord, workload: Task, *, num_train: int | None) -> Outcome:
    run = record.runs[-1]
    outcome = Outcome(
        status=record.status,
        train_s=run.time_to_target_s or run.clocks.train_s,
        curve=curve_of(record, workload),
        memory_ratio=_memory_ratio(run),
        planned_s=None if num_train is None else _planned_s(record, num_train=num_train),
    )
    if run.stop_reason.kind is not StopKind.BY_HAND:
        return outcome
    # Stopped before it was evaluated, it says nothing.
    status = record.status if len(outcome.curve.metric) else Status.FAILED
    return outcome._replace(status=status, by_hand=True)


def curve_of(record: TrialRecord, workload: Task) -> Curve:
    """Returns the metric over the clock without the untrained model; NaN where the run diverged."""
    evaluations = [e for e in record.runs[-1].evaluations if e.step > 0]
    metric = np.array([workload.score_of(e) for e in evaluations], dtype=float)
    if record.status == Status.DIVERGED and len(metric):
        metric[-1] = math.nan
    return Curve(np.array([e.train_s for e in evaluations], dtype=float), metric)


def _planned_s(record: TrialRecord, *, num_train: int) -> float | None:
    """Returns where the clock would have stood at the end of the recipe [s], at the run's pace."""
    run = record.runs[-1]
    if not run.steps and not run.step_times:
        return None
    steps = Recipe.model_validate(record.recipe).steps(num_train=num_train)
    # Without a step it was ended for what all of them would take.
    step_s = (run.step_time_ms or 0.0) / 1000
    return run.clocks.train_s * steps / run.steps if run.steps else run.init_s + steps * step_s


def _memory_ratio(run: RunResult) -> float | None:
    if run.peak_memory_gib is None or not run.memory_limit_gib:
        return None
    return run.peak_memory_gib / run.memory_limit_gib


def carry_over(
    found: Sequence[TrackedTrial],
    *,
    read_curves: Callable[[Sequence[TrackedTrial]], Iterable[TrackedTrial]],
    space: SearchSpace,
    workload: Workload,
    data_hash: str,
    machine: Machine,
) -> CarriedOver:
    """Returns what a study, whose space, workload, data and machine these are, can learn.

    Curves are read of trials that carry over only: each may be a request.
    """
    reasons = [_unusable(each.record, space, workload, data_hash, machine) for each in found]
    usable = [each for each, reason in zip(found, reasons, strict=True) if reason is None]
    whole = [each.record for each in read_curves(usable) if each.has_curve]
    left_out = Counter(filter(None, reasons + [NO_CURVE] * (len(usable) - len(whole))))
    num_train = workload.sizes().train
    trials = (_judged(each, space, workload, machine, num_train=num_train) for each in whole)
    return CarriedOver(tuple(trials), left_out)


def related_trials(
    records: Iterable[TrialRecord], *, name: str, space: SearchSpace, workload: Workload
) -> CarriedOver:
    """Returns those of the study `name`, of the same network or data, as trials of another task.

    What this space searches is read off their recipes; what is outside of a range lies at its end.
    """
    trials: list[PriorTrial] = []
    left_out: Counter[str] = Counter()
    dataset = workload.model_dump(mode="json")["dataset"]
    for record in records:
        params = None if record.status == Status.FAILED else params_in(record.recipe, space)
        try:
            ours = Recipe.model_validate(space.build(params or {}))
            theirs = Recipe.model_validate(record.recipe)
            outcome = outcome_of(record, workload, num_train=None)
        except (ConfigError, ValidationError, ValueError):
            left_out["parameters that do not fit this space"] += 1
            continue
        same_data = record.workload.get("dataset") == dataset
        if not (same_data or _network_of(ours) == _network_of(theirs)):
            left_out["another network and other data"] += 1
            continue
        trials.append(PriorTrial(params or {}, outcome, False, name))
    return CarriedOver(tuple(trials), dict(left_out))


def _network_of(recipe: Recipe) -> tuple[type, str]:
    return type(recipe.model), getattr(recipe.model, "name", "")


def params_in(recipe: Mapping[str, Any], space: SearchSpace) -> dict[str, Any] | None:
    """Returns what `space` searches as a recipe has it; None where a value is no choice here."""
    params: dict[str, Any] = {}
    for parameter in space.parameters:
        if not parameter.is_active(params):
            continue
        value: Any = recipe
        for key in parameter.name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):  # A component, whose name was chosen.
            value = next(iter(value), None)
        if parameter.low is not None and parameter.high is not None and is_number(value):
            value = min(max(value, parameter.low), parameter.high)
        try:
            params[parameter.name] = parameter.read(value)
        except ValueError:
            return None
    return params


def _has_same_times(record: TrialRecord, machine: Machine) -> bool:
    theirs = Machine(str(record.device), record.environment.get("torch", ""))
    return theirs == machine and record.protocol_version == PROTOCOL_VERSION


def _unusable(
    record: TrialRecord, space: SearchSpace, workload: Workload, data_hash: str, machine: Machine
) -> str | None:
    if record.status == Status.FAILED:
        return "an error, which says nothing of a recipe"
    if not record.plugins.items() <= registry.hashes().items():
        return "plugins that are not loaded, or have changed"
    if record.status == Status.OOM and not _has_same_times(record, machine):
        return "no memory left, on another device"
    if not _same_task(record, workload, data_hash):
        return "other data, split or evaluation grid"
    try:
        ours = Recipe.model_validate(space.build(record.params)).located()
        theirs = Recipe.model_validate(record.recipe)
    except (ConfigError, ValidationError):
        return "parameters that do not fit this space"
    task = _task_of(theirs)
    if _settled_as(_task_of(ours), task) != task:
        return "a recipe whose fixed fields differ"
    return None


def _same_task(record: TrialRecord, workload: Workload, data_hash: str) -> bool:
    try:
        theirs = Workload.model_validate(record.workload)
    except (ConfigError, ValidationError):
        return False
    same_split = theirs.split == workload.split
    same_grid = same_split and theirs.eval_every_samples == workload.eval_every_samples
    # A record has no hash of the data alone, but one over workload and data: with our data in place
    # of its own, the same must come out.
    return same_grid and theirs.identity(data_hash=data_hash) == record.workload_hash


def _task_of(recipe: Recipe) -> dict[str, Any]:
    left_out = {"batch_size", "accumulation_steps", "deterministic"}
    fields = recipe.model_dump(mode="json", exclude=left_out)
    return {**fields, "effective_batch_size": recipe.samples_per_step}


def _settled_as(ours: Any, theirs: Any) -> Any:
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return theirs if ours == "auto" else ours
    return {name: _settled_as(value, theirs.get(name)) for name, value in ours.items()}


def _judged(
    record: TrialRecord, space: SearchSpace, workload: Workload, machine: Machine, *, num_train: int
) -> PriorTrial:
    run, recipe = record.runs[-1], Recipe.model_validate(record.recipe)
    same_times = _has_same_times(record, machine)
    at_end = run.steps == recipe.steps(num_train=num_train)
    time_s = workload.time_to_target(run.evaluations, num_train=num_train, at_end=at_end)
    status = record.status
    if status not in (Status.OOM, Status.DIVERGED):
        # Another device's clock does not say whether this study's time limit would have ended it.
        in_time = not same_times or run.clocks.train_s <= workload.max_train_s
        ended = Status.MISSED if at_end and in_time else Status.CAPPED
        status = Status.REACHED if time_s is not None and in_time else ended
    train_s = time_s if status == Status.REACHED and time_s is not None else run.clocks.train_s
    outcome = Outcome(
        status=status,
        train_s=train_s,
        curve=curve_of(record, workload),
        memory_ratio=_memory_ratio(run) if same_times else None,
        planned_s=_planned_s(record, num_train=num_train),
    )
    return PriorTrial(space.read(record.params), outcome, same_times)


def prior_to_json(trial: PriorTrial) -> dict[str, Any]:
    """Returns a trial as the ledger has it; a metric that is no number is null."""
    outcome = trial.outcome
    metric = [None if math.isnan(value) else value for value in outcome.curve.metric.tolist()]
    return {
        "params": trial.params,
        **outcome._asdict(),
        "status": outcome.status.value,
        "curve": {"train_s": outcome.curve.train_s.tolist(), "metric": metric},
        "same_times": trial.same_times,
        **({"task": trial.task} if trial.task else {}),
    }


def prior_from_json(fields: Mapping[str, Any]) -> PriorTrial:
    """Returns the trial of `prior_to_json`. Raises: ValueError, KeyError or TypeError."""
    curve = fields["curve"]
    metric = [math.nan if value is None else value for value in curve["metric"]]
    outcome = Outcome(
        Status(fields["status"]),
        float(fields["train_s"]),
        Curve(np.array(curve["train_s"], dtype=float), np.array(metric, dtype=float)),
        fields["memory_ratio"],
        fields["planned_s"],
    )
    clock_s = np.array([outcome.train_s, *outcome.curve.train_s])
    if len(metric) + 1 != len(clock_s) or not ((clock_s >= 0) & (clock_s < math.inf)).all():
        raise ValueError("a trial must have a time of 0 or more for each metric")
    same_times, task = bool(fields["same_times"]), str(fields.get("task", ""))
    return PriorTrial(dict(fields["params"]), outcome, same_times, task)

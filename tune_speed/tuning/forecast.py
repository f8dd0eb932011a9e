"""Which target is realistic: what the rest of a study's search is likely to bring."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.targets import Target
from tune_speed.core.text import moment_s
from tune_speed.custom.spec import OwnTask, task_of
from tune_speed.reporting.study.reader import StudyReader
from tune_speed.reporting.watch.status import StudyStatus, glance
from tune_speed.study.settings import parse_duration_s
from tune_speed.study.space import SearchSpace
from tune_speed.training.workload import Workload
from tune_speed.tuning.driver.cost_model import CostModel
from tune_speed.tuning.driver.prior_trials import of_another_target
from tune_speed.tuning.policy.base import Outcome, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.curve_table import distance, metric_of
from tune_speed.tuning.policy.forecast import LEAST_WHOLE, Paths, Range, range_of
from tune_speed.tuning.policy.history import WHOLE
from tune_speed.tuning.policy.time_to_target import TimeToTarget
from tune_speed.tuning.simulation.benchmarks import space_of
from tune_speed.tuning.simulation.study_table import derived_tree

SHARES = (0.25, 0.5, 1.0, 2.0)
"""Of the budget left, for which there is a forecast."""


class ByThen(NamedTuple):
    """What is likely after a share of the budget left."""

    share: float
    after_s: float
    """Seconds of searching from now on."""
    trials: float
    """Trials that end by then, on average."""
    chance: float
    """Probability that a trial has met the target."""
    best: Range
    """Best end of a trial in the target's metric; `high` is the better end."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What the rest of a search is likely to bring."""

    study: str
    target: Target
    met_by: str | None
    """The first trial that met the target; None: none did."""
    trials: int
    """Finished ones, from which this follows."""
    best: float
    """Best end of a trial so far."""
    rows: tuple[ByThen, ...]
    """After a quarter, half and all of the budget left, and after twice as much."""
    first_hit_s: Range
    """Seconds of searching until a trial meets the target; infinite: not within the budget."""

    @property
    def chance(self) -> float:
        """Probability that the target is met within the budget."""
        return next(row.chance for row in self.rows if row.share == 1.0)


def forecast(
    uri: str, study: str, *, target: float | None = None, time_budget: str | float | None = None
) -> Forecast:
    """Returns what the search of a study in MLflow is likely to bring.

    `target`: another value than the study's. The budget left is that of the search, or
    `time_budget` from now on; where nothing is left, as much as was used.

    Raises: ConfigError if too few trials have finished, or an argument makes no sense; ServiceError
        or StorageError if the store does not answer.
    """
    reader = StudyReader(uri, study)
    view = reader.read(with_boards=False)
    records = [reader.with_curve(trial.run_id) for trial in view.trials]
    if not records:
        raise ConfigError(f"a forecast needs finished trials, but {study} has none yet.")
    last, seen = records[-1], glance(view)
    records = [r for r in records if (r.device, r.space_hash) == (last.device, last.space_hash)]
    task = task_of(last)
    try:
        task = task.at(task.target.value if target is None else target)
        left_runs, left_s = _left(seen, time_budget)
    except ValueError as error:
        said = f"target {target:g}" if target is not None else f"time budget {time_budget}"
        # The first line of pydantic's says only how many mistakes there are.
        why = str(error).splitlines()[:2][-1].partition(" [type")[0].strip()
        raise ConfigError(f"{said} makes no sense: {why}") from None
    policy, outcomes = _learned(records, task)
    whole = [o for o in outcomes if o.status in WHOLE and len(o.curve.metric)]
    clock_s = sum(outcome.curve.end_s for outcome in outcomes)
    clock_s += sum(trial.train_s or 0.0 for trial in view.running)
    pace = seen.elapsed_s / max(clock_s, 1e-9)
    most = SHARES[-1]
    paths = policy.forecast(left_s=most * left_s / pace, left_runs=most * left_runs)
    least = LEAST_WHOLE[task.mode]
    if paths is None:
        raise ConfigError(
            f"a forecast needs {least} trials that went to their end, but {study} has {len(whole)}."
            " Let it run on."
        )
    best = max(float(outcome.curve.metric[-1]) for outcome in whole)
    rows = [
        _by_then(paths.until(share * left_s / pace, share * left_runs), share, pace, best, task)
        for share in SHARES
    ]
    hits = [
        r.trial_id for r, o in zip(records, outcomes, strict=True) if o.status == Status.REACHED
    ]
    within = paths.until(left_s / pace, left_runs)
    return Forecast(
        study=study,
        target=task.target,
        met_by=hits[0] if hits else None,
        trials=len(records),
        best=_metric(best, task.target),
        rows=tuple(rows),
        first_hit_s=Range(0.0, 0.0, 0.0) if hits else range_of(within.first_hit_s() * pace),
    )


def _learned(
    records: Sequence[TrialRecord], task: Workload | OwnTask
) -> tuple[TimeToTarget, list[Outcome]]:
    """Returns the policy of a search for the task after these trials, and how they ended for it."""
    found = space_of(records[0].study, hashes={record.space_hash for record in records})
    space = found or SearchSpace.from_tree(derived_tree([record.params for record in records]))
    num_train, costs = task.num_train(), None
    # What trials span lacks the fixed fields, of which costs are predicted.
    if found is not None and num_train is not None:
        costs = CostModel(space, num_train=num_train)
        for record in records:
            costs.finished(record)
    policy = TimeToTarget(
        space=space,
        target=SearchTarget(task.target.goal, task.mode, task.max_train_s),
        cost_of=lambda params: None if costs is None else costs(params),
        seed=0,
    )
    outcomes = [of_another_target(record, task, num_train=num_train) for record in records]
    proposals = [Proposal(record.trial_id, space.read(record.params)) for record in records]
    policy.restore(finished=zip(proposals, outcomes, strict=True), unfinished=())
    return policy, outcomes


def _left(seen: StudyStatus, time_budget: str | float | None) -> tuple[float, float]:
    """Returns the trials and the seconds that are left: infinite, or as many as were used."""
    if time_budget is not None:
        return math.inf, parse_duration_s(time_budget)
    runs = math.inf if seen.planned is None else seen.planned - seen.num_finished
    ends_at = seen.view.searches[-1].tags.get("ends_at") if seen.view.searches else None
    time_s = math.inf
    if ends_at:
        time_s = moment_s(ends_at) - time.time() if seen.view.is_running else 0.0
    is_left = runs > 0 and time_s > 0 and not math.isinf(min(runs, time_s))
    return (runs, time_s) if is_left else (math.inf, seen.elapsed_s)


def _by_then(
    paths: Paths, share: float, pace: float, best: float, task: Workload | OwnTask
) -> ByThen:
    goal = task.target.goal
    ends = np.maximum(paths.ends.max(axis=1, initial=-np.inf), distance(best, goal))
    scores: FloatArray = metric_of(ends, goal)
    if task.target.is_share:
        scores = np.minimum(scores, 1.0)
    metric = Range(*(_metric(each, task.target) for each in range_of(scores)))
    spent = np.where(np.isfinite(paths.spent_s), paths.spent_s, 0.0)
    return ByThen(
        share=share,
        after_s=float(spent.max(axis=1, initial=0.0).mean() * pace),
        trials=float(np.isfinite(paths.spent_s).sum(axis=1).mean()),
        chance=float((ends >= 0).mean()),
        best=metric,
    )


def _metric(score: float, target: Target) -> float:
    """Returns the metric that has this `Target.score`."""
    if target.is_share:
        return float(score)
    sign = 1.0 if target.mode == "max" else -1.0
    return target.value + sign * (float(score) - 1.0) * (abs(target.value) or 1.0)

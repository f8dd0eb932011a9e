"""The Optuna study beneath a policy, and what it is told.

| told                | value                                                                    |
| ------------------- | ------------------------------------------------------------------------ |
| value               | log of the time to target; of the training time where it was missed      |
| constraint `gap`    | how far off the end is, or is forecast to be, in units of 0.02; 0 if met |
| constraint `memory` | log2(peak memory / limit); out of memory counts as twice the limit       |
| FAIL                | infrastructure faults, crashes, and proposals that were not run          |

Constraints above 0 mark a trial as infeasible, so that a miss still says how far off it was, which
no penalty can (`log` because times differ by factors). Both are set on every trial, as Optuna's
Gaussian-process sampler demands.

CMA-ES knows no constraints. It is told of a miss as a value instead: the log of the workload's time
limit plus log(1 + gap), worse than any time and the worse the further off.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status
from tune_speed.study.settings import JOURNALS
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Earlier, Outcome, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.curve_table import gap
from tune_speed.tuning.policy.optuna_space import distributions, suggest
from tune_speed.tuning.policy.samplers import (
    SEEDED_EACH_TIME,
    WITHOUT_CONSTRAINTS,
    hush_optuna,
    make_sampler,
)

OOM_MEMORY = 1.0
"""`memory` of a trial that ran out of memory, whose true need nobody saw: log2(2)."""
JUST_MISSED = 1e-3
"""A miss stays infeasible even if its metric, on the way, was above the target."""
LONGEST_S = 1e6
"""Stands for a time limit where there is none."""
OUTCOME = "tune_speed"
"""User attribute of a finished trial: its outcome as JSON, for drivers that share the storage."""


class OptunaStudy:
    """An Optuna study that trials are proposed by or entered into, and told to."""

    def __init__(
        self,
        *,
        space: SearchSpace,
        goal: SearchTarget,
        sampler: str,
        seed: int,
        storage: str | None = None,
        study_name: str = "",
        graded: bool = True,
    ) -> None:
        """Opens the study in `storage` (see `search.storage`), or one in memory."""
        self._space, self._goal, self._graded = space, goal, graded
        self._sampler, self._seed = sampler, seed
        self._uses_constraints = sampler not in WITHOUT_CONSTRAINTS
        hush_optuna()
        self._study = optuna.create_study(
            direction="minimize",
            sampler=make_sampler(sampler, space=space, seed=seed),
            storage=_open_storage(storage),
            study_name=study_name or None,
            load_if_exists=True,
        )
        self._is_shared = storage is not None
        self._asked: dict[str, optuna.Trial] = {}
        self._seen: set[int] = set()

    def propose(self, number: int) -> tuple[optuna.Trial, dict[str, Any]]:
        """Returns the sampler's proposal for the study's trial of that number."""
        if self._sampler in SEEDED_EACH_TIME:
            # So that a study that resumes goes on as if it had never stopped.
            seed = int(np.random.default_rng([self._seed, number]).integers(2**31))
            self._study.sampler = make_sampler(self._sampler, space=self._space, seed=seed)
        trial = self._study.ask()
        return trial, suggest(self._space, trial)

    def reject(self, trial: optuna.Trial) -> None:
        """Takes note that a proposal is not run."""
        self._study.tell(trial, state=TrialState.FAIL)

    def take(self, trial_id: str, trial: optuna.Trial) -> None:
        """Takes note that a proposal of `propose` is run as `trial_id`."""
        self._asked[trial_id] = trial

    def enter(self, trial_id: str, params: Mapping[str, Any]) -> None:
        """Enters a configuration that came from elsewhere and is run as `trial_id`."""
        self._study.enqueue_trial(self._space.read(params))
        trial = self._study.ask()
        suggest(self._space, trial)
        self._asked[trial_id] = trial

    def finish(self, trial_id: str, outcome: Outcome, *, y: float) -> None:
        """Tells a trial's outcome; `y` is the distance at which its curve ended, or was to end."""
        trial = self._asked.pop(trial_id)
        self._seen.add(trial.number)
        if outcome.status == Status.FAILED:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        for key, value in self._constraints(outcome, y).items():
            trial.set_constraint(key, value)
        if self._is_shared:
            trial.set_user_attr(OUTCOME, _as_json(outcome))
        self._study.tell(trial, self._value(outcome, y))

    def withdraw(self, trial_id: str) -> None:
        """Takes back a trial without an outcome."""
        self._study.tell(self._asked.pop(trial_id), state=TrialState.FAIL)

    def restore(self, params: Mapping[str, Any], outcome: Outcome, *, y: float) -> None:
        """Adds a trial of an earlier session, if the storage does not have it."""
        failed = outcome.status == Status.FAILED
        if self._is_shared and (failed or self._has(params)):
            return
        self._study.add_trial(
            create_trial(
                state=TrialState.FAIL if failed else TrialState.COMPLETE,
                params=self._space.read(params),
                distributions=distributions(self._space, params),
                value=None if failed else self._value(outcome, y),
                constraints=None if failed else self._constraints(outcome, y) or None,
                user_attrs={OUTCOME: _as_json(outcome)} if self._is_shared else None,
            )
        )

    def others(self) -> Iterator[Earlier]:
        """Yields trials that other drivers finished since the last call."""
        if not self._is_shared:
            return
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if trial.number in self._seen or OUTCOME not in trial.user_attrs:
                continue
            self._seen.add(trial.number)
            yield Earlier(self._space.read(trial.params), _from_json(trial), same_times=True)

    def _has(self, params: Mapping[str, Any]) -> bool:
        ours = self._space.read(params)
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        same = [trial for trial in trials if self._space.read(trial.params) == ours]
        self._seen.update(trial.number for trial in same)
        return bool(same)

    def _value(self, outcome: Outcome, y: float) -> float:
        limit_s = min(self._goal.max_train_s, LONGEST_S)
        if outcome.status == Status.REACHED:
            return math.log(outcome.train_s)
        if not self._uses_constraints:
            return math.log(limit_s) + math.log1p(self._gap(outcome, y))
        # A trial that never trained (out of memory at once) costs what a whole run may cost.
        return math.log(outcome.train_s if outcome.train_s > 0 else limit_s)

    def _gap(self, outcome: Outcome, y: float) -> float:
        if outcome.status == Status.REACHED:
            return 0.0
        if not self._graded:
            return 1.0
        return max(gap(y), JUST_MISSED)

    def _constraints(self, outcome: Outcome, y: float) -> dict[str, float]:
        if not self._uses_constraints:
            return {}
        ratio = outcome.memory_ratio
        memory = math.log2(ratio) if ratio else 0.0
        return {
            "gap": self._gap(outcome, y),
            "memory": OOM_MEMORY if outcome.status == Status.OOM else min(memory, 0.0),
        }


def _open_storage(storage: str | None) -> BaseStorage | str | None:
    if storage is None or "://" in storage:
        return storage
    _check_journal(Path(storage))
    return JournalStorage(JournalFileBackend(storage))


def _check_journal(path: Path) -> None:
    """Refuses what is no journal: Optuna appends to any file, and a study file may name any.

    Raises: ConfigError.
    """
    try:
        is_journal = not path.exists() or (path.is_file() and _first_byte(path) in (b"", b"{"))
        problem = "" if is_journal else "holds something else"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    if path.suffix not in JOURNALS or "\0" in path.name:
        problem = f"does not end in {' or '.join(JOURNALS)}"
    if problem:
        raise ConfigError(
            f"search.storage must be a journal file of Optuna's or a new one, but {path} {problem}."
            " Name another file, such as searches.journal."
        )


def _first_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1)


def _as_json(outcome: Outcome) -> str:
    fields = outcome._asdict()
    fields["curve"] = [np.asarray(column).tolist() for column in outcome.curve]
    return json.dumps(fields)


def _from_json(trial: FrozenTrial) -> Outcome:
    fields = json.loads(trial.user_attrs[OUTCOME])
    fields["curve"] = Curve(*(np.array(column) for column in fields["curve"]))
    return Outcome(**{**fields, "status": Status(fields["status"])})

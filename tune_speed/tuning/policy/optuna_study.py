"""The Optuna study beneath a policy, and how outcomes enter it.

| of a trial          | value                                                                    |
| ------------------- | ------------------------------------------------------------------------ |
| value               | log of the time to target; of the training time where it was missed      |
| constraint `gap`    | how far off the end is, or is forecast to be, in units of 0.02; 0 if met |
| constraint `memory` | log2(peak memory / limit); out of memory counts as twice the limit       |
| FAIL                | infrastructure faults, crashes, and proposals that were not run          |

Constraints above 0 mark a trial as infeasible, so that a miss still says how far off it was, which
no penalty can (`log` because times differ by factors). CMA-ES ignores constraints: there the value
of a miss is the log of the workload's time limit plus log(1 + gap), worse than any time.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from tune_speed.core.errors import ConfigError, first_line
from tune_speed.core.records import Status
from tune_speed.core.redact import redact
from tune_speed.study.settings import JOURNALS
from tune_speed.tuning.policy import samplers
from tune_speed.tuning.policy.base import Outcome, PriorTrial, Problem, trial_number
from tune_speed.tuning.policy.curve import Curve, gap
from tune_speed.tuning.policy.samplers import SEEDED_EACH_TIME, make_sampler, suggest

# `memory` of a trial that ran out of memory, whose true need is unknown: log2(2).
OOM_MEMORY = 1.0
# Least gap of a miss: it stays infeasible even if its metric was above the target on the way.
JUST_MISSED = 1e-3
# Time limit [s] where there is none.
LONGEST_S = 1e6
# Proposals in a row that are rejected before one is drawn without Optuna.
MAX_REJECTED = 20
OUTCOME = "tune_speed"
"""User attribute of a finished trial: its outcome as JSON, for drivers that share the storage."""


class Sampling(NamedTuple):
    """Who proposes, and in which Optuna study."""

    name: str = "gain"
    """Our own, or one of Optuna's by its name in study files."""
    storage: str | None = None
    """See `search.storage`; None: in memory."""
    study_name: str = ""


GAIN = Sampling()


class OptunaStudy:
    """An Optuna study that proposes trials, or takes in those proposed elsewhere."""

    def __init__(self, problem: Problem, sampling: Sampling) -> None:
        self._space, self._target, self._seed = problem.space, problem.target, problem.seed
        self._sampler = sampling.name
        self._uses_constraints = sampling.name not in samplers.WITHOUT_CONSTRAINTS
        samplers.hush_optuna()
        self._study = optuna.create_study(
            direction="minimize",
            sampler=make_sampler(sampling.name, space=problem.space, seed=problem.seed),
            storage=open_storage(sampling.storage),
            study_name=sampling.study_name or None,
            load_if_exists=True,
        )
        self._is_shared = sampling.storage is not None
        # `gain` asks Optuna nothing: a study in memory serves nobody, at 2 ms and 8 kB a trial.
        self._is_idle = sampling.name == "gain" and not self._is_shared
        self._running: dict[str, optuna.Trial] = {}
        self._seen: set[int] = set()

    def propose(
        self, trial_id: str, is_allowed: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any] | None:
        """Returns the sampler's proposal that runs as `trial_id`; None if it has none in 20."""
        for _ in range(MAX_REJECTED):
            if self._sampler in SEEDED_EACH_TIME:
                # So that a resumed study proposes what it would have proposed without the break.
                rng = np.random.default_rng([self._seed, trial_number(trial_id)])
                seed = int(rng.integers(2**31))
                self._study.sampler = make_sampler(self._sampler, space=self._space, seed=seed)
            trial = self._running[trial_id] = self._study.ask()
            if is_allowed(params := suggest(self._space, trial)):
                return params
            self.withdraw(trial_id)
        return None

    def enter(self, trial_id: str, params: Mapping[str, Any]) -> None:
        if self._is_idle:
            return
        self._study.enqueue_trial(self._space.read(params))
        self._running[trial_id] = self._study.ask()
        suggest(self._space, self._running[trial_id])

    def finish(self, trial_id: str, outcome: Outcome, *, y: float) -> None:
        """Tells Optuna an outcome; `y` is the distance at which the curve ended or would have."""
        if self._is_idle:
            return
        trial = self._running.pop(trial_id)
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
        if not self._is_idle:
            self._study.tell(self._running.pop(trial_id), state=TrialState.FAIL)

    def restore(self, params: Mapping[str, Any], outcome: Outcome, *, y: float) -> None:
        """Adds a trial of an earlier session, if the storage does not have it."""
        if self._is_idle:
            return
        failed = outcome.status == Status.FAILED
        if self._is_shared:
            ours = self._space.read(params)
            same = [t.number for t in self._complete() if self._space.read(t.params) == ours]
            self._seen.update([] if failed else same)
            if failed or same:
                return
        more = {
            "constraints": None if failed else self._constraints(outcome, y) or None,
            "user_attrs": {OUTCOME: _as_json(outcome)} if self._is_shared else None,
        }
        value = None if failed else self._value(outcome, y)
        self._study.add_trial(samplers.ended_trial(self._space, params, value, **more))

    def others(self) -> Iterator[PriorTrial]:
        """Yields trials that other drivers finished since the last call."""
        if not self._is_shared:
            return
        for trial in self._complete():
            if trial.number not in self._seen and OUTCOME in trial.user_attrs:
                self._seen.add(trial.number)
                fields = json.loads(trial.user_attrs[OUTCOME])
                fields["curve"] = Curve(*map(np.array, fields["curve"]))
                outcome = Outcome(**{**fields, "status": Status(fields["status"])})
                yield PriorTrial(self._space.read(trial.params), outcome, same_times=True)

    def _complete(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    def _value(self, outcome: Outcome, y: float) -> float:
        limit_s = min(self._target.max_train_s, LONGEST_S)
        if outcome.status == Status.REACHED:
            return math.log(outcome.train_s)
        if not self._uses_constraints:
            return math.log(limit_s) + math.log1p(self._gap(outcome, y))
        # A trial that never trained (out of memory at once) counts with the longest possible run.
        return math.log(outcome.train_s if outcome.train_s > 0 else limit_s)

    def _gap(self, outcome: Outcome, y: float) -> float:
        if outcome.status == Status.REACHED:
            return 0.0
        return max(gap(y), JUST_MISSED)

    def _constraints(self, outcome: Outcome, y: float) -> dict[str, float]:
        if not self._uses_constraints:
            return {}
        memory = min(math.log2(outcome.memory_ratio), 0.0) if outcome.memory_ratio else 0.0
        if outcome.status == Status.OOM:
            memory = OOM_MEMORY
        # Optuna's Gaussian-process sampler demands the same constraints of every trial.
        return {"gap": self._gap(outcome, y), "memory": memory}


def open_storage(storage: str | None) -> BaseStorage | None:
    """Returns a storage for Optuna. Raises: ConfigError if it is neither journal nor database."""
    if storage is None or "://" in storage:
        return _database(storage) if storage else None
    # Optuna appends to any file, and a study file may name any.
    path = Path(storage)
    try:
        problem = "" if not path.exists() or path.is_file() else "holds something else"
        if path.is_file():
            with path.open("rb") as file:
                problem = "" if file.read(1) in (b"", b"{") else "holds something else"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    if path.suffix not in JOURNALS or "\0" in path.name:
        problem = f"does not end in {' or '.join(JOURNALS)}"
    if problem:
        raise ConfigError(
            f"search.storage must be a journal file of Optuna's or a new one, but {path} {problem}."
            " Name another file, such as searches.journal."
        )
    return JournalStorage(JournalFileBackend(storage))


def _database(url: str) -> BaseStorage:
    try:
        return get_storage(url)
    except ImportError as error:
        why = f"its driver is not installed ({first_line(error.__context__ or error)})"
    except (ValueError, SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        why = first_line(error)
    raise ConfigError(
        f"{redact(url)} must be a database that Optuna can open, but {redact(why)}. Install the"
        " driver, correct the address, or take a journal file, such as searches.journal."
    )


def _as_json(outcome: Outcome) -> str:
    fields = outcome._asdict()
    fields["curve"] = [np.asarray(column).tolist() for column in outcome.curve]
    return json.dumps(fields)

"""Which configuration to try next, and when to stop one: a pure object over an Optuna study.

No Ray, no clock of its own, no randomness but its seed. What Optuna is told of a finished trial:

| told           | value                                                                         |
|----------------|-------------------------------------------------------------------------------|
| value          | log of the time to target; of the training time where the target was missed   |
| constraint gap | (target − best metric seen) / 0.02, at least 0; 0 where the target was met    |
| constraint     | log2(peak memory / limit); out of memory counts as twice the limit            |
| `memory`       |                                                                               |
| FAIL           | infrastructure faults and crashes, which say nothing about the configuration  |

Constraints above 0 mark a trial as infeasible, so that a miss still says how far off it was, which
no penalty can (`log` because times differ by factors). Both are set on every trial, as Optuna's
Gaussian-process sampler demands.

CMA-ES knows no constraints. It is told of a miss as a value instead: the log of the workload's time
limit plus log(1 + gap), worse than any time and the worse the further off.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from tune_speed.records import Status
from tune_speed.search.samplers import WITHOUT_CONSTRAINTS, make_sampler
from tune_speed.search.space import SearchSpace

GAP_UNIT = 0.02
"""Two points of accuracy make one unit of `gap`: about what a retuned recipe gains or loses."""
OOM_MEMORY = 1.0
"""`memory` of a trial that ran out of memory, whose true need nobody saw: log2(2)."""
MAX_REPEATS = 20
"""Proposals in a row that were all tried before: then the space is taken to be exhausted."""


class Outcome(NamedTuple):
    """What the policy needs to know of a finished trial."""

    status: Status
    train_s: float
    """Seconds on the training clock, to the target or to the stop."""
    best_metric: float | None
    """Best value of the target metric, or None if nothing was evaluated."""
    memory_ratio: float | None
    """Peak memory over its limit, or None if not measured."""


@dataclass(frozen=True)
class Proposal:
    """A configuration to try."""

    trial_id: str
    params: dict[str, Any]


class Policy:
    """Asks, decides, learns. Rebuilt from a ledger by `restore`."""

    def __init__(
        self,
        *,
        space: SearchSpace,
        target: float,
        mode: Literal["anytime", "fixed_length"],
        max_train_s: float,
        sampler: str,
        seed: int,
    ) -> None:
        self.space, self.target, self.mode, self.max_train_s = space, target, mode, max_train_s
        self._uses_constraints = sampler not in WITHOUT_CONSTRAINTS
        self._study = _quiet_study(make_sampler(sampler, space=space, seed=seed))
        self._asked: dict[str, optuna.Trial] = {}
        self._tried: set[tuple[tuple[str, Any], ...]] = set()
        self._again: list[Proposal] = []
        self._num_proposed = 0
        self._exhausted = False
        self.leader: tuple[str, float] | None = None
        """Trial with the shortest time to target so far, and that time [s]."""

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
    ) -> None:
        """Takes over a ledger's trials; unfinished ones are proposed again, under their ids."""
        for proposal, outcome in finished:
            self._count(proposal)
            self._learn(proposal.trial_id, outcome)
            self._study.add_trial(self._as_optuna_trial(proposal.params, outcome))
        for proposal in unfinished:
            self._count(proposal)
            self._again.append(proposal)

    def ask(self) -> Proposal | None:
        """Returns the next configuration, or None where the space holds no untried one."""
        if self._again:
            proposal = self._again.pop(0)
            self._study.enqueue_trial(self.space.to_optuna(proposal.params))
            self._asked[proposal.trial_id] = self._study.ask()
            self.space.suggest(self._asked[proposal.trial_id])
            return proposal
        for _ in range(MAX_REPEATS):
            trial = self._study.ask()
            proposal = Proposal(f"t{self._num_proposed:04d}", self.space.suggest(trial))
            if _key(proposal.params) not in self._tried:
                self._count(proposal)
                self._asked[proposal.trial_id] = trial
                return proposal
            self._study.tell(trial, state=TrialState.FAIL)
        self._exhausted = True
        return None

    @property
    def is_exhausted(self) -> bool:
        """Whether `ask` has found the space to hold no untried configuration."""
        return self._exhausted and not self._again

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        """Returns why to stop a running trial, or None to let it go on.

        Anytime mode: a clock past the leader's time cannot win any more, since the clock only
        grows; stopping is lossless. Fixed length: a run's cost is its own, it goes to its end.
        """
        assert trial_id in self._asked, trial_id
        if self.mode == "anytime" and self.leader and train_s > self.leader[1]:
            leader, time_s = self.leader
            return f"stopped at {train_s:.1f} s: leader {leader} met the target in {time_s:.1f} s"
        return None

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        """Learns from a trial that ended."""
        trial = self._asked.pop(trial_id)
        self._learn(trial_id, outcome)
        if outcome.status == Status.FAILED:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        for key, value in (self._constraints(outcome) or {}).items():
            trial.set_constraint(key, value)
        self._study.tell(trial, self._value(outcome))

    def retry(self, proposal: Proposal) -> None:
        """Takes back a trial that ended without an outcome; it is proposed again."""
        self._study.tell(self._asked.pop(proposal.trial_id), state=TrialState.FAIL)
        self._again.append(proposal)

    def withdraw(self, trial_id: str) -> None:
        """Takes back a trial that ended without an outcome and is not run again in this session."""
        self._study.tell(self._asked.pop(trial_id), state=TrialState.FAIL)

    def _count(self, proposal: Proposal) -> None:
        self._tried.add(_key(proposal.params))
        self._num_proposed = max(self._num_proposed, int(proposal.trial_id[1:]) + 1)

    def _learn(self, trial_id: str, outcome: Outcome) -> None:
        if outcome.status != Status.REACHED:
            return
        if self.leader is None or outcome.train_s < self.leader[1]:
            self.leader = (trial_id, outcome.train_s)

    def _as_optuna_trial(
        self, params: Mapping[str, Any], outcome: Outcome
    ) -> optuna.trial.FrozenTrial:
        failed = outcome.status == Status.FAILED
        return create_trial(
            state=TrialState.FAIL if failed else TrialState.COMPLETE,
            params=self.space.to_optuna(params),
            distributions=self.space.distributions(params),
            value=None if failed else self._value(outcome),
            constraints=None if failed else self._constraints(outcome),
        )

    def _value(self, outcome: Outcome) -> float:
        reached = outcome.status == Status.REACHED
        if not reached and not self._uses_constraints:
            return math.log(self.max_train_s) + math.log1p(self._gap(outcome))
        # A trial that never trained (out of memory at once) costs what a whole run may cost.
        return math.log(outcome.train_s if outcome.train_s > 0 else self.max_train_s)

    def _gap(self, outcome: Outcome) -> float:
        if outcome.status == Status.REACHED:
            return 0.0
        return max((self.target - (outcome.best_metric or 0.0)) / GAP_UNIT, _JUST_MISSED)

    def _constraints(self, outcome: Outcome) -> dict[str, float] | None:
        if not self._uses_constraints:
            return None
        ratio = outcome.memory_ratio
        memory = math.log2(ratio) if ratio else 0.0
        return {
            "gap": self._gap(outcome),
            "memory": OOM_MEMORY if outcome.status == Status.OOM else min(memory, 0.0),
        }


_JUST_MISSED = 1e-3
"""A miss stays infeasible even if its best metric, on the way, was above the target."""


def _quiet_study(sampler: BaseSampler) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="minimize", sampler=sampler)


def _key(params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(params.items()))

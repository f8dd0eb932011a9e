"""Baseline policies: an Optuna sampler that knows only times and a penalty, or only ends."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from tune_speed.core.records import Recommended, Status
from tune_speed.core.words import ProposalKind, ProposalReason, StopReason
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.base import Leader, Outcome, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.samplers import ended_trial, make_sampler, quiet_study, suggest

# Value of a trial that missed the target. TPE looks at ranks only.
PENALTY_S = 1e6


class Baseline(ABC):
    """What baseline policies share: the numbers of trials, and those to propose again."""

    _study: optuna.Study
    _kind = ProposalKind.SAMPLER
    _failures: tuple[Status, ...] = (Status.FAILED,)

    def __init__(self, problem: Problem, sampler: Callable[[int], BaseSampler]) -> None:
        self._sampler, self._seed = sampler, problem.seed
        self._space, self._target = problem.space, problem.target
        self._again: list[Proposal] = []
        self._wanted: list[tuple[Mapping[str, Any], ProposalReason]] = []
        self._num_proposed = 0
        self.spent = 0.0
        self.leader: Leader | None = None
        self.why_settled: StopReason | None = None

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        return base.alone(self.leader)

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
        num_taken: int = 0,
    ) -> None:
        self._num_proposed = num_taken
        for proposal, outcome in finished:
            self._count(proposal)
            self._restore(proposal, outcome)
            self._lead(proposal.trial_id, outcome)
        for proposal in unfinished:
            self._count(proposal)
            self._again.append(proposal)
        # By the first seed, what the search began with would be drawn again.
        self._study.sampler = self._sampler(self._seed + self._num_proposed)

    def _lead(self, trial_id: str, outcome: Outcome) -> None:
        self.leader = base.better(self.leader, trial_id, outcome, by_end=self._target.best)

    def retry(self, proposal: Proposal) -> None:
        self.withdraw(proposal.trial_id)
        self._again.append(proposal)

    def try_next(self, point: Mapping[str, Any], *, reason: ProposalReason) -> None:
        self._wanted.append((point, reason))

    def ask(self) -> Proposal:
        if self._again:
            proposal = self._again.pop(0)
            self._study.enqueue_trial(self._space.read(proposal.params))
            self._propose(proposal.trial_id)
            return proposal
        trial_id = f"t{self._num_proposed:04d}"
        reason = ProposalReason.of(self._kind)
        if self._wanted:  # What people want; the sampler fills in what it leaves out.
            point, reason = self._wanted.pop(0)
            self._study.enqueue_trial(dict(point))
        proposal = Proposal(trial_id, self._propose(trial_id), reason)
        self._count(proposal)
        return proposal

    @abstractmethod
    def withdraw(self, trial_id: str) -> None:
        """Takes back a trial."""

    @abstractmethod
    def _propose(self, trial_id: str) -> dict[str, Any]:
        """Returns what the sampler proposes for a trial that runs from now on."""

    def _restore(self, proposal: Proposal, outcome: Outcome) -> None:
        value = None if outcome.status in self._failures else minimised(outcome, self._target)
        self._study.add_trial(ended_trial(self._space, proposal.params, value))

    def _count(self, proposal: Proposal) -> None:
        self._num_proposed = max(self._num_proposed, base.trial_number(proposal.trial_id) + 1)


class Plain(Baseline):
    """An Optuna sampler that minimises the time to target, or `PENALTY_S` for a miss."""

    def __init__(self, problem: Problem, *, sampler: str = "random") -> None:
        super().__init__(
            problem, lambda seed: make_sampler(sampler, space=problem.space, seed=seed)
        )
        self._study = quiet_study(self._sampler(problem.seed))
        self._running: dict[str, optuna.Trial] = {}

    def _propose(self, trial_id: str) -> dict[str, Any]:
        self._running[trial_id] = self._study.ask()
        return suggest(self._space, self._running[trial_id])

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> None:
        """Does nothing: every trial runs to its end."""

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        trial = self._running.pop(trial_id)
        self._lead(trial_id, outcome)
        if outcome.status == Status.FAILED:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, minimised(outcome, self._target))

    def withdraw(self, trial_id: str) -> None:
        self._study.tell(self._running.pop(trial_id), state=TrialState.FAIL)


def minimised(outcome: Outcome, target: SearchTarget) -> float:
    """Returns the time to target [s], or `PENALTY_S` in its place.

    Where the best metric is sought, it is that at the end or at the limit, with the sign turned.
    """
    if target.best:
        seen = [float(each) for each in outcome.curve.metric if each == each]
        return -seen[-1] if seen and outcome.status != Status.DIVERGED else 0.0
    return outcome.train_s if outcome.status == Status.REACHED else PENALTY_S

"""Baseline policies: an Optuna sampler that knows only times and a penalty, or only ends."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from tune_speed.core.records import Recommended, Status
from tune_speed.core.words import ProposalKind, ProposalReason, StopReason
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.base import Leader, Outcome, Proposal, SearchTarget
from tune_speed.tuning.policy.samplers import distributions, make_sampler, quiet_study, suggest

# Value of a trial that missed the target. TPE looks at ranks only.
PENALTY_S = 1e6


class Baseline(ABC):
    """What baseline policies share: the numbers of trials, and those to propose again."""

    _study: optuna.Study

    def __init__(
        self, sampler: Callable[[int], BaseSampler], *, target: SearchTarget, seed: int
    ) -> None:
        self._sampler, self._target, self._seed = sampler, target, seed
        self._ends = dict[str, float]()
        self._again: list[Proposal] = []
        self._wanted: list[tuple[Mapping[str, Any], ProposalReason]] = []
        self._num_proposed = 0
        self.spent = 0.0
        self.leader: Leader | None = None
        self.why_settled: StopReason | None = None

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        """The leader: without a model, what the fastest run was of."""
        return base.alone(self.leader, self._ends)

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
        num_taken: int = 0,
    ) -> None:
        """Takes over a ledger's trials; unfinished ones are proposed again."""
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
        ends = self._ends if self._target.best else None
        self.leader = base.better(self.leader, trial_id, outcome, ends=ends)

    def retry(self, proposal: Proposal) -> None:
        """Takes back a trial; it is proposed again."""
        self.withdraw(proposal.trial_id)
        self._again.append(proposal)

    def try_next(self, point: Mapping[str, Any], *, reason: ProposalReason) -> None:
        """Proposes a configuration next; the sampler fills in what it leaves out."""
        self._wanted.append((point, reason))

    def _enqueue(self, otherwise: ProposalKind) -> ProposalReason:
        """Makes the sampler propose what people want, if anything; returns why it proposes."""
        if not self._wanted:
            return ProposalReason.of(otherwise)
        point, reason = self._wanted.pop(0)
        self._study.enqueue_trial(dict(point))
        return reason

    @abstractmethod
    def withdraw(self, trial_id: str) -> None:
        """Takes back a trial."""

    @abstractmethod
    def _restore(self, proposal: Proposal, outcome: Outcome) -> None:
        """Adds a finished trial to the sampler."""

    def _count(self, proposal: Proposal) -> None:
        self._num_proposed = max(self._num_proposed, base.trial_number(proposal.trial_id) + 1)


class Plain(Baseline):
    """An Optuna sampler that minimises the time to target, or `PENALTY_S` for a miss."""

    def __init__(
        self, *, space: SearchSpace, target: SearchTarget, seed: int, sampler: str = "random"
    ) -> None:
        super().__init__(
            lambda seed: make_sampler(sampler, space=space, seed=seed), target=target, seed=seed
        )
        self._space = space
        self._study = quiet_study(self._sampler(seed))
        self._running: dict[str, optuna.Trial] = {}

    def _restore(self, proposal: Proposal, outcome: Outcome) -> None:
        self._study.add_trial(
            optuna_trial(
                self._space, proposal, outcome, target=self._target, failures=(Status.FAILED,)
            )
        )

    def ask(self) -> Proposal:
        """Returns the sampler's next configuration."""
        if self._again:
            proposal = self._again.pop(0)
            self._study.enqueue_trial(self._space.read(proposal.params))
            trial = self._study.ask()
            suggest(self._space, trial)
        else:
            reason = self._enqueue(ProposalKind.SAMPLER)
            trial = self._study.ask()
            params = suggest(self._space, trial)
            proposal = Proposal(f"t{self._num_proposed:04d}", params, reason)
            self._count(proposal)
        self._running[proposal.trial_id] = trial
        return proposal

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> None:
        """Does nothing: every trial runs to its end."""

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        """Tells the sampler."""
        trial = self._running.pop(trial_id)
        self._lead(trial_id, outcome)
        if outcome.status == Status.FAILED:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, minimised(outcome, self._target))

    def withdraw(self, trial_id: str) -> None:
        """Takes back a trial."""
        self._study.tell(self._running.pop(trial_id), state=TrialState.FAIL)


def minimised(outcome: Outcome, target: SearchTarget) -> float:
    """Returns the time to target [s], or `PENALTY_S` in its place.

    Where the best metric is sought, it is that at the end or at the limit, with the sign turned.
    """
    if target.best:
        seen = [float(each) for each in outcome.curve.metric if each == each]
        return -seen[-1] if seen and outcome.status != Status.DIVERGED else 0.0
    return outcome.train_s if outcome.status == Status.REACHED else PENALTY_S


def optuna_trial(
    space: SearchSpace,
    proposal: Proposal,
    outcome: Outcome,
    *,
    target: SearchTarget,
    failures: Container[Status],
) -> FrozenTrial:
    """Returns a finished trial for `Study.add_trial`, as FAIL if its status is in `failures`."""
    failed = outcome.status in failures
    return create_trial(
        state=TrialState.FAIL if failed else TrialState.COMPLETE,
        params=space.read(proposal.params),
        distributions=distributions(space, proposal.params),
        value=None if failed else minimised(outcome, target),
    )

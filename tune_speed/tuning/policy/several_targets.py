"""The policy for several targets in one search: every trial serves all.

Each target has a history and a model of its own, of the same trials judged by it. A trial is
proposed by the weighted sum of its expected gains at all targets,

    Σ_k w_k · gain_k(x),    Σ_k w_k = 1,

each gain being one of ln E*, over (c / c̄)^κ where the cost c is known (`acquisition`; c̄ is the
usual cost, so that gains of both kinds have one unit). It is stopped only when no target is left at
which it could lead. What must be run again (a favourite, and at the end of the budget what could be
better than it) goes round the targets.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tune_speed.core.records import Recommended, Status
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.acquisition import Aim
from tune_speed.tuning.policy.base import Outcome, PriorTrial, Proposal
from tune_speed.tuning.policy.curve import Curve, crossing
from tune_speed.tuning.policy.history import WHOLE
from tune_speed.tuning.policy.time_to_target import Choice, TimeToTarget


class SeveralTargets(TimeToTarget):
    """The policy of the hardest target, which asks those of the lower ones too."""

    def __init__(
        self,
        *,
        target: base.SearchTarget,
        prior_trials: Sequence[PriorTrial] = (),
        points: Sequence[Any] = (),
        **rest: Any,
    ) -> None:
        """Begins without any trial, as `TimeToTarget` does, with its own sampler."""
        super().__init__(target=target, prior_trials=prior_trials, points=points, **rest)
        self._target = target
        self._lower = [
            TimeToTarget(
                target=target._replace(value=value, lower=()),
                prior_trials=[self._of_prior(each, value) for each in prior_trials],
                **rest,
            )
            for value in target.lower
        ]
        self._out: dict[str, list[str | None]] = {}
        """Why each running trial can no longer lead, by target."""

    @property
    def lower_favourites(self) -> tuple[tuple[Recommended, ...], ...]:
        """What `favourites` are at each lower target, the hardest first."""
        return tuple(each.favourites for each in self._lower)

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
        num_taken: int = 0,
    ) -> None:
        """See `TimeToTarget`."""
        done, left = list(finished), list(unfinished)
        super().restore(finished=done, unfinished=left, num_taken=num_taken)
        for value, each in self._pairs():
            own = [(proposal, self._judged(outcome, value)) for proposal, outcome in done]
            each.restore(finished=own, unfinished=left, num_taken=num_taken)

    def ask(self, number: int | None = None) -> Proposal | None:
        """See `TimeToTarget`."""
        for each in self._lower:
            each.spent = self.spent
            each._learn()
        proposal = super().ask(number)
        if proposal is not None:
            for each in self._lower:
                each._history.begin(proposal)
            self._out[proposal.trial_id] = [None] * (1 + len(self._lower))
        return proposal

    def learn(self, prior: PriorTrial) -> None:
        """See `TimeToTarget`."""
        super().learn(prior)
        for value, each in self._pairs():
            each.learn(self._of_prior(prior, value))

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        """Returns why to stop a trial: why it cannot lead at the hardest target, nor at another."""
        told: dict[str, Any] = {"train_s": train_s, "step": step, "metric": metric}
        out = self._out[trial_id]
        # Rungs speak once, at different moments for different targets.
        out[0] = super().report(trial_id, **told) or out[0]
        for number, (value, each) in enumerate(self._pairs(), start=1):
            out[number] = each.report(trial_id, **told) or out[number]
            curve = Curve(np.empty(0), np.array(each._history.running[trial_id].metric))
            if (
                self._target.mode == "anytime"
                and crossing(curve, target=value, mode="anytime") is not None
            ):
                out[number] = "target met"
        return out[0] if all(out) else None

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        """See `TimeToTarget`."""
        super().finish(trial_id, outcome)
        for value, each in self._pairs():
            each.finish(trial_id, self._judged(outcome, value))
        del self._out[trial_id]

    def withdraw(self, trial_id: str) -> None:
        """See `TimeToTarget`."""
        super().withdraw(trial_id)
        for each in self._lower:
            each.withdraw(trial_id)
        del self._out[trial_id]

    def _pairs(self) -> Iterator[tuple[float, TimeToTarget]]:
        return zip(self._target.lower, self._lower, strict=True)

    def _judged(self, outcome: Outcome, value: float) -> Outcome:
        """Returns the outcome that a trial would have had with a lower target."""
        is_over = outcome.status in WHOLE or self._target.mode == "anytime"
        hit = crossing(outcome.curve, target=value, mode=self._target.mode)
        if hit is None or not is_over or outcome.status in (Status.OOM, Status.FAILED):
            return outcome
        train_s = float(outcome.curve.train_s[hit])
        return outcome._replace(status=Status.REACHED, train_s=train_s)

    def _of_prior(self, prior: PriorTrial, value: float) -> PriorTrial:
        return prior._replace(outcome=self._judged(prior.outcome, value))

    def _allowed(self, params: Any) -> float | None:
        """Returns the likely cost [s] of what could lead at some target."""
        costs = (super()._allowed(params), *(each._allowed(params) for each in self._lower))
        return next((cost for cost in costs if cost is not None), None)

    def _repeat(self, rng: np.random.Generator) -> Choice | None:
        """Returns what must be run again at one of the targets, another one first each time."""
        every = 1 + len(self._lower)
        for number in np.roll(np.arange(every), -self._history.num_proposed % every):
            choice = self._lower[number - 1]._repeat(rng) if number else super()._repeat(rng)
            if choice is not None:
                return choice
        return None

    def _choose(self, rng: np.random.Generator) -> Choice | None:
        """See `TimeToTarget`; with nothing new left, a lower target's favourite is run again."""
        again = (each._favourite_again() for each in self._lower if self._parts.repeats)
        return super()._choose(rng) or next(filter(None, again), None)

    def _other_aims(self, *, only_again: bool) -> Sequence[Aim]:
        weighed = zip(self._lower, self._target.weights[1:], strict=True)
        found = (each._aim(only_again=only_again, weight=weight) for each, weight in weighed)
        return [aim for aim in found if aim is not None]

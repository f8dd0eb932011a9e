"""A policy whose clock counts money: what is sought is the cheapest way to the target.

A second of training on N devices costs N times the price of one, that of their type, which is known
before the run. On the cost clock a second counts as often as the cheapest's would cost as much,

    t' = t · r / r_min,    r = N · price per hour / 3600,

so that caps, rungs, known costs and expected times with restarts are all of money, in seconds of
the least rate. Outside, clocks stay in seconds: each time is converted at its configuration's rate.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tune_speed.core.records import Recommended
from tune_speed.study.space import DEVICE_TYPE, SearchSpace
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.base import Cost, Leader, Outcome, Policy, PriorTrial, Proposal
from tune_speed.tuning.policy.curve import Curve

WORDS = " on the cost clock"
"""Follows reasons whose seconds are of the least rate."""


class Rates(NamedTuple):
    """What training costs, on one device or several of one type."""

    space: SearchSpace
    price_per_hour: float | Mapping[str, float]
    """Of one device; by its type, where a configuration chooses that."""

    def devices(self, params: Mapping[str, Any]) -> int:
        """Returns on how many devices a configuration trains."""
        return int(params.get("devices", self.space.tree.get("devices", 1)) or 1)

    @property
    def _ends(self) -> list[int]:
        found = [p.ends() for p in self.space.parameters if p.name == "devices"]
        return [int(end or 1) for ends in found for end in ends] or [self.devices({})]

    @property
    def _prices(self) -> list[float]:
        of_one = self.price_per_hour
        return [*of_one.values()] if isinstance(of_one, Mapping) else [of_one]

    @property
    def least_per_s(self) -> float:
        """Cost of a second where it costs least."""
        return min(self._ends) * min(self._prices) / 3600

    def factor(self, params: Mapping[str, Any]) -> float:
        """Returns how many times that a second of a configuration costs."""
        of_one = self.price_per_hour
        price = of_one[params[DEVICE_TYPE]] if isinstance(of_one, Mapping) else of_one
        return self.devices(params) / min(self._ends) * (price / min(self._prices))

    @property
    def most(self) -> float:
        """The largest factor."""
        return max(self._ends) / min(self._ends) * (max(self._prices) / min(self._prices))


class CostClock:
    """Any policy, told of money; see `Policy`."""

    def __init__(
        self,
        make: Callable[..., Policy],
        *,
        rates: Rates,
        target: base.SearchTarget,
        cost_of: base.CostOf,
        prior_trials: Iterable[PriorTrial] = (),
    ) -> None:
        """Makes the policy from target, costs and earlier trials, all on the cost clock."""
        self._rates, self._params = rates, dict[str, Mapping[str, Any]]()

        def cost_here(params: Mapping[str, Any]) -> Cost | None:
            cost, factor = cost_of(params), rates.factor(params)
            if cost is None:
                return None
            guess_s = None if cost.guess_s is None else cost.guess_s * factor
            return Cost(cost.train_s * factor, cost.num_steps, guess_s)

        prior = [self._prior(each) for each in prior_trials]
        more = {"prior_trials": prior} if prior else {}
        # The limit is one of time: this is as much as the dearest run may cost.
        limit = target._replace(max_train_s=target.max_train_s * rates.most)
        self._policy = make(target=limit, cost_of=cost_here, **more)

    @property
    def spent(self) -> float:
        """Share of the search's budget that is used up."""
        return self._policy.spent

    @spent.setter
    def spent(self, share: float) -> None:
        self._policy.spent = share

    @property
    def leader(self) -> Leader | None:
        """The trial that met the target at the least cost, and its time."""
        leader = self._policy.leader
        if leader is None:
            return None
        return leader._replace(time_to_target_s=leader.time_to_target_s / self._at(leader.trial_id))

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        """Configurations that met the target, the cheapest first."""
        return self._told(self._policy.favourites)

    @property
    def lower_favourites(self) -> tuple[tuple[Recommended, ...], ...]:
        """Of several targets, the same at each lower one."""
        return tuple(map(self._told, getattr(self._policy, "lower_favourites", ())))

    @property
    def why_settled(self) -> str | None:
        """See `Policy`."""
        return self._policy.why_settled

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
        num_taken: int = 0,
    ) -> None:
        """See `Policy`."""
        done = []
        for proposal, outcome in finished:
            self._params[proposal.trial_id] = proposal.params
            done.append((proposal, self._scaled(outcome, self._at(proposal.trial_id))))
        self._policy.restore(finished=done, unfinished=unfinished, num_taken=num_taken)

    def ask(self) -> Proposal | None:
        """See `Policy`."""
        proposal = self._policy.ask()
        if proposal is not None:
            self._params[proposal.trial_id] = proposal.params
        return proposal

    def try_next(self, point: Mapping[str, Any], *, reason: str) -> None:
        """See `Policy`."""
        self._policy.try_next(point, reason=reason)

    def learn(self, prior: PriorTrial) -> None:
        """See `Policy`."""
        self._policy.learn(self._prior(prior))

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        """See `Policy`; the reason's seconds are of the least rate."""
        at_s = train_s * self._at(trial_id)
        reason = self._policy.report(trial_id, train_s=at_s, step=step, metric=metric)
        return None if reason is None else reason + WORDS

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        """See `Policy`."""
        self._policy.finish(trial_id, self._scaled(outcome, self._at(trial_id)))

    def retry(self, proposal: Proposal) -> None:
        """See `Policy`."""
        self._policy.retry(proposal)

    def withdraw(self, trial_id: str) -> None:
        """See `Policy`."""
        self._policy.withdraw(trial_id)

    def _at(self, trial_id: str) -> float:
        return self._rates.factor(self._params[trial_id])

    def _prior(self, prior: PriorTrial) -> PriorTrial:
        factor = self._rates.factor(prior.params)
        return prior._replace(outcome=self._scaled(prior.outcome, factor))

    @staticmethod
    def _scaled(outcome: Outcome, factor: float) -> Outcome:
        planned_s, curve = outcome.planned_s, outcome.curve
        return outcome._replace(
            train_s=outcome.train_s * factor,
            curve=Curve(curve.train_s * factor, curve.metric),
            planned_s=None if planned_s is None else planned_s * factor,
        )

    def _told(self, favourites: Iterable[Recommended]) -> tuple[Recommended, ...]:
        return tuple(
            each.model_copy(
                update={
                    "expected_s": each.expected_s / self._at(each.trial_id),
                    "expected_cost": each.expected_s * self._rates.least_per_s,
                }
            )
            for each in favourites
        )

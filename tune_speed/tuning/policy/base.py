"""The interface of a policy: what it proposes, and what it learns of trials."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tune_speed.core.records import Recommended, Status
from tune_speed.core.text import Interval
from tune_speed.core.words import ProposalReason, StopReason
from tune_speed.study.settings import UntilConfig
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import NO_CURVE, Curve, Mode


class SearchTarget(NamedTuple):
    """What a search has to reach."""

    value: float
    """Of the metric, more being better."""
    mode: Mode
    max_train_s: float
    """Longest run on the training clock [s]."""
    best: bool = False
    """Whether the best metric of a run that ends within `max_train_s` is sought, not the time."""


class Cost(NamedTuple):
    """What a trial takes, as predicted before it starts."""

    train_s: float
    """Seconds on the training clock to its end, or a lower bound."""
    num_steps: int | None = None
    """Optimizer steps to its end; None where only the time is known."""
    guess_s: float | None = None
    """The most likely value [s] where `train_s` is a lower bound; else None."""

    @property
    def likely_s(self) -> float:
        return self.train_s if self.guess_s is None else self.guess_s


CostOf = Callable[[Mapping[str, Any]], Cost | None]
"""From a configuration to its cost; None where nothing similar ran yet."""


class Problem(NamedTuple):
    """What a policy is made for."""

    space: SearchSpace
    target: SearchTarget
    cost_of: CostOf
    seed: int


@dataclass(frozen=True)
class Proposal:
    """A configuration to try."""

    trial_id: str
    params: dict[str, Any]
    reason: ProposalReason = field(default_factory=ProposalReason)
    """Why this one."""


class Outcome(NamedTuple):
    """What a policy needs to know of a finished trial."""

    status: Status
    train_s: float
    """Seconds on the training clock, to the target or to the stop."""
    curve: Curve = NO_CURVE
    """The target metric as it was evaluated."""
    memory_ratio: float | None = None
    """Peak memory over its limit, or None if not measured."""
    planned_s: float | None = None
    """Training clock at which its schedule would have ended [s], or None if unknown."""
    by_hand: bool = False
    """Whether a person stopped it, which says nothing of how it would have ended."""

    @property
    def best_metric(self) -> float | None:
        """Best value of the target metric, or None if nothing was evaluated."""
        values = [float(value) for value in self.curve.metric if value == value]
        return max(values, default=None)


class PriorTrial(NamedTuple):
    """A trial of another study."""

    params: dict[str, Any]
    outcome: Outcome
    same_times: bool
    """Whether its clock means the same here: same device, same versions."""
    task: str = ""
    """Name of that study where it has another task, such as other data; empty: the same task."""


class Leader(NamedTuple):
    """The trial with the shortest time to target, or with the best end within a time."""

    trial_id: str
    time_to_target_s: float
    end: float | None = None
    """Metric at its end, where the best end leads."""


class Policy(Protocol):
    """Which configuration to try next, and when to stop one; a ledger restores it."""

    spent: float
    """Share of the search's budget that is used up; whoever drives the policy sets it."""

    @property
    def leader(self) -> Leader | None:
        """Shortest time to target so far."""

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        """Configurations that met the target, best first: at most a hundred."""

    @property
    def why_settled(self) -> StopReason | None:
        """Why nothing is proposed any more although the budget is not used up; None: it is not."""

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
        num_taken: int = 0,
    ) -> None:
        """Takes over a ledger's trials, unfinished ones to propose again under their ids."""

    def ask(self) -> Proposal | None:
        """Returns the next configuration, or None where there is none for now."""

    def try_next(self, point: Mapping[str, Any], *, reason: ProposalReason) -> None:
        """Proposes a configuration next, tried before or not; fills in what it leaves out."""

    def report(
        self, trial_id: str, *, train_s: float, step: int, metric: float
    ) -> StopReason | None:
        """Returns why to stop a running trial, or None to let it continue."""

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        """Learns from a trial that ended."""

    def retry(self, proposal: Proposal) -> None:
        """Takes back a trial that ended without an outcome; it is proposed again."""

    def withdraw(self, trial_id: str) -> None:
        """Takes back a trial that ended without an outcome and is not run again for now."""


def better(
    leader: Leader | None, trial_id: str, outcome: Outcome, *, by_end: bool = False
) -> Leader | None:
    """Returns who leads after an outcome, by time or `by_end`; of equals the smaller number."""
    if outcome.status != Status.REACHED:
        return leader

    def key(each: Leader) -> tuple[float, int]:
        value = each.time_to_target_s if each.end is None else -each.end
        return value, trial_number(each.trial_id)

    end = float(outcome.curve.metric[-1]) if by_end else None
    other = Leader(trial_id, outcome.train_s, end)
    return other if leader is None else min(leader, other, key=key)


def alone(leader: Leader | None) -> tuple[Recommended, ...]:
    """Returns the leader as what is recommended where nothing else is known; empty: none leads."""
    if leader is None:
        return ()
    metric = None if leader.end is None else Interval(*[leader.end] * 3)
    best = Recommended(
        trial_id=leader.trial_id, runs=1, hits=1, expected_s=leader.time_to_target_s, metric=metric
    )
    return (best,)


def trial_number(trial_id: str) -> int:
    """Returns 7 for `t0007`."""
    return int(trial_id[1:])


ParamsKey = tuple[tuple[str, Any], ...]
"""A configuration as a key of a dict."""


def params_key(params: Mapping[str, Any]) -> ParamsKey:
    return tuple(sorted(params.items()))


@dataclass(frozen=True)
class AcquisitionSettings:
    """Figures of the model and its acquisition function."""

    num_candidates: int = 256
    """Half of them drawn evenly, half around the best trials."""
    fit_points: int = 64
    """Trials to which the hyperparameters are fitted, at most."""
    max_points: int = 300
    """Trials that the model is conditioned on, at most."""
    cost_power: float = 0.5
    """κ, once there is a leader."""
    early_cost_power: float = 0.3
    """κ before."""
    margin: float = 0.5
    """How far beyond the best so far θ lies."""
    cost_feature: bool = True
    """Whether the cost is an input of the model, next to the configuration, less what is due to
    choices: a longer run of a network comes nearer the target, that of a slower one does not."""
    least_chance: float = 0.005
    """Chance below which a run is hopeless: where the model gives no configuration more, one is
    drawn without it, and a cost at which none has more is left out once there is a hit."""
    least_gain: float = 0.003
    """Gain, of ln E*, that another run of what was tried must promise."""
    least_share: float = 0.05
    """Share of the noise's variance that runs far from the target have at least."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Figures of the policy; what its parts are worth is measured in tests/benchmarks."""

    num_start: int = 12
    """Quasi-random proposals before the first of the model."""
    start_runs: float = 1.0
    """The start ends earlier when it took as long as so many of the longest runs."""
    # With 1, it takes 1.41 times as long to come near the best in anytime mode.
    start_pool: int = 3
    """Each of these is the cheapest of so many."""
    own_start_every: int = 4
    """Of the start, with studies of related tasks, one in so many proposals owes them nothing."""
    explore_every: int = 10
    """After the start, one in so many proposals is quasi-random; 0: none."""
    spread_every: int = 2
    """Where the length is fixed, one in so many proposals of the model has a cost on which the
    least was spent; 0: none."""
    audit_share: float = 0.05
    """Share of trials that no rung stops, so that rungs can be checked."""
    rung_factor: float = 3.0
    """Rungs lie at the time to beat over this, its square, its cube and its fourth power."""
    # With a half, it takes 1.68 times as long to come near the best in anytime mode.
    rung_keeps: float = 0.25
    """Share that continues past a rung."""
    rung_runs: int = 2
    """Other runs that must have been seen at a rung."""
    repeats: bool = True
    """Runs what was tried again where that is worth more than what was not."""
    sure_runs: int = 4
    """Runs that a favourite gets: at the end of the search, and where the length is free before
    anything new is tried."""
    hold_back: float = 0.15
    """Share of the budget, at its end, in which only what was tried is run; 0: none."""
    until: UntilConfig | None = None
    """When the search ends before its budget does; None: never."""
    cost_margin: float = 0.9
    """A running trial is stopped for its projected end only if this much of it is too long."""
    # A proposal takes 42 ms with 500 trials, and took 0.8 s with 20,000.
    most_trials: int = 400
    """Trials that the model and the rungs keep, once there are twice as many."""
    acquisition: AcquisitionSettings = field(default_factory=AcquisitionSettings)

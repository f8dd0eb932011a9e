"""Sides of `bench_noisy_search.py` that know of noise otherwise than ours: re-runs, and SMAC3."""

import math
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tune_speed.core.records import Recommended, Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.base import Leader, Outcome, Policy, Proposal, trial_number
from tune_speed.tuning.simulation.synthetic import Noisy

TOP, TIMES = 5, 3
PENALTY = 10.0
"""A miss counts as so many times the longest run (PAR10 of algorithm configuration)."""


class WithReruns:
    """A policy that ends with three further runs of each of its five fastest configurations.

    It recommends the one of these with the least time of all its runs over hits.
    """

    def __init__(self, policy: Policy, *, budget_s: float, workers: int) -> None:
        self._policy, self._budget_s, self._workers = policy, budget_s, workers
        self._runs: dict[base.ParamsKey, list[tuple[str, Outcome]]] = defaultdict(list)
        self._proposed: dict[str, Proposal] = {}
        self._left: list[Mapping[str, Any]] | None = None
        self._rerun: set[str] = set()
        self.spent, self.why_settled = 0.0, None

    @property
    def leader(self) -> Leader | None:
        return self._policy.leader

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        """Its five fastest, by all time over hits."""
        found = []
        for runs in self._top():
            hits = [(o.train_s, name) for name, o in runs if o.status == Status.REACHED]
            spent_s = sum(
                o.train_s if o.status == Status.REACHED else o.curve.end_s for _, o in runs
            )
            found.append((spent_s / len(hits), min(hits)[1], len(runs), len(hits)))
        return tuple(
            Recommended(trial_id=name, runs=runs, hits=hits, expected_s=time_s)
            for time_s, name, runs, hits in sorted(found)
        )

    def ask(self) -> Proposal | None:
        self._policy.spent = self.spent
        if self._left is None and self._is_time():
            first = [self._proposed[runs[0][0]].params for runs in self._top()]
            self._left = [params for _ in range(TIMES) for params in first]
        if self._left is not None:
            return self._again()
        proposal = self._policy.ask()
        if proposal is not None:
            self._proposed[proposal.trial_id] = proposal
        return proposal

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        if trial_id in self._rerun:
            return None
        return self._policy.report(trial_id, train_s=train_s, step=step, metric=metric)

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        params = self._proposed[trial_id].params
        self._runs[base.params_key(params)].append((trial_id, outcome))
        if trial_id not in self._rerun:
            self._policy.finish(trial_id, outcome)

    def _top(self) -> list[list[tuple[str, Outcome]]]:
        def fastest_s(runs: list[tuple[str, Outcome]]) -> float:
            return min((o.train_s for _, o in runs if o.status == Status.REACHED), default=math.inf)

        met = [runs for runs in self._runs.values() if math.isfinite(fastest_s(runs))]
        return sorted(met, key=fastest_s)[:TOP]

    def _is_time(self) -> bool:
        """Returns whether what is left of the budget is just enough for the re-runs."""
        lengths_s = [max(o.curve.end_s for _, o in runs) for runs in self._top()]
        needed_s = TIMES * sum(lengths_s) / self._workers + max(lengths_s, default=0.0)
        return bool(lengths_s) and needed_s >= (1 - self.spent) * self._budget_s

    def _again(self) -> Proposal | None:
        assert self._left is not None
        if not self._left:
            return None
        number = 1 + max(trial_number(name) for name in self._proposed)
        proposal = Proposal(f"t{number:04d}", dict(self._left.pop(0)), "one of the five fastest")
        self._proposed[proposal.trial_id] = proposal
        self._rerun.add(proposal.trial_id)
        return proposal


class Smac:
    """SMAC3's own optimiser and intensifier over its random forest (`pip install smac`).

    What it minimises is the time of a run, of a miss `PENALTY` times the longest (PAR10); it runs a
    configuration up to three times, as is its default. No trial is stopped.
    """

    def __init__(self, benchmark: Noisy, seed: int) -> None:
        from smac import AlgorithmConfigurationFacade, Scenario

        self.spent, self.why_settled = 0.0, None
        self._space, self._benchmark = benchmark.space, benchmark
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        scenario = Scenario(
            _space_of(benchmark.space),
            n_trials=10**6,
            seed=seed,
            output_directory=self._folder.name,
            deterministic=False,
        )
        self._smac = AlgorithmConfigurationFacade(
            scenario,
            lambda config, seed=0: 0.0,
            intensifier=AlgorithmConfigurationFacade.get_intensifier(scenario, max_config_calls=3),
            logging_level=False,
            overwrite=True,
        )
        self._infos: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self._leader: Leader | None = None

    @property
    def leader(self) -> Leader | None:
        return self._leader

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        """Its incumbent."""
        found = self._smac.intensifier.get_incumbent()
        if found is None or found not in self._names:
            return ()
        cost = self._smac.runhistory.average_cost(found)
        return (Recommended(trial_id=self._names[found], runs=1, hits=1, expected_s=cost),)

    def ask(self) -> Proposal | None:
        info = self._smac.ask()
        name = f"t{len(self._infos):04d}"
        self._infos[name] = info
        return Proposal(name, self._space.read(dict(info.config)), "smac")

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        return None

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        from smac.runhistory.dataclasses import TrialValue

        self._leader = base.better(self._leader, trial_id, outcome)
        info, is_hit = self._infos[trial_id], outcome.status == Status.REACHED
        # Not times its own length: what does not fit ends at once, and would be the best of all.
        cost = outcome.train_s if is_hit else PENALTY * self._benchmark.full_run_s
        self._names.setdefault(info.config, trial_id)
        self._smac.tell(info, TrialValue(cost=cost, time=outcome.curve.end_s), save=False)


def _space_of(space: SearchSpace) -> Any:
    from ConfigSpace import Categorical, ConfigurationSpace, EqualsCondition, Float, Integer

    made = ConfigurationSpace()
    for p in space.parameters:
        if p.kind == "categorical":
            made.add(Categorical(p.name, list(p.choices)))
        else:
            assert p.low is not None and p.high is not None and p.step is None
            kind = Integer if p.kind == "int" else Float
            made.add(kind(p.name, (p.low, p.high), log=p.log))
    for p in space.parameters:
        for name, value in p.condition.items():
            made.add(EqualsCondition(made[p.name], made[name], value))
    return made

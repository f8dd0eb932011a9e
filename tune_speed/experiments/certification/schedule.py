"""The schedule of a certification, as a function of its runs: who runs next, and who is left.

First all finalists run one seed a round, with the present leader (A B C A B C …); those clearly out
are dropped (see `elimination`). Then the best of them, again with the leader, run more rounds with
other seeds. All runs of a round share one seed, and no seed was used in the search.
"""

# Certified figures come from the second stage alone: the first stage chose its finalists, and a
# chosen result is biased (the winner's curse).

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from tune_speed.core.comparability import sign_of
from tune_speed.core.records import RunResult, Timing
from tune_speed.core.significance import Comparison, compare, holm
from tune_speed.core.stats import Sample, sample_of
from tune_speed.core.targets import Target
from tune_speed.experiments.certification.elimination import Dropped, Elimination
from tune_speed.experiments.session import RunLog
from tune_speed.study.settings import CertifyConfig

Stage = Literal["first", "final"]
# Seeds of a search lie below, so that those from here on are fresh.
FIRST_FRESH_SEED = 2**31
NUM_FRESH_SEEDS = 2**31


class Turn(NamedTuple):
    """One run to make."""

    stage: Stage
    round: int
    name: str
    seed: int


class FinalRank(NamedTuple):
    """A contestant at the end, with the runs that count for it."""

    name: str
    stage: Stage
    runs: tuple[RunResult, ...]
    orders: tuple[int, ...]
    rival: str | None
    """The one it is compared with: the leader, or for the leader the best of the others."""
    comparison: Comparison | None
    adjusted_p_value: float | None
    """Holm's, over all that were compared with the leader; None without a rival."""
    dropped: Dropped | None


class CertificationSchedule:
    """A certification under way."""

    def __init__(
        self,
        finalists: Sequence[str],
        *,
        leader: str | None,
        plan: CertifyConfig,
        seed_base: str,
        miss_s: float | None,
        target: Target | None = None,
    ) -> None:
        """Takes names, the best estimate's first; `leader` only if it is none of them.

        With a target of the best metric within a time, runs are judged by their ends (see
        `_sample`), and nobody is dropped. `miss_s` is what a miss costs in the `anytime` mode.
        """
        self.leader, self.plan = leader, plan
        self._seed_base, self._miss_s = seed_base, miss_s
        self._best = target if target is not None and target.seeks_best else None
        names = (*([leader] if leader else ()), *finalists)
        self.first = self._elimination(names, plan.seeds)
        self.final: Elimination | None = None
        self.turns: list[Turn] = []
        """All that ran, in order."""
        self._runs: dict[tuple[Stage, str], list[tuple[int, RunResult]]] = {}

    def next(self) -> Turn | None:
        stage, race = self._race
        if race.num_closed >= race.num_rounds or not race.alive:
            return None
        waiting = (n for n in race.alive if len(race.samples[n]) == race.num_closed)
        # Hashed from the round and not drawn: a resumed certification has the same seeds.
        text = f"{self._seed_base}/{stage}/{race.num_closed}".encode()
        drawn = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
        seed = FIRST_FRESH_SEED + drawn % NUM_FRESH_SEEDS
        return Turn(stage, race.num_closed, next(waiting), seed)

    def add(self, turn: Turn, run: RunResult) -> tuple[Dropped, ...]:
        assert turn == self.next(), (turn, self.next())
        stage, race = self._race
        self._runs.setdefault((stage, turn.name), []).append((len(self.turns), run))
        self.turns.append(turn)
        race.add(turn.name, self._sample(run))
        if any(len(race.samples[name]) == race.num_closed for name in race.alive):
            return ()
        dropped = race.close_round()
        if race is self.first and race.num_closed == race.num_rounds:
            best = [n for n in self.first.order() if n != self.leader and n in self.first.alive]
            names = (*([self.leader] if self.leader else ()), *best[: self.plan.final])
            final_seeds = self.plan.final_seeds
            self.final = self._elimination(names, final_seeds) if self.plan.final else None
        return dropped

    @property
    def most_runs_left(self) -> int:
        _, race = self._race
        left = sum(race.num_rounds - len(race.samples[name]) for name in race.alive)
        if self.final is None:
            pairs = min(self.plan.final, len(self.first.names)) + (self.leader is not None)
            left += pairs * self.plan.final_seeds if self.plan.final else 0
        return left

    def ranks(self) -> tuple[FinalRank, ...]:
        order = [*(self.final.order() if self.final else ()), *self.first.order()]
        names = [name for name in dict.fromkeys(order) if self._counting(name)[1]]
        leader = self.leader if self.leader in names else next(iter(names), None)
        best_other = next((name for name in names if name != leader), None)
        rivals = {name: best_other if name == leader else leader for name in names}
        compared = {name: self._compare(name, rival) for name, rival in rivals.items()}
        p_values = {n: c.p_value for n, c in compared.items() if c is not None and n != leader}
        adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
        dropped = {d.name: d for race in (self.first, self.final) if race for d in race.dropped}
        return tuple(
            FinalRank(
                name=name,
                stage=stage,
                runs=tuple(run for _, run in runs),
                orders=tuple(order for order, _ in runs),
                rival=rivals[name],
                comparison=compared[name],
                adjusted_p_value=adjusted.get(name),
                dropped=dropped.get(name),
            )
            for name in names
            for stage, runs in [self._counting(name)]
        )

    @property
    def _race(self) -> tuple[Stage, Elimination]:
        return ("first", self.first) if self.final is None else ("final", self.final)

    def _elimination(self, names: Sequence[str], num_rounds: int) -> Elimination:
        drops = self._best is None
        return Elimination(names, num_rounds=num_rounds, miss_s=self._miss_s, drops=drops)

    def _sample(self, run: RunResult) -> Sample:
        """For the best metric m within a time, e^(−m) takes the place of the time.

        It is e^m where less is better; the paired t-test of `compare` sees the log of it.
        """
        sample = sample_of(run)
        if self._best is None:
            return sample
        final = None if run.final is None else run.final.value(self._best.metric)
        is_hit = sample.is_hit and final is not None
        goodness = sign_of(self._best) * final if final is not None else 0.0
        return Sample(math.exp(-goodness), is_hit)

    def _counting(self, name: str) -> tuple[Stage, list[tuple[int, RunResult]]]:
        final = self._runs.get(("final", name))
        return ("final", final) if final else ("first", self._runs.get(("first", name), []))

    def _compare(self, name: str, rival: str | None) -> Comparison | None:
        # Every rival ran the first stage, whatever the last one that it ran in.
        stage = self._counting(name)[0] if ("final", rival) in self._runs else "first"
        both = [self._runs.get((stage, each or ""), []) for each in (name, rival)]
        pairs = [(a, b) for (_, a), (_, b) in zip(*both, strict=False)]
        # Rounds in which one of the two was disturbed say nothing of them.
        pairs = [each for each in pairs if Timing.DISTURBED not in {run.timing for run in each}]
        ours, theirs = ([self._sample(pair[who]) for pair in pairs] for who in (0, 1))
        return compare(ours, theirs, miss_s=self._miss_s) if pairs else None


class CertifyLedger(RunLog):
    """An open ledger: `begin`, `described` (machine and code) and `run`."""

    what = "a certification"
    kinds: ClassVar = {"run": Turn}

    def __init__(self, path: Path) -> None:
        self.first_facts: dict[str, dict[str, Any]] = {}
        """Surroundings before the first run, by contestant."""
        self.last_facts: dict[str, dict[str, Any]] = {}
        """Surroundings after the last run; empty until then."""
        super().__init__(path)

    def described(self, name: str, facts: dict[str, Any], *, is_last: bool = False) -> None:
        event = {"name": name, "facts": facts, "is_last": is_last}
        self.append("described", **event)
        self.take("described", event)

    def take(self, kind: str, event: dict[str, Any]) -> None:
        if kind != "described":
            super().take(kind, event)
        elif event["is_last"]:
            self.last_facts[event["name"]] = event["facts"]
        else:
            # A resumed session describes them again; what counts is before the first run.
            self.first_facts.setdefault(event["name"], event["facts"])

"""The pruner: when a running trial is stopped, and the reason that is reported.

| rule     | a trial is stopped                                        | is it exact?          |
| -------- | --------------------------------------------------------- | --------------------- |
| cap      | when its clock is past the time to beat                   | yes: clocks only grow |
| length   | when 9/10 of its projected end are past the time to beat  | if steps take as long |
|          |                                                           | to within a tenth     |
| rungs    | where it promises less than 3/4 of the runs did there     | no, audited           |

A random twentieth of the trials is exempt from the last, so that it can be judged.
"""

import math
from collections.abc import Sequence

import numpy as np

from tune_speed.core.words import StopKind, StopReason
from tune_speed.tuning.policy.base import Parts, alone
from tune_speed.tuning.policy.curve import distance
from tune_speed.tuning.policy.history import History
from tune_speed.tuning.policy.trials import Trial

NUM_RUNGS = 4
AGAIN = 2.0
"""Times to beat after which a run is stopped that repeats another."""


class EarlyStopping:
    """The rules, over what a policy has seen."""

    def __init__(self, history: History, parts: Parts, *, seed: int) -> None:
        self._history, self._parts, self._seed = history, parts, seed

    def reason(self, trial: Trial) -> StopReason | None:
        """Returns why to stop a trial at its last report, or None."""
        train_s, end_s = trial.clock[-1], self._end_s(trial)
        too_late = self._past_leader(trial, train_s, end_s)
        if too_late is not None or not math.isfinite(trial.metric[-1]):
            return too_late
        if not math.isfinite(end_s) or train_s >= end_s or trial.again:
            return None
        reason = self._below_rung(trial, end_s)
        return None if self._is_audited(trial) else reason

    def _is_audited(self, trial: Trial) -> bool:
        # A draw of the trial's own: the same at each report, and after a resume.
        draw = np.random.default_rng([self._seed, trial.number, 1]).random()
        return bool(draw < self._parts.audit_share)

    def _end_s(self, trial: Trial) -> float:
        return trial.projected_s() if self._history.by_share else self._history.to_beat_s()

    def _past_leader(self, trial: Trial, train_s: float, end_s: float) -> StopReason | None:
        history, leader = self._history, self._history.leader
        if leader is None and not history.target.best:
            return None
        to_beat_s = history.to_beat_s()
        if train_s > to_beat_s:
            # What is run again tells how long its runs take: stopped in time, none ever took long.
            is_late = history.knows_length or not trial.again or train_s > AGAIN * to_beat_s
            return self._too_slow(train_s, to_beat_s) if is_late else None
        if not history.knows_length or math.isnan(end_s):
            return None
        # A shared device slows a run's clock; its isolated time may still be short enough.
        at_least_s = float(np.nanmin([end_s, trial.cost_s])) * self._parts.cost_margin
        if not at_least_s > to_beat_s:
            return None
        return self._too_slow(train_s, to_beat_s).with_figures(end_s=at_least_s)

    def _too_slow(self, at_s: float, to_beat_s: float) -> StopReason:
        history = self._history
        if history.target.best:
            return StopReason.of(StopKind.PAST_LIMIT, at_s=at_s, limit_s=to_beat_s)
        best = (*history.favourites, *alone(history.leader))[0].trial_id
        return StopReason.of(StopKind.SLOWER, at_s=at_s, best=best, best_s=to_beat_s)

    def _below_rung(self, trial: Trial, end_s: float) -> StopReason | None:
        if self._history.knows_length:
            return None
        # Rungs at or before the trial's clock: the first is the earliest.
        rungs_s = self._parts.rung_factor ** np.arange(-NUM_RUNGS, 0.0) * end_s
        level = int((trial.clock[-1] >= rungs_s).sum())
        if level <= trial.rung:
            return None
        trial.rung = level
        place = self._parts.rung_factor ** (level - 1 - NUM_RUNGS)
        num, ahead = self._history.table().standing(
            at=place,
            mine=self._distances(trial, place * end_s),
            running=self._others_at(trial, place),
        )
        if num < self._parts.rung_runs or ahead < self._parts.rung_keeps * (num + 1):
            return None
        figures = {"at_s": trial.clock[-1], "ahead": ahead, "num": num, "by_s": place * end_s}
        return StopReason.of(StopKind.BELOW_RUNG, **figures)

    def _others_at(self, trial: Trial, place: float) -> Sequence[tuple[float, float]]:
        others = [t for t in self._history.running.values() if t is not trial and t.clock]
        marks_s = [place * self._end_s(other) for other in others]
        return [
            self._distances(other, mark_s)
            for other, mark_s in zip(others, marks_s, strict=True)
            if other.clock[-1] >= mark_s
        ]

    def _distances(self, trial: Trial, train_s: float) -> tuple[float, float]:
        clock, start_y = np.append(0.0, trial.clock), self._history.start_y
        y = np.nan_to_num(distance(trial.metric, self._history.ended.level), nan=start_y)
        y = np.append(start_y, y)
        here, before = np.interp([train_s, train_s / 2], clock, y)
        return float(here), float(before)

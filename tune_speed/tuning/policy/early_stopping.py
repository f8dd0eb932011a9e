"""The pruner: when a running trial is stopped, and the reason that is reported.

| rule     | a trial is stopped                                        | is it exact?          |
| -------- | --------------------------------------------------------- | --------------------- |
| cap      | when its clock is past the leader's time                  | yes: clocks only grow |
| length   | when 9/10 of its projected end are past the leader's time | if steps take as long |
|          |                                                           | to within a tenth     |
| rungs    | where it promises less than 3/4 of the runs did there     | no, audited           |
| forecast | when its chance is a tenth of what it was proposed with   | no, audited           |

A random twentieth of the trials is exempt from the last two, so that they can be judged.
"""

import math
from collections.abc import Sequence

import numpy as np

from tune_speed.tuning.policy.base import past_leader
from tune_speed.tuning.policy.curve_table import distance
from tune_speed.tuning.policy.history import History, Trial
from tune_speed.tuning.policy.settings import Parts

NUM_RUNGS = 4


class EarlyStopping:
    """The rules, over what a policy has seen."""

    def __init__(self, history: History, parts: Parts, *, seed: int) -> None:
        self._history, self._parts, self._seed = history, parts, seed

    def reason(self, trial: Trial) -> str | None:
        """Returns why to stop a trial at its last report, or None."""
        train_s = trial.clock[-1]
        end_s = self._end_s(trial)
        too_late = self._past_leader(train_s, end_s, trial.cost_s)
        if too_late is not None or not math.isfinite(trial.metric[-1]):
            return too_late
        if not math.isfinite(end_s) or train_s >= end_s:
            return None
        reason = self._below_rung(trial, end_s) or self._sure_to_miss(trial, end_s)
        return None if self._is_audited(trial) else reason

    def _is_audited(self, trial: Trial) -> bool:
        # A draw of the trial's own: the same at each report, and after a resume.
        draw = np.random.default_rng([self._seed, trial.number, 1]).random()
        return bool(draw < self._parts.audit_share)

    def _end_s(self, trial: Trial) -> float:
        """Returns the end of the trial's axis [s]: of its schedule, or the time to beat."""
        return trial.projected_s() if self._history.by_share else self._history.to_beat_s()

    def _past_leader(self, train_s: float, end_s: float, cost_s: float) -> str | None:
        leader = self._history.leader
        if leader is None or not self._parts.cap:
            return None
        past = past_leader(leader, train_s)
        if past is not None or not self._history.knows_length or math.isnan(end_s):
            return past
        # A shared device slows a run's clock; its isolated time may still be short enough.
        at_least_s = float(np.nanmin([end_s, cost_s])) * self._parts.cost_margin
        if not at_least_s > leader.time_to_target_s:
            return None
        return (
            f"stopped at {train_s:.1f} s: it would not end before {at_least_s:.1f} s, leader"
            f" {leader.trial_id} met the target in {leader.time_to_target_s:.1f} s"
        )

    def _below_rung(self, trial: Trial, end_s: float) -> str | None:
        if not self._parts.rungs or self._history.knows_length:
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
        return (
            f"stopped at {trial.clock[-1]:.1f} s: {ahead} of {num} trials promised more by"
            f" {place * end_s:.1f} s"
        )

    def _others_at(self, trial: Trial, place: float) -> Sequence[tuple[float, float]]:
        """Returns the distances of the other running trials that have come to a place."""
        others = [t for t in self._history.running.values() if t is not trial and t.clock]
        marks_s = [place * self._end_s(other) for other in others]
        return [
            self._distances(other, mark_s)
            for other, mark_s in zip(others, marks_s, strict=True)
            if other.clock[-1] >= mark_s
        ]

    def _distances(self, trial: Trial, train_s: float) -> tuple[float, float]:
        """Returns a running trial's distance at a clock reading, and at half of it."""
        clock, start_y = np.append(0.0, trial.clock), self._history.start_y
        y = np.nan_to_num(distance(trial.metric, self._history.target.value), nan=start_y)
        y = np.append(start_y, y)
        here, before = np.interp([train_s, train_s / 2], clock, y)
        return float(here), float(before)

    def _sure_to_miss(self, trial: Trial, end_s: float) -> str | None:
        before = trial.proposal.expected
        if not self._parts.forecast or before is None:
            return None
        table = self._history.table()
        if table.num_whole() < self._parts.least_whole:
            return None
        train_s = trial.clock[-1]
        y, y_before = self._distances(trial, train_s)
        now = table.updated(before, at=train_s / end_s, y=y, y_before=y_before)
        if now.chance >= self._parts.least_chance * before.chance:
            return None
        use = "meet the target" if before.threshold >= 0 else "come nearer the target than any"
        return (
            f"stopped at {train_s:.1f} s: {now.chance:.1%} likely to {use} by {end_s:.1f} s,"
            f" {before.chance:.0%} when it was proposed"
        )

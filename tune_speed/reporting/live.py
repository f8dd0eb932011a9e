"""What a search shows on stderr while it runs: a line that moves, and one per ended trial."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tune_speed.core.comparability import fastest
from tune_speed.core.records import Evaluation, Status, TrialRecord
from tune_speed.core.text import duration
from tune_speed.reporting.leaderboard.text import describe_params

# Without a terminal, the standing of the search is printed this often.
PIPED_INTERVAL_S = 30.0


class LiveView:
    """Observes the search. On a terminal it redraws one line; piped, it prints plain lines."""

    def __init__(
        self,
        console: Console,
        *,
        trials: int,
        finished: list[TrialRecord],
        time_left_s: Callable[[], float | None],
        metric: str = "accuracy",
    ) -> None:
        """Takes note of trials that have finished already; `metric` is what running ones show."""
        self.console, self.trials = console, trials
        self._time_left_s, self._metric = time_left_s, metric
        self._counts = Counter(record.status for record in finished)
        self._running: dict[str, float | None] = {}
        self._best = fastest(finished)
        self._started = time.monotonic()
        self._num_before = len(finished)
        self._last_printed = time.monotonic()
        # Transient: the moving line disappears in the end, and the lines on ended trials stay.
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def start(self) -> None:
        """Begins to draw, on a terminal."""
        if self.console.is_terminal:
            self._live.start()

    def stop(self) -> None:
        """Ends drawing; ended trials' lines stay."""
        self._live.stop()

    def tick(self) -> None:
        """Redraws; called from the driver's event loop."""
        if self.console.is_terminal:
            self._live.update(
                Text(self.standing(), style="bold", no_wrap=True, overflow="ellipsis")
            )
        elif time.monotonic() - self._last_printed > PIPED_INTERVAL_S:
            self._last_printed = time.monotonic()
            self.note(self.standing())

    def note(self, line: str) -> None:
        """Prints a line."""
        # A `Text`: `[bold]` in a name is no markup.
        self.console.print(Text(line), soft_wrap=True)

    def standing(self) -> str:
        """Returns trials done, running and failed, the best so far and the time left, in a line."""
        done = sum(self._counts.values())
        failed = self._counts[Status.FAILED]
        parts = [f"{done}/{self.trials} trials", f"{len(self._running)} running"]
        parts += [f"{self._counts[Status.REACHED]} met the target", f"{failed} failed"]
        if self._best is not None:
            parts.append(f"best {self._best.time_to_target_s:.2f} s ({self._best.trial_id})")
        parts += [
            f"{metric:.3f} in {name}"
            for name, metric in self._running.items()
            if metric is not None
        ]
        return " · ".join([*parts, self._left()])

    def trial_started(
        self, *, trial_id: str, params: dict[str, Any], recipe: dict[str, Any]
    ) -> None:
        """Notes that a trial runs."""
        self._running[trial_id] = None

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        """Notes how far a running trial is."""
        if trial_id in self._running:
            # A training function may measure other metrics than the target's until its end.
            first = next(iter(evaluation.values.values()), evaluation.loss)
            value = evaluation.value(self._metric)
            self._running[trial_id] = first if value is None else value

    def trial_finished(self, *, record: TrialRecord) -> None:
        """Prints a line on the trial."""
        self._running.pop(record.trial_id, None)
        self._counts[record.status] += 1
        self._best = fastest(best for best in (self._best, record) if best is not None)
        self.note(ended_line(record, is_best=self._best is record))

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        """Prints a line on the trial."""
        self._running.pop(trial_id, None)
        self.note(f"{trial_id} interrupted: {reason}")

    def _left(self) -> str:
        """Returns the time left: the budget's, or as the pace so far suggests."""
        budget_s = self._time_left_s()
        # Trials of earlier sessions took none of this one's time.
        done = sum(self._counts.values()) - self._num_before
        pace_s = (time.monotonic() - self._started) / done if done else None
        to_do = self.trials - sum(self._counts.values())
        # The budget or the pace so far, whichever ends the search first.
        known = [s for s in (budget_s, pace_s * to_do if pace_s else None) if s is not None]
        return f"about {duration(min(known))} left" if known else "time left unknown"


def ended_line(record: TrialRecord, *, is_best: bool) -> str:
    """Returns a line on a trial that has ended, and why it did."""
    line = f"{record.trial_id} {record.status.value:8} {f'{took_s(record):.2f} s':>9}"
    line += f"  {record.stop_reason}{'  ← best so far' if is_best else ''}"
    why = f" · {record.proposal_reason}" if record.proposal_reason else ""
    return f"{line}  [{describe_params(record.params)}{why}]"


def took_s(record: TrialRecord) -> float:
    """Returns the time to target [s], or the training clock of a miss."""
    time_s = record.time_to_target_s
    return record.runs[-1].clocks.train_s if time_s is None else time_s

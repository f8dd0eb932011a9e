"""What a search shows on stderr while it runs: a picture that moves, and a line per ended trial."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tune_speed.core.comparability import fastest, result_text
from tune_speed.core.forecast import Outlook
from tune_speed.core.records import ENDS_IN_WORDS, Evaluation, Status, TrialRecord, ended_as
from tune_speed.core.targets import Target
from tune_speed.core.text import counted, duration, words_cut
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.reporting.watch.screen import STYLES, bar, ended_brief, ended_line, running_table

# Without a terminal, the standing of the search is printed this often.
PIPED_INTERVAL_S = 30.0
MOST_RUNNING = 16
"""Running trials that have a line on a terminal."""


class LiveView:
    """Observes the search. On a terminal it redraws a picture; piped, it prints plain lines."""

    def __init__(
        self,
        console: Console,
        *,
        trials: int,
        finished: list[TrialRecord],
        time_left_s: Callable[[], float | None],
        target: Target,
        is_verbose: bool = False,
    ) -> None:
        """`target` has the metric that is shown; `is_verbose`: a terminal's lines say why, too."""
        self.console, self.trials = console, trials
        self._time_left_s, self._target = time_left_s, target
        self._is_brief = console.is_terminal and not is_verbose
        self._counts = Counter(map(ended_as, finished))
        self._running: dict[str, tuple[Evaluation | None, str]] = {}
        """The last evaluation of each running trial, and what was chosen for it."""
        self._best = fastest(finished)
        self._finished, self._outlook = list(finished), Outlook.of(finished, target)
        self._started = time.monotonic()
        self._num_before = len(finished)
        self._last_printed = time.monotonic()
        # Transient: the picture disappears in the end, and the lines on ended trials stay.
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def start(self) -> None:
        if self.console.is_terminal:
            self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def tick(self) -> None:
        """Redraws; called from the driver's event loop."""
        if self.console.is_terminal:
            self._live.update(self.picture())
        elif time.monotonic() - self._last_printed > PIPED_INTERVAL_S:
            self._last_printed = time.monotonic()
            self.note(self.standing())

    def note(self, line: str) -> None:
        # A `Text`: `[bold]` in a name is no markup.
        self.console.print(Text(line), soft_wrap=True)

    def replan(self, *, trials: int) -> None:
        self.trials = trials

    def picture(self) -> Group:
        done, passed = self._counts.total(), duration(time.monotonic() - self._started)
        parts = [
            f"{bar(done, self.trials)} {done} of {counted(self.trials, 'trial')}",
            passed,
            self._left(),
        ]
        ended = [
            Text(f"{self._counts[word]} {word}", style=STYLES.get(word, ""))
            for word in ENDS_IN_WORDS
            if self._counts[word]
        ]
        goal = self._target.aim if self._best is None else self._best_text()
        rows = [
            (trial_id, *self._progress(evaluation), chosen)
            for trial_id, (evaluation, chosen) in list(self._running.items())[:MOST_RUNNING]
        ]
        more = len(self._running) - len(rows)
        return Group(
            Text(" · ".join(parts), style="bold", no_wrap=True, overflow="ellipsis"),
            Text(" · ", no_wrap=True, overflow="ellipsis").join([*ended, Text(goal)]),
            running_table(rows),
            *([Text(f"and {more} more", style="dim")] if more else []),
        )

    def standing(self) -> str:
        failed = self._counts[Status.FAILED]
        parts = [
            f"{self._counts.total()}/{counted(self.trials, 'trial')}",
            f"{len(self._running)} running",
        ]
        parts += [f"{self._counts[Status.REACHED]} {self._target.did_meet}", f"{failed} failed"]
        parts += [] if self._best is None else [self._best_text()]
        parts += [
            f"{self._metric(evaluation):.3f} in {name}"
            for name, (evaluation, _) in self._running.items()
            if self._metric(evaluation) is not None
        ]
        return " · ".join([*parts, self._left()])

    def trial_started(
        self, *, trial_id: str, params: dict[str, Any], recipe: dict[str, Any]
    ) -> None:
        self._running[trial_id] = None, describe_params(params)

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        if trial_id in self._running:
            self._running[trial_id] = evaluation, self._running[trial_id][1]

    def trial_finished(self, *, record: TrialRecord) -> None:
        self._running.pop(record.trial_id, None)
        self._counts[ended_as(record)] += 1
        self._best = fastest(filter(None, (self._best, record)))
        self._finished.append(record)
        self._outlook = Outlook.of(self._finished, self._target)
        is_best = self._best is record
        if not self._is_brief:
            self.note(ended_line(record, is_best=is_best))
            return
        line = words_cut(ended_brief(record, is_best=is_best), self.console.width)
        text = Text(line, no_wrap=True)
        text.stylize(STYLES.get(record.status, ""), 0, line.index(" ", len(record.trial_id) + 1))
        self.console.print(text)

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        self._running.pop(trial_id, None)
        self.note(f"{trial_id} interrupted: {reason}")

    def _best_text(self) -> str:
        assert self._best is not None
        return f"best {result_text(self._best)} ({self._best.trial_id})"

    def _progress(self, evaluation: Evaluation | None) -> tuple[str, str]:
        if evaluation is None:
            return "not evaluated yet", ""
        value, name = self._metric(evaluation), self._target.metric
        known = f"{name} –" if value is None else f"{name} {value:.4f}"
        return known, f"step {evaluation.step}, {evaluation.train_s:.2f} s"

    def _metric(self, evaluation: Evaluation | None) -> float | None:
        if evaluation is None:
            return None
        # A training function may measure other metrics than the target's until its end.
        first = next(iter(evaluation.values.values()), evaluation.loss)
        value = evaluation.value(self._target.metric)
        return first if value is None else value

    def _left(self) -> str:
        budget_s = self._time_left_s()
        # Trials of earlier sessions took none of this one's time.
        done = self._counts.total() - self._num_before
        pace_s = (time.monotonic() - self._started) / done if done else None
        to_do = self.trials - self._counts.total()
        # The budget or the pace so far, whichever ends the search first.
        known = [s for s in (budget_s, pace_s * to_do if pace_s else None) if s is not None]
        if not known:
            return "time left unknown"
        left = f"about {duration(min(known))} left"
        if pace_s is None or self._outlook is None:
            return left
        goal = self._outlook.words(min(known) / (pace_s * self._counts.total()))
        return ", ".join(filter(None, (left, goal)))

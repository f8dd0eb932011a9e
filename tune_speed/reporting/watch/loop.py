"""Watches a study until its search ends: on a terminal, as lines, or as JSON."""

import json
import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tune_speed.core.errors import ServiceError, StorageError
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.reporting.study.reader import StudyReader
from tune_speed.reporting.watch import screen
from tune_speed.reporting.watch.status import State, StudyStatus, as_dict, fingerprint, glance

# How often a line says how far the search is.
STANDING_S = 30.0
OVER = (State.ENDED, State.NOT_BEGUN)


def watch(
    reader: StudyReader,
    display: "Screen | Lines | Json",
    *,
    interval_s: float,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> None:
    """Shows the study every `interval_s` until no search of it runs; `now`: seconds since 1970.

    Raises: ServiceError or StorageError if it cannot be read the first time; later that is shown.
    """
    view, trouble = reader.read(with_boards=False), None
    seen, changed_s = glance(view, now_s=now()), -math.inf
    while True:
        display.show(seen, trouble)
        if seen.state in OVER and trouble is None:
            return
        sleep(interval_s)
        before = fingerprint(view)
        try:
            view, trouble = reader.read(with_boards=False), None
        # A store that is away for a while must not end a watch.
        except (ServiceError, StorageError) as error:
            trouble = f"not fresh, asking again: {error}"
            continue
        # By the monotonic clock, as the time of day may be set while this watches.
        changed_s = changed_s if fingerprint(view) == before else time.monotonic()
        seen = glance(view, now_s=now(), unchanged_s=time.monotonic() - changed_s)


class Screen:
    """Redraws one picture on a terminal; the last one stays. For `with`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Redrawn by `show` alone: nothing changes between two reads of the store.
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> "Screen":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, seen: StudyStatus, trouble: str | None) -> None:
        """Shows the study; `trouble`: why it is not fresh."""
        hint = "" if seen.state in OVER else screen.HINT
        height = self._console.size.height
        picture = screen.screen(seen, trouble=trouble, height=height, hint=hint)
        self._live.update(picture, refresh=True)


class Lines:
    """Prints a line for each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, str] = {}
        """How each trial stood, by run id."""
        self._last: StudyStatus | None = None
        self._trouble: str | None = None
        self._told_at = 0.0

    def show(self, seen: StudyStatus, trouble: str | None) -> None:
        view = seen.view
        if trouble != self._trouble:
            self._print(trouble or "the store answers again")
        if self._last is None:
            self._print(f"{view.study}: {screen.target_text(seen)}".removesuffix(": "))
            for device in dict.fromkeys(part.key.device for part in view.parts):
                self._print(f"on {device}")
            self._seen = {trial.run_id: "ended" for trial in (*view.trials, *view.certified)}
        best = {trial.run_id for part in seen.parts for trial in part.records}
        for trial in (*view.trials, *view.certified):
            if self._is_new(trial.run_id, "ended"):
                line = screen.ended_line(trial.record, is_best=trial.run_id in best)
                is_estimate = trial.record.kind == "estimate"
                self._print(line if is_estimate else f"{trial.record.verdict}: {line}")
        for running in view.running:
            if self._is_new(running.run_id, "running"):
                chosen = f"  [{describe_params(running.params)}]" if running.params else ""
                self._print(f"{running.trial_id} began{chosen}")
        for at, line in seen.steered[len(self._last.steered) if self._last else 0 :]:
            self._print(f"steered {screen.steered_text(at, line)}")
        self._tell_state(seen)
        self._last, self._trouble = seen, trouble

    def _is_new(self, run_id: str, state: str) -> bool:
        before, self._seen[run_id] = self._seen.get(run_id), state
        return before != state

    def _tell_state(self, seen: StudyStatus) -> None:
        last = self._last
        more = seen.view.interrupted - last.view.interrupted if last else 0
        if more > 0:
            self._print(f"{more} interrupted, without an outcome")
        state = seen.state, seen.is_paused
        is_new_state = last is None or (last.state, last.is_paused) != state
        if is_new_state or time.monotonic() - self._told_at > STANDING_S:
            self._told_at = time.monotonic()
            self._print(f"{screen.state_text(seen)}: {screen.standing(seen)}")

    def _print(self, line: str) -> None:
        self._console.print(Text(screen.plain(line)), soft_wrap=True)


class Json:
    """Prints an object for each refresh, in a line."""

    def show(self, seen: StudyStatus, trouble: str | None) -> None:
        found = as_dict(seen, trouble=trouble)
        # Python buffers a pipe by blocks: its reader would wait for many objects.
        print(json.dumps(found, allow_nan=False), flush=True)

"""Progress of a call: lines for `logging`, or a live view for an interactive session."""

import io
import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tune_speed.core.text import counted, duration, printable_lines
from tune_speed.reporting.live import LiveView
from tune_speed.reporting.table import PlainConsole

if TYPE_CHECKING:
    from tune_speed.tuning.driver.controller import SearchController

LOG = logging.getLogger("tune_speed")
SAY_EVERY_S = 60.0


def is_shown(progress: bool | None) -> bool:
    """Returns whether progress is shown; None: at Python's prompt, in IPython or a notebook."""
    if progress is not None:
        return progress
    # Not imported, which would take time: whoever runs inside IPython has it among the modules.
    ipython: Any = sys.modules.get("IPython")
    in_ipython = ipython is not None and ipython.get_ipython() is not None
    # Python sets `sys.ps1` at its prompt alone.
    return in_ipython or hasattr(sys, "ps1")


class Progress:
    """Reports progress on stderr (in a notebook, below the cell), or to the log."""

    def __init__(
        self,
        *,
        shown: bool,
        on_searched: Callable[[Any], None] | None = None,
        is_verbose: bool = False,
    ) -> None:
        """Calls `on_searched` with a search's study, before it is certified."""
        self._is_shown, self._is_verbose = shown, is_verbose
        # rich shows a console below a notebook's cell unless `force_jupyter` is False.
        never = None if shown else False
        self._console = PlainConsole(
            stderr=shown,
            file=None if shown else _LogLines(),
            # Names of trials are anybody's: `[bold]` in them is text, and numbers get no colours.
            markup=False,
            highlight=False,
            soft_wrap=True,
            color_system="auto" if shown else None,
            force_terminal=never,
            force_jupyter=never,
        )
        self._on_searched = on_searched
        # Images decoded at the first call, when that was, and when a line was written last.
        self._decoding: tuple[int, float, float] | None = None

    @classmethod
    def of(cls, progress: "bool | Progress | None") -> "Progress":
        """Returns what a call was given as `progress`."""
        return progress if isinstance(progress, Progress) else cls(shown=is_shown(progress))

    def line(self, text: str) -> None:
        """Reports a line."""
        # A `Text`, and not folded: a line may hold a command to be copied.
        self._console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Reports a line, as a warning in the log."""
        if self._is_shown:
            self.line(text)
        else:
            LOG.warning("%s", text)

    def decoded(
        self, done: int, total: int, *, doing: str = "preparing data", did: str = "prepared"
    ) -> None:
        """Reports how many images are decoded: on a terminal all along, else each minute.

        With their rate [images/s] since the first call, and the time left by it.
        """
        now = time.monotonic()
        first_done, first_at, said_at = self._decoding = self._decoding or (done, now, now)
        rate = (done - first_done) / max(now - first_at, 1e-9)
        left = f", {rate:,.0f} a second, {duration((total - done) / rate)} left" if rate else ""
        # Only a terminal gets each step: in a log `\r` ends no line.
        if done >= total:
            self._decoding = None
            self.line(f"data: {counted(total, 'image')} {did}")
        elif self._console.is_terminal:
            # Spaces at the end: what was there before may be longer.
            text = f"{doing}: {done:,} of {total:,} images{left}"
            print(f"{text:<78}", end="\r", file=self._console.file)
        elif now - said_at > SAY_EVERY_S:
            self._decoding = first_done, first_at, now
            self.line(f"{doing}: {done:,} of {total:,} images{left}")

    def searched(self, study: Any) -> None:
        """Reports what a search found."""
        if self._on_searched is not None:
            self._on_searched(study)

    def view(self, controller: "SearchController") -> LiveView:
        """Returns what observes a search."""
        study = controller.study
        self.line(
            f"{study.name}: {counted(study.search.trials, 'trial')},"
            f" {study.search.at_once} at a time;"
            f" {study.workload.target.aim}, {study.workload.mode}"
        )
        return LiveView(
            self._console,
            trials=study.search.trials,
            finished=list(controller.ledger.records.values()),
            time_left_s=controller.time_left_s,
            target=study.workload.target,
            is_verbose=self._is_verbose,
        )


class _LogLines(io.StringIO):
    """A text file whose lines are log records."""

    def write(self, text: str, /) -> int:
        # rich writes a whole rendering at once, which may have several lines, and empty ones.
        for line in text.splitlines():
            if line.strip():
                LOG.info("%s", printable_lines(line))
        return len(text)

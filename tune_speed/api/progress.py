"""How far a call is: lines for `logging`, or a live view for who sits before it."""

import io
import logging
import sys
from typing import Any

from rich.text import Text

from tune_speed.core.text import printable_lines
from tune_speed.reporting.display import PlainConsole
from tune_speed.reporting.live import LiveView
from tune_speed.tuning.driver.controller import SearchController

LOG = logging.getLogger("tune_speed")


def is_shown(progress: bool | None) -> bool:
    """Returns whether progress is shown: where None, in a notebook or another interactive session.

    A script's stderr is its own: it learns of progress through `logging`.
    """
    return is_interactive() if progress is None else progress


def is_interactive() -> bool:
    """Returns whether somebody types the calls: Python's prompt, IPython or a notebook."""
    ipython: Any = sys.modules.get("IPython")
    in_ipython = ipython is not None and ipython.get_ipython() is not None
    return in_ipython or hasattr(sys, "ps1")


class Progress:
    """Where news of a call goes: to stderr (in a notebook, below the cell), or to the log."""

    def __init__(self, *, shown: bool) -> None:
        self._console = _stderr() if shown else _log_console()

    def line(self, text: str) -> None:
        """Tells a line."""
        self._console.print(Text(text), soft_wrap=True)

    def decoded(self, done: int, total: int) -> None:
        """Tells that all images are decoded."""
        if done >= total:
            self.line(f"data: {total} images prepared")

    def view(self, controller: SearchController) -> LiveView:
        """Returns what observes a search."""
        study = controller.study
        self.line(
            f"{study.name}: {study.search.trials} trials, {study.search.at_once} at a time;"
            f" target {study.workload.target.words}"
        )
        return LiveView(
            self._console,
            trials=study.search.trials,
            finished=list(controller.ledger.records.values()),
            time_left_s=controller.time_left_s,
            metric=study.workload.target.metric,
        )


def _stderr() -> PlainConsole:
    return PlainConsole(stderr=True, markup=False, highlight=False, soft_wrap=True)


def _log_console() -> PlainConsole:
    return PlainConsole(
        file=_LogLines(),
        markup=False,
        highlight=False,
        soft_wrap=True,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,  # Else rich would show it below the cell.
    )


class _LogLines(io.StringIO):
    """A text file whose lines are log records."""

    def write(self, text: str, /) -> int:
        for line in text.splitlines():
            if line.strip():
                LOG.info("%s", printable_lines(line))
        return len(text)

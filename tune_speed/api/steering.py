"""Steering a running search from Python: what `tune-speed try` and `tune-speed steer` do."""

from collections.abc import Mapping
from typing import Any

from tune_speed.api.entry import in_python
from tune_speed.tuning.driver import control
from tune_speed.tuning.driver.control import WAIT_S
from tune_speed.tuning.driver.requests import Answer


class Steering:
    """The search of a study that runs, in whatever process, on a machine that has its folder.

    A call returns the driver's answer, or raises ConfigError (it cannot be, no search runs, or the
    driver refuses), ServiceError (no answer within `wait_s`) or StorageError.
    """

    def __init__(self, study: str, *, wait_s: float = WAIT_S) -> None:
        """Looks at nothing yet."""
        self.study, self.wait_s = study, wait_s

    def try_next(self, params: Mapping[str, Any]) -> Answer:
        """Adds a trial, the next to begin; what `params` (by short names too) lack is filled."""
        return self.send({"action": "try", "params": dict(params)})

    def stop(self, trial_id: str) -> Answer:
        """Ends a trial that runs, with what it has measured so far."""
        return self.send({"action": "stop", "trial": trial_id})

    def pause(self) -> Answer:
        """Lets no trial begin; those that run go on to their ends."""
        return self.send({"action": "pause"})

    def go_on(self) -> Answer:
        """Lets trials begin again."""
        return self.send({"action": "go-on"})

    def set(self, **changes: Any) -> Answer:
        """Changes `trials`, `concurrent` or `time_budget` (None: no limit)."""
        return self.send({"action": "set", **changes})

    @in_python
    def send(self, request: Mapping[str, Any]) -> Answer:
        """Writes a request, `action` and its fields, such as `{"action": "stop", "trial": …}`."""
        return control.send(self.study, request, wait_s=self.wait_s)

    def history(self) -> list[dict[str, Any]]:
        """Returns all requests, answered or not, as dicts. Raises: ConfigError, StorageError."""
        return control.history(self.study)

"""A server of live pages in a thread, and a study that runs while they are looked at."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from page_views import trained

from tune_speed.cli.watch import recipe_text
from tune_speed.core.records import Evaluation, Status, TrialRecord
from tune_speed.reporting.server.address import address_of, listen
from tune_speed.reporting.server.run import server_of
from tune_speed.tracking import Tracker, open_store

RECIPE = {"batch_size": 64}
TAGS = {"workload": "digits", "target": "accuracy ≥ 0.9", "mode": "fixed_length", "trials": "20"}


@contextmanager
def serving(uri: str, *, port: int = 0) -> Iterator[str]:
    """Serves a store's pages; yields their address, without a slash at its end."""
    with listen("127.0.0.1", port) as listener:
        server = server_of(listener, uri, token=None, recipe_yaml=recipe_text)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address_of(listener, token=None).rstrip("/")
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            assert not thread.is_alive(), "the server must end though streams are open"


class Search:
    """A search that runs, one call a step."""

    def __init__(self, uri: str, *, study: str = "study") -> None:
        self.study = study
        client = open_store(uri)
        self.tracker = Tracker(
            client, study=study, study_tags=TAGS, parent_kind="search", linger_s=0.02
        )

    def start(self, trial_id: str) -> None:
        self.tracker.trial_started(trial_id=trial_id, params={"batch_size": 64}, recipe=RECIPE)

    def evaluated(self, trial_id: str, evaluation: Evaluation) -> None:
        self.tracker.trial_evaluated(trial_id=trial_id, evaluation=evaluation)

    def finish(
        self, trial_id: str, *, time_s: float = 1.0, status: Status = Status.REACHED
    ) -> None:
        self.put(trained(trial_id, status, time_s=time_s, study=self.study))

    def put(self, record: TrialRecord) -> None:
        self.tracker.trial_finished(record=record)

    def end(self) -> None:
        assert self.tracker.close(timeout_s=30) == ()


def wait_for(holds: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """Waits until it holds; fails if that takes longer."""
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, "it does not come to hold"
        time.sleep(0.05)

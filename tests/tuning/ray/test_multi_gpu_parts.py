import pickle
from typing import Any

import pytest

from tune_speed.training.distributed import local
from tune_speed.training.distributed.supervisor import Ended, Standing
from tune_speed.tuning.ray import liveness
from tune_speed.tuning.ray.liveness import TrialHung, run_on_node, watch_rank


class Line:
    def __init__(self) -> None:
        self.said: list[Ended] = []

    def ask(self, standing: Standing) -> str | None:
        raise AssertionError(standing)

    def tell(self, ended: Ended) -> None:
        self.said.append(ended)


def test_a_rank_that_hangs_says_where_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[Any] = []

    class Watchdog:
        def __init__(self, *, on_hang: Any) -> None:
            watched.append(on_hang)

        def watch(self, *, limit_s: float) -> None:
            watched.append(limit_s)

    monkeypatch.setattr(liveness, "Watchdog", Watchdog)
    monkeypatch.setattr(liveness, "LEAVE_S", 0.0)
    monkeypatch.setattr(liveness, "leave", lambda: watched.append("left"))
    watch_rank(line := Line(), limit_s=9.0)
    on_hang, limit_s = watched
    assert (limit_s, line.said) == (9.0, [])
    on_hang("Thread training: here", 12.0)
    (ended,) = line.said
    assert ended.rank == 0 and isinstance(ended.error, TrialHung) and watched[-1] == "left"
    assert str(ended.error) == "no step for 12 s\nThread training: here"


@pytest.mark.parametrize(("hang_after_s", "is_watched"), [(9.0, True), (float("inf"), False)])
def test_ranks_are_watched_where_they_may_not_hang_for_ever(
    monkeypatch: pytest.MonkeyPatch, hang_after_s: float, is_watched: bool
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(local, "run_here", lambda spec, **rest: given.append(rest))
    spec: Any = None
    run_on_node(spec, interrupt=bool, hang_after_s=hang_after_s)
    watch = given[0]["watch"]  # Which ranks get pickled.
    assert (pickle.loads(pickle.dumps(watch)) is not None) == is_watched

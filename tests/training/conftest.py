"""Steps are timed for a tenth of the usual time: how precisely is tested in `runtime`."""

import pytest

from tune_speed.runtime import step_timer


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARM_UP_S", "SHORTEST_S", "LONGEST_S"):
        monkeypatch.setattr(step_timer, name, getattr(step_timer, name) / 10)

import time

import pytest

from tune_speed.api.progress import Progress
from tune_speed.core.text import duration


def test_decoding_says_its_rate_and_the_time_left(capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress(shown=True)
    for done in (0, 500, 1000):
        progress.decoded(done, 11_000)
        now[0] += 50
    progress.decoded(11_000, 11_000)
    said = capfd.readouterr().err.replace("\n", " ")
    # 1,000 images in 100 s.
    assert f"1,000 of 11,000 images, 10 a second, {duration(1000.0)} left" in said
    assert "11,000 images prepared" in said

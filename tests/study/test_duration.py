import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.study.settings import parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("2d 1s", 172801), (90, 90)],
)
def test_duration_is_read_in_its_units(text, seconds):
    assert parse_duration_s(text) == seconds


@given(
    st.integers(0, 30), st.integers(0, 99), st.integers(0, 99), st.integers(0, 999), st.booleans()
)
def test_duration_is_the_sum_of_its_parts(days, hours, minutes, seconds, zeros):
    parts = {"d": days, "h": hours, "m": minutes, "s": seconds}
    text = "".join(f"{n}{unit}" for unit, n in parts.items() if n or zeros)
    whole = datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if whole:
        assert parse_duration_s(text) == whole.total_seconds()
        return
    with pytest.raises(ValueError):
        parse_duration_s(text)


@pytest.mark.parametrize(
    "text", ["", "s", "90", "1m1h", "-1s", "1e3s", "1 hour", "0s", 0, -5, "9" * 400 + "s"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="must be a duration above 0"):
        parse_duration_s(text)

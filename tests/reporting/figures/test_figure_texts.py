import pytest
from helpers.reporting.figures import make_trial
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.records import Status
from tune_speed.core.text import counted
from tune_speed.reporting.figures.facts import clean, duration, number, score, shortened, tooltip


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (1.0843, "1.08 s"),
        (299, "299 s"),
        (735, "12.2 min"),
        (14800, "4.11 h"),
        (0.0123, "0.0123 s"),
    ],
)
def test_durations_have_three_digits_and_a_unit(time_s: float, text: str) -> None:
    assert duration(time_s) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (1e-4, "1e-4"), (1.364e-4, "1.36e-4"), (30712, "30700"), (-2, "-2")],
)
def test_numbers_are_plain(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(min_value=-1e300, max_value=1e300))
def test_numbers_keep_three_digits(value: float) -> None:
    assert float(number(value)) == pytest.approx(value, rel=6e-3)


def test_scores_and_counts() -> None:
    assert (score(0.97), score(0.98263), score(1.0)) == ("0.97", "0.9826", "1")
    assert (counted(1, "trial"), counted(0, "trial")) == ("1 trial", "0 trials")


@given(st.text(), st.integers(min_value=3, max_value=40))
def test_shortened_names_fit_and_hold_no_control_characters(text: str, width: int) -> None:
    short = shortened(text, width)
    assert len(short) <= width
    assert short.isprintable() or not short or any(c.isspace() or ord(c) > 127 for c in short)
    assert short == clean(text) or "…" in short


def test_long_names_keep_both_ends() -> None:
    assert shortened("optimizer.adamw.weight_decay", 15) == "optimiz…t_decay"


def test_tooltip_names_the_trial_its_time_and_its_parameters() -> None:
    trial = make_trial("t0007", time_s=1.234, params={"optimizer.sgd.lr": 0.05})
    assert tooltip(trial.record) == "t0007 · 1.23 s · lr=0.05"
    missed = make_trial("t0008", Status.OOM, params={"name": "x" * 500})
    assert tooltip(missed.record).startswith("t0008 · oom · name=xxx")
    assert len(tooltip(missed.record)) <= 110

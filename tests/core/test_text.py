import math
from datetime import UTC, datetime

import pytest

from tune_speed.core import text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.Interval(0.7, 0.4, 0.9).text(".0%"), "70% (40% to 90%)"),
        (text.Interval(0.9, 0.89, 0.91).text(".4f", to="–"), "0.9000 (0.8900–0.9100)"),
        (text.Interval(0.7).text(".0%"), "70%"),
        (f"{text.Interval(0.7, 0.4, 0.9):.0%}", "70%"),
        (text.significant(0.123456), "0.1235"),
        (text.significant(1234567.0, 3), "1.23e+06"),
        (text.significant(None), "–"),
        (text.fixed(0.126, 2), "0.13"),
        (text.fixed(None, 2, none=""), ""),
        (text.compact(0.8123), "0.812"),
        (text.compact(1.2), "1.20"),
        (text.compact(99.96), "100"),
        (text.compact(1234.4), "1,234"),
        (text.compact(0.0), "0"),
        (text.compact(100.0), "100"),
        (text.compact(-1234.4), "-1,234"),
        (text.compact(None), "–"),
        (text.fixed(None, 2), "–"),
        (text.percent(None), "–"),
        (text.factor(None), "–"),
        (text.percent(0.95), "95 %"),
        (text.percent(0.12345), "12.3 %"),
        (text.factor(1.254), "1.25×"),
        (text.seconds(1.23456), "1.235 s"),
        (text.seconds(84.26, 1), "84.3 s"),
        (text.seconds(None), "∞"),
        (text.seconds(math.inf), "∞"),
        (text.duration(5.4), "5 s"),
        (text.duration(59.4), "59 s"),
        (text.duration(60), "1 min 0 s"),
        (text.duration(185), "3 min 5 s"),
        (text.duration(3600), "1 h 0 min"),
        (text.duration(7800), "2 h 10 min"),
        (text.duration(-1), "0 s"),
        (text.interval(1.184, None), "1.18–∞"),
        (text.interval(1.184, 1.236, 1), "1.2–1.2"),
        (text.interval(1.184, math.inf), "1.18–∞"),
        (text.counted(1, "trial"), "1 trial"),
        (text.counted(0, "trial"), "0 trials"),
        (text.counted(1200, "trial"), "1,200 trials"),
        (text.first_line("\n  a b \nc"), "a b"),
        (text.first_line("abc", most=2), "ab"),
        (text.first_line(" \n"), ""),
        (text.middle_cut("abcdef", 6), "abcdef"),
        (text.middle_cut("abcdef", 5), "ab…ef"),
        (text.middle_cut("abcdef", 4), "ab…f"),
        (
            text.printable("a\x1b[2J\n模"),
            "a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}模",
        ),
        (text.printable_lines("a\n\tb\x9b\n"), "a\n\tb\N{REPLACEMENT CHARACTER}\n"),
    ],
)
def test_values_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected


def test_short_name_is_the_shortest_ending_of_its_own() -> None:
    names = ["optimizer.sgd.lr", "optimizer.adamw.lr", "batch_size", "lr", "a.batch"]
    assert text.short_names(names) == {
        "optimizer.sgd.lr": "sgd.lr",
        "optimizer.adamw.lr": "adamw.lr",
        "batch_size": "batch_size",
        "lr": "lr",  # Others end with it too, but it has no longer ending.
        "a.batch": "batch",
    }
    assert text.short_names(["a.lr", "a.lr"]) == {"a.lr": "lr"}


def test_moment_is_in_utc_and_taken_for_it_without_a_zone() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for written in ("2026-01-01T12:00:00", "2026-01-01T14:00:00+02:00", "2026-01-01T12:00:00Z"):
        found = text.moment_of(written)
        assert found == noon and found.tzinfo is UTC
        assert text.moment_s(written) == noon.timestamp()


@pytest.mark.parametrize("written", ["", "yesterday", "0001-01-01T00:00:00+10:00"])
def test_text_that_says_no_moment_is_long_ago(written: str) -> None:
    assert text.moment_of(written) is None
    assert text.moment_s(written) == 0.0


@pytest.mark.parametrize(
    ("whole", "width", "cut"),
    [("one two", 7, "one two"), ("one two", 6, "one …"), ("one two", 4, "…"), ("", 3, "")],
)
def test_what_is_too_long_loses_its_last_words(whole: str, width: int, cut: str) -> None:
    assert text.words_cut(whole, width).strip() == cut

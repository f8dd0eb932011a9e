import math

import pytest

from tune_speed.core import text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
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
        (text.percent(0.95), "95 %"),
        (text.percent(0.12345), "12.3 %"),
        (text.factor(1.254), "1.25×"),
        (text.seconds(1.23456), "1.235 s"),
        (text.seconds(84.26, 1), "84.3 s"),
        (text.seconds(None), "∞"),
        (text.seconds(math.inf), "∞"),
        (text.duration(5.4), "5 s"),
        (text.duration(185), "3 min 5 s"),
        (text.duration(7800), "2 h 10 min"),
        (text.duration(-1), "0 s"),
        (text.interval(1.184, None), "1.18–∞"),
        (text.interval(1.184, 1.236, 1), "1.2–1.2"),
        (text.counted(1, "trial"), "1 trial"),
        (text.counted(1200, "trial"), "1,200 trials"),
        (text.first_line("\n  a b \nc"), "a b"),
        (text.first_line("abc", most=2), "ab"),
        (text.first_line(" \n"), ""),
        (text.middle_cut("abcdef", 6), "abcdef"),
        (text.middle_cut("abcdef", 5), "ab…ef"),
        (text.middle_cut("abcdef", 4), "ab…f"),
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

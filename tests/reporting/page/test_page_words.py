import pytest

from tune_speed.core.text import short_names
from tune_speed.reporting.page import words


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (0.8119, "0.812 s"),
        (1.2, "1.20 s"),
        (84.26, "84.3 s"),
        (99.96, "100 s"),
        (1234.5, "1,234 s"),
        (18720.0, "5.2 h"),
    ],
)
def test_seconds_have_three_digits_or_all_before_the_point(
    value_s: float | None, text: str
) -> None:
    assert words.seconds(value_s) == text


def test_moment_is_told_in_utc_whatever_its_zone() -> None:
    assert words.moment("2026-11-21T19:23:32.5+02:00") == "2026-11-21 17:23:32 UTC"
    assert (words.moment("yesterday"), words.moment("")) == ("yesterday", "–")
    assert words.file_stem("a b/<c>'") == "a_b__c__"


def test_only_web_addresses_become_links() -> None:
    assert words.web_address("https://host/#/runs/1") == "https://host/#/runs/1"
    for url in ("javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", "", None):
        assert words.web_address(url) is None


def test_short_names_are_the_shortest_endings_that_stay_apart() -> None:
    names = ["optimizer.sgd.lr", "optimizer.adamw.lr", "epochs", "model.resnet20.stem"]
    assert list(short_names(names).values()) == ["sgd.lr", "adamw.lr", "epochs", "stem"]
    assert len(set(short_names(["lr", "optimizer.lr"]).values())) == 2


def test_tags_that_programs_read_are_not_told() -> None:
    packed = {"boards": '[{"a": 1', "boards.1": "2}]", "recommended": '["x"]', "one": '{"b": 2}'}
    said = {"policy": "time_to_target", "env.torch": "2.15", "packing": "1 at a time {a}"}
    assert words.told_tags({**packed, **said}) == said

import re
from pathlib import Path

import pytest

from tune_speed.cli import main
from tune_speed.components.metrics import METRICS
from tune_speed.reporting.listings.listings import (
    BEGIN,
    END,
    INVENTORY,
    TABLES,
    first_sentence,
    listing,
    resolve,
    technique_rows,
    techniques_table,
)

ROOT = Path(__file__).parents[3]
PLACES = sorted({where for item in INVENTORY.values() for where in item.where})


def is_file(where: str) -> bool:
    return "/" in where


def is_command(where: str) -> bool:
    return where.startswith("tune-speed ")


def test_all_121_items_are_there_once() -> None:
    assert list(INVENTORY) == list(range(1, 122))


@pytest.mark.parametrize("number", INVENTORY)
def test_item_has_a_place_or_says_in_a_sentence_why_not(number: int) -> None:
    item = INVENTORY[number]
    assert item.name
    assert item.where or len(item.about) > 30
    assert all(text.endswith(".") for text in (item.about, item.note) if text)


@pytest.mark.parametrize("where", [w for w in PLACES if not is_file(w) and not is_command(w)])
def test_place_in_the_code_exists_and_says_what_it_is(where: str) -> None:
    assert len(resolve(where).about) > 10


@pytest.mark.parametrize("where", [w for w in PLACES if is_file(w)])
def test_file_or_test_exists(where: str) -> None:
    file, _, test = where.partition("::")
    assert (ROOT / file).is_file()
    assert not test or f"\ndef {test}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("where", [w for w in PLACES if is_command(w)])
def test_command_and_its_option_exist(where: str) -> None:
    _, name, *options = where.split()
    callbacks = {
        command.name or command.callback.__name__: command.callback for command in COMMANDS
    }
    parameters = callbacks[name].__annotations__
    assert {option.removeprefix("--") for option in options} <= set(parameters)


COMMANDS = [command for command in main.app.registered_commands if command.callback]


def test_every_item_is_in_a_row() -> None:
    numbers: list[int] = []
    for row in technique_rows():
        ends = [int(number) for number in re.findall(r"\d+", row["items"])]
        numbers += range(ends[0], ends[-1] + 1) if ends else []
    assert numbers == list(INVENTORY)


@pytest.mark.parametrize("kind", TABLES)
def test_every_entry_of_the_tables_is_in_a_row(kind: str) -> None:
    """What the sources do not name stands below what they do."""
    shown = {row["where"].split(":")[-1].strip() for row in technique_rows() if row["items"] == "–"}
    named = {where.split(".")[1] for where in PLACES if where.startswith(f"{kind}.")}
    assert set(TABLES[kind][0]) <= shown | named


def test_rows_say_something() -> None:
    assert all(row["name"] and len(row["about"]) > 10 for row in technique_rows())


def test_techniques_md_has_the_table_as_it_is_generated() -> None:
    page = (ROOT / "search_spaces" / "TECHNIQUES.md").read_text()
    block = page.partition(BEGIN)[2].partition(END)[0]
    assert block.strip() == techniques_table()


def test_table_is_markdown_of_five_columns() -> None:
    header, rule, *rows = techniques_table().partition("\n\n")[0].splitlines()
    assert header == "| # | what | name here | in one line | what the sources claim |"
    assert rule.count("---") == 5
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)


def test_sentence_ends_at_its_full_stop() -> None:
    assert first_sentence("One\n    line. And more.\n\nBelow.") == "One line."
    assert first_sentence("ResNet-18: 11.2 million parameters.") == (
        "ResNet-18: 11.2 million parameters."
    )


def test_unknown_place_is_an_error() -> None:
    for where in ("models.resnet21", "recipe.accumulation", "optim.sgd.rate", "plans.a"):
        with pytest.raises(KeyError):
            resolve(where)


def test_listing_of_metrics_is_the_table() -> None:
    assert [row["name"] for row in listing("metrics")] == list(METRICS)

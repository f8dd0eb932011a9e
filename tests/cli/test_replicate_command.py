"""`tune-speed replicate`: what there is to run, and one that runs in seconds, in each format."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.command import Done

Call = Callable[..., Done]


def listed(call: Call, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = call("replicate", "--list", "--json", folder=folder).json
    return rows


def test_every_shipped_replication_is_listed_with_its_title(tmp_path: Path, call: Call) -> None:
    files = Path(__file__).parents[2].joinpath("search_spaces", "replications").glob("*.yaml")
    rows = listed(call, tmp_path)
    assert {row["name"] for row in rows} == {file.stem for file in files}
    assert all(row["title"] and row["profiles"] for row in rows)
    table = call("replicate", "--list", "--format", "markdown", folder=tmp_path).out
    assert all(row["name"] in table for row in rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, so that an experiment runs once and is printed again from what it left."""
    return tmp_path_factory.mktemp("replicate")


@pytest.mark.parametrize("form", ["json", "csv", "markdown", "table"])
def test_outcome_has_each_claim_in_every_format(folder: Path, call: Call, form: str) -> None:
    done = call("replicate", "quick_answers", "--profile", "cpu", "--format", form, folder=folder)
    assert done.code == 0, done.err
    assert "wrote " in done.err
    printed = call("replicate", "quick_answers", "--profile", "cpu", "--json", folder=folder).json
    assert printed["checks"]
    if form == "json":
        assert json.loads(done.out) == printed
    elif form == "csv":
        rows = list(csv.DictReader(done.out.splitlines()))
        assert [row["check"] for row in rows] == [check["check"] for check in printed["checks"]]

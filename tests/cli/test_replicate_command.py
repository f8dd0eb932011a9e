"""`tune-speed replicate`: what there is to run, and one that runs in seconds, in each format."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

from helpers.command import Done

from tune_speed.experiments.replication.shipped import replication_listing, shipped_replications

Call = Callable[..., Done]
QUICK = ("replicate", "quick_answers", "--profile", "cpu", "--format")


def test_list_has_every_file_in_the_order_of_the_experiments(tmp_path: Path, call: Call) -> None:
    done = call("replicate", "--list", "--format", "csv", folder=tmp_path)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    items = [[int(item) for item in row["items"].split()] for row in rows]
    assert sorted(row["name"] for row in rows) == sorted(shipped_replications())
    known = [item for item in items if item]
    assert items[: len(known)] == sorted(known)
    assert all("cpu" in row["profiles"].split() and row["title"] for row in rows)
    assert call("replicate", "--json", folder=tmp_path).json == replication_listing()


def test_outcome_has_each_answer_in_every_format(tmp_path: Path, call: Call) -> None:
    done = call(*QUICK, "json", folder=tmp_path)
    assert done.code == 0 and "wrote " in done.err
    answers = done.json["checks"]
    rows = list(csv.DictReader(call(*QUICK, "csv", folder=tmp_path).out.splitlines()))
    assert [row["check"] for row in rows] == [answer["check"] for answer in answers]
    shown = [
        " ".join(call(*QUICK, form, folder=tmp_path).out.split()) for form in ("markdown", "table")
    ]
    assert all(row["agrees"] in shown[0] and row["agrees"].split()[0] in shown[1] for row in rows)

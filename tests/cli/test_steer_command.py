"""What `try` and `steer` say before any search is asked; searches are in tests/faults."""

import json
from pathlib import Path

import pytest
from helpers.command import TINY_STUDY, run_inside

from tune_speed.tuning.driver.control import driving
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.requests import Answer, read_request

REQUEST = {"id": "0123abcd", "at": "2026-01-02T03:04:05.000+00:00", "action": "pause"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    study = tmp_path / "tune_speed_studies" / "tiny"
    study.mkdir(parents=True)
    (study / "study.yaml").write_text(TINY_STUDY)
    answer = Answer(request=read_request(REQUEST), at="2026-01-02T03:04:06.000+00:00", text="done")
    with Ledger(study) as ledger:
        ledger.begin({})
        ledger.steered(answer)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["steer", "tinny", "pause"], "where there are tiny, but got tinny"),
        (["steer", "tiny", "pause"], "no search of it runs"),
        (["steer", "tiny", "pause", "now"], "`pause` must stand alone, but got now"),
        (["steer", "tiny", "stop"], "`stop` must have one trial, but got 0"),
        (["steer", "tiny", "stop", "7"], "trial: must match"),
        (["steer", "tiny", "set"], "must set one of trials, concurrent"),
        (["steer", "tiny", "set", "trials"], "trials: must be written as path=value"),
        (["steer", "tiny", "set", "trials="], "must have a value after `=`"),
        (["steer", "tiny", "set", "concurrent=0"], "concurrent: must be greater than 0"),
        (
            ["steer", "tiny", "set", "target=2"],
            "target: must be left out",
        ),
        (["try", "tiny", "lr=7"], "optimizer.sgd.lr: must be from 0.02 to 0.4 (log), but got 7"),
        (["try", "tiny", "momentum=0.9"], "must be searched in the recipe"),
    ],
)
def test_wrong_requests_end_at_once_and_say_why(
    folder: Path, arguments: list[str], said: str
) -> None:
    done = run_inside(*arguments, folder=folder)
    assert (done.code, done.out) == (2, "")
    assert said in done.err and "Traceback" not in done.err


def test_steering_without_an_action_lists_what_was_done(folder: Path) -> None:
    study = folder / "tune_speed_studies" / "tiny"
    waits = {**REQUEST, "id": "ffffffff", "action": "set", "trials": 9}
    lines = [json.dumps(each) + "\n" for each in (REQUEST, waits)]
    (study / "control.jsonl").write_text("".join(lines))
    assert run_inside("steer", "tiny", folder=folder).out.splitlines() == [
        "2026-01-02 03:04:05  pause: done",
        "2026-01-02 03:04:05  set trials=9: waits: the next search with --resume acts on it",
    ]
    first, second = run_inside("steer", "tiny", "--json", folder=folder).json
    assert (first["answer"], second["answer"], second["trials"]) == ("done", None, 9)


def test_request_that_waits_for_a_running_search_says_so(folder: Path) -> None:
    study = folder / "tune_speed_studies" / "tiny"
    (study / "control.jsonl").write_text(json.dumps({**REQUEST, "id": "ffffffff"}) + "\n")
    with driving(study):
        (_, line) = run_inside("steer", "tiny", folder=folder).out.splitlines()
    assert line.endswith("pause: waits: the search has not acted on it yet")

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tune_speed.core.errors import ConfigError, ServiceError, StorageError
from tune_speed.training.trial import utc_now
from tune_speed.tuning.driver import control
from tune_speed.tuning.driver.control import FILE, Inbox, driving, is_driven
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.requests import Answer, Request, read_request

STUDY = """
study: steered
workload: {target: {metric: accuracy, value: 0.9, mode: max}}
recipe:
  model: {choices: {resnet20: {}, resnet18: {width: {low: 1, high: 4}}}}
  optimizer: {choices: {sgd: {lr: {low: 0.01, high: 1.0}}, adamw: {lr: {low: 0.001, high: 0.1}}}}
  epochs: {low: 1, high: 20}
"""
PAUSE = {"action": "pause"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(tmp_path))
    folder = tmp_path / "steered"
    folder.mkdir()
    (folder / "study.yaml").write_text(STUDY)
    (folder / "ledger.jsonl").touch()
    return folder


@pytest.fixture
def ledger(folder: Path) -> Iterator[Ledger]:
    with Ledger(folder) as ledger, driving(folder):
        yield ledger


def send(fields: dict[str, Any], *, wait_s: float = 0.0) -> Answer:
    return control.send("steered", fields, wait_s=wait_s)


def unanswered(*requests: dict[str, Any]) -> None:
    for fields in requests:
        with pytest.raises(ServiceError, match="has not acted on it for 0 s, and still may"):
            send(fields)


def words(requests: list[Request]) -> list[str]:
    return [request.words for request in requests]


def test_answer_in_the_ledger_is_that_of_its_own_request(ledger: Ledger, folder: Path) -> None:
    unanswered(PAUSE)
    inbox, found = Inbox(folder), list[Answer]()
    (other,) = inbox.new()
    asking = threading.Thread(target=lambda: found.append(send({"action": "go-on"}, wait_s=20)))
    asking.start()
    while not (new := inbox.new()):
        pass
    ledger.steered(Answer(request=other, at=utc_now(), text="not yours"))
    ledger.steered(Answer(request=new[0], at=utc_now(), text="yours"))
    asking.join()
    assert [answer.text for answer in found] == ["yours"]


def test_requests_are_read_in_their_order_each_once(ledger: Ledger, folder: Path) -> None:
    inbox = Inbox(folder)
    unanswered(PAUSE, {"action": "stop", "trial": "t0003"})
    assert words(inbox.new()) == ["pause", "stop t0003"]
    unanswered({"action": "set", "trials": 7, "time_budget": None})
    assert words(inbox.new()) == ["set trials=7 time_budget=null"]
    assert inbox.new() == []


def test_piece_of_a_killed_writers_line_costs_no_request(ledger: Ledger, folder: Path) -> None:
    (folder / FILE).write_text('{"id": "0000')
    inbox = Inbox(folder)
    assert inbox.new() == []
    unanswered(PAUSE)
    assert words(inbox.new()) == ["pause"]


@pytest.mark.parametrize(
    "line",
    ["nothing", "[]", "{}", '{"id": "00000000", "at": "", "action": "delete"}', '{"action": []}'],
)
def test_driver_passes_over_lines_that_are_no_requests(folder: Path, line: str) -> None:
    pause = {"id": "0123abcd", "at": "", **PAUSE}
    (folder / FILE).write_text(f"{line}\n{json.dumps(pause)}\n")
    assert words(Inbox(folder).new()) == ["pause"]


def test_file_that_is_damaged_is_not_written_on(ledger: Ledger, folder: Path) -> None:
    (folder / FILE).write_text("nothing\n")
    with pytest.raises(StorageError, match=r"control.jsonl:1: .*, or move the file away"):
        send(PAUSE)


def test_study_that_no_search_runs_of_is_not_written_to(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no search of it runs.*--resume"):
        send(PAUSE)
    assert not (folder / FILE).exists()


def test_driver_is_seen_while_it_drives_and_leaves_no_file(folder: Path) -> None:
    assert not is_driven(folder)
    with driving(folder):
        assert is_driven(folder) and is_driven(folder)
    assert not is_driven(folder)
    assert not (folder / control.LOCK).exists()


def test_end_of_the_driver_ends_the_wait(folder: Path) -> None:
    found: list[BaseException] = []

    def ask() -> None:
        try:
            send(PAUSE, wait_s=60)
        except ServiceError as error:
            found.append(error)

    asking = threading.Thread(target=ask)
    with driving(folder):
        asking.start()
        while not (folder / FILE).exists():
            pass
    asking.join(20)
    assert "ended before it acted on it" in str(found[0])
    (waits,) = control.history("steered")
    assert (waits["words"], waits["answer"]) == ("pause", None)


def test_history_has_what_was_answered_and_what_waits(ledger: Ledger, folder: Path) -> None:
    unanswered(PAUSE, {"action": "stop", "trial": "t0009"})
    first, _ = Inbox(folder).new()
    ledger.steered(Answer(request=first, at=utc_now(), text="done"))
    done, waits = control.history("steered")
    assert (done["action"], done["answer"], done["refused"]) == ("pause", "done", False)
    assert (waits["trial"], waits["answer"]) == ("t0009", None)


def test_refusal_of_the_driver_is_an_error(ledger: Ledger, folder: Path) -> None:
    def refuse() -> None:
        inbox = Inbox(folder)
        while not (new := inbox.new()):
            pass
        answer = Answer(request=new[0], at=utc_now(), refused=True, text="it has ended")
        ledger.steered(answer)

    driver = threading.Thread(target=refuse)
    driver.start()
    with pytest.raises(ConfigError, match=r"^stop t0001: it has ended$"):
        send({"action": "stop", "trial": "t0001"}, wait_s=20)
    driver.join()


@pytest.mark.parametrize(
    ("action", "fields", "path", "given"),
    [
        ("delete", {}, "action", '"delete"'),
        ("stop", {}, "trial", None),
        ("stop", {"trial": "../t1"}, "trial", '"../t1"'),
        ("pause", {"now": True}, "now", None),
        ("set", {}, "set", "nothing"),
        ("set", {"trails": 3}, "trails", None),
        ("set", {"concurrent": 0}, "concurrent", "0"),
        ("set", {"trials": 2.5}, "trials", "2.5"),
        ("set", {"time_budget": "soon"}, "time_budget", '"soon"'),
        ("set", {"target": 0.5}, "target", "0.5"),
        ("try", {"params": {}}, "", "{}"),
        ("try", {"params": {"epochs": 21}}, "epochs", "21"),
        ("try", {"params": {"epoch": 2}}, "epoch", "`epoch`"),
        ("try", {"params": {"lr": 0.1}}, "lr", None),
        ("try", {"params": {"optimizer": "adamw", "sgd.lr": 0.1}}, "optimizer.sgd.lr", ...),
        ("try", {"params": "lr=0.1"}, "params", '"lr=0.1"'),
    ],
)
@pytest.mark.usefixtures("ledger")
def test_what_cannot_be_asked_is_refused_before_it_is_written(
    folder: Path, action: str, fields: dict[str, Any], path: str, given: Any
) -> None:
    with pytest.raises(ConfigError) as refused:
        send({"action": action, **fields})
    (problem,) = refused.value.problems
    assert problem.path == path and given in (problem.given, ...)
    assert not (folder / FILE).exists()


@pytest.mark.parametrize("study", ["steerd", "../steered", ""])
def test_study_that_is_not_here_is_named(folder: Path, study: str) -> None:
    with pytest.raises(ConfigError, match=r"study: must (have a ledger .*steered|match)"):
        control.send(study, PAUSE)


def test_short_names_are_written_out_where_they_fit_one(ledger: Ledger, folder: Path) -> None:
    params = {"width": 2, "recipe.epochs": 3, "sgd.lr": 0.1}
    unanswered({"action": "try", "params": params})
    line = json.loads((folder / FILE).read_text())
    assert line["params"] == {"model.resnet18.width": 2, "epochs": 3, "optimizer.sgd.lr": 0.1}
    assert read_request(line).words.startswith("try model.resnet18.width=2 epochs=3")


@pytest.mark.parametrize("end", ["", "\r", "\r\n", "\n"])
def test_request_is_read_once_whatever_ends_it(ledger: Ledger, folder: Path, end: str) -> None:
    pause = {"id": "0123abcd", "at": "", **PAUSE}
    (folder / FILE).write_text(f"{json.dumps(pause)}{end}", newline="")
    inbox = Inbox(folder)
    assert words(inbox.new()) == ["pause"]
    unanswered({"action": "go-on"})
    assert words(inbox.new()) == ["go-on"]
    assert [each["words"] for each in control.history("steered")] == ["pause", "go-on"]


@pytest.mark.parametrize("text", ["notes", '{"event": "begin"}\n'])
def test_file_of_no_requests_is_left_as_it_is(ledger: Ledger, folder: Path, text: str) -> None:
    (folder / FILE).write_text(text)
    with pytest.raises(StorageError, match=r"control\.jsonl:1: "):
        send(PAUSE)
    assert (folder / FILE).read_text() == text

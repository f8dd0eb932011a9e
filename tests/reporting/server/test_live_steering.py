import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from helpers.reporting.pages import ordinary
from helpers.reporting.server import Answer, Client, Search, ask, wait_for
from helpers.tracking.stores import store_of

from tune_speed.cli.watch import recipe_text
from tune_speed.core.errors import ConfigError, ServiceError, StorageError
from tune_speed.core.records import Recommended
from tune_speed.reporting.server import channel
from tune_speed.reporting.server.app import LivePages
from tune_speed.reporting.server.helm import MOST_BYTES, Helm
from tune_speed.reporting.server.run import Guard
from tune_speed.tracking import Store
from tune_speed.tuning.driver import control

TOKEN = "correct-horse"
PATH = "/studies/study/steer"
OWN = {
    "content_type": "application/json",
    "origin": "http://127.0.0.1:8420",
    "sec_fetch_site": "same-origin",
    "x_tune_speed": "steer",
}
"""What a browser sends with a request of the page."""
FIELDS = [
    {"name": "optimizer.sgd.lr", "values": "from 0.02 to 0.4 (log)", "choices": ()},
    {"name": "batch_size", "values": "one of 32, 64", "choices": (32, 64)},
]

STUDY = """
recipe:
  optimizer: {sgd: {lr: {low: 0.02, high: 0.4, log: true}}}
  batch_size: {choices: [32, 64]}
workload: {target: {metric: accuracy, value: 0.9}}
"""


class Recorder:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self.outlook: dict[str, Any] = {"why": "", "fields": FIELDS}
        self.error: Exception | None = None
        self.threads: set[int] = set()

    def send(self, study: str, request: Mapping[str, Any]) -> dict[str, Any]:
        self.sent.append((study, request))
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        return {"words": "pause", "answer": "no trial begins until `go-on`"}


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return store_of(ordinary(), folder=tmp_path_factory.mktemp("store"))


Pages = Callable[..., Client]


@pytest.fixture
def pages_of(recorder: Recorder) -> Iterator[Pages]:
    clients: list[Client] = []

    def pages_of(uri: str, *, token: str | None = None, read_only: bool = False) -> Client:
        helm = Helm(look=lambda study: recorder.outlook, send=recorder.send)
        own: dict[str, Any] = {"recipe_yaml": recipe_text, "ending": asyncio.Event()}
        pages = LivePages(Store(uri), helm=None if read_only else helm, **own).app()
        clients.append(Client(Guard(pages, token=token, is_loopback=token is None, port=8420)))
        return clients[-1]

    yield pages_of
    for client in clients:
        client.close()


def post(client: Client, body: bytes | Any, target: str = PATH, **headers: str | None) -> Answer:
    """Returns the answer to what a page sends; a header that is None is left out."""
    sent = {name: text for name, text in {**OWN, **headers}.items() if text is not None}
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.run(ask(client.app, target, method="POST", headers=sent, body=body))


# --- Who may send


def test_what_a_page_sends_comes_to_the_search_as_it_is_in_another_thread(
    pages_of: Pages, uri: str, recorder: Recorder
) -> None:
    client = pages_of(uri)
    request = {"action": "try", "params": {"lr": 0.3, "batch_size": 64, "nesterov": None}}
    answer = post(client, request)
    assert (answer.code, answer.headers["content-type"]) == (200, "application/json")
    assert json.loads(answer.text) == {"words": "pause", "answer": "no trial begins until `go-on`"}
    assert recorder.sent == [("study", request)]

    async def loop() -> int:
        return threading.get_ident()

    assert client.run(loop()) not in recorder.threads, "an answer may take half a minute"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://evil.example:8420"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://127.0.0.1"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": None},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
        {"x_tune_speed": None},
        {"host": "evil.example", "origin": "http://evil.example"},
    ],
    ids=str,
)
def test_what_may_be_a_page_from_elsewhere_is_refused(
    pages_of: Pages, uri: str, recorder: Recorder, headers: dict[str, str | None]
) -> None:
    assert post(pages_of(uri), {"action": "pause"}, **headers).code == 403
    assert recorder.sent == []


def test_an_old_browser_that_does_not_say_where_it_is_from_still_names_the_origin(
    pages_of: Pages, uri: str
) -> None:
    assert post(pages_of(uri), {"action": "pause"}, sec_fetch_site=None).code == 200


def test_no_other_origin_is_told_that_it_may_send(pages_of: Pages, uri: str) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    client = pages_of(uri)
    answer = client.run(ask(client.app, PATH, method="OPTIONS", headers=asked))
    assert answer.code == 403
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("token", [None, "wrong", ""])
def test_steering_needs_the_token_as_reading_does(
    pages_of: Pages, uri: str, recorder: Recorder, token: str | None
) -> None:
    client = pages_of(uri, token=TOKEN)
    own = {"host": "node17:8420", "origin": "http://node17:8420"}
    cookie = None if token is None else f"tune_speed_8420={token}"
    assert post(client, {"action": "pause"}, cookie=cookie, **own).code == 401
    assert recorder.sent == []
    sent = f"tune_speed_8420={TOKEN}"
    assert post(client, {"action": "pause"}, cookie=sent, **own).code == 200
    foreign = {"host": "node17:8420", "cookie": sent, "origin": "http://evil.example"}
    assert post(client, {"action": "pause"}, **foreign).code == 403
    assert len(recorder.sent) == 1


def test_a_token_in_the_address_steers_nothing(
    pages_of: Pages, uri: str, recorder: Recorder
) -> None:
    client = pages_of(uri, token=TOKEN)
    assert post(client, {"action": "pause"}, f"{PATH}?token={TOKEN}").code == 303
    assert recorder.sent == []


# --- What is refused


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"", {}, 400),
        (b"pause", {}, 400),
        (b'["pause"]', {}, 400),
        (b"[" * 10_000, {}, 400),
        (b"\xff", {}, 400),
        (b'{"action": "pause"}', {"content_type": "text/plain"}, 415),
        (b"action=pause", {"content_type": "application/x-www-form-urlencoded"}, 415),
        (b'{"action": "' + b"a" * MOST_BYTES + b'"}', {}, 413),
    ],
)
def test_what_is_no_small_object_of_json_is_refused(
    pages_of: Pages,
    uri: str,
    recorder: Recorder,
    body: bytes,
    headers: dict[str, str | None],
    code: int,
) -> None:
    answer = post(pages_of(uri), body, **headers)
    assert answer.code == code and json.loads(answer.text)["error"]
    assert recorder.sent == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("trials: must be at least 5"), 400),
        (ServiceError("the search has not acted on it for 30 s"), 503),
        (StorageError("the disk is full"), 503),
    ],
)
def test_a_refusal_comes_with_its_words(
    pages_of: Pages, uri: str, recorder: Recorder, error: Exception, code: int
) -> None:
    recorder.error = error
    answer = post(pages_of(uri), {"action": "pause"})
    assert (answer.code, json.loads(answer.text)) == (code, {"error": str(error)})


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/studies/.hidden/steer", 404),
        ("/studies/..%2Fstudy/steer", 404),
        ("/studies/study", 405),
        ("/studies/study/events", 405),
        ("/studies/study/parts/actions", 405),
        ("/", 405),
        ("/steer", 404),
    ],
)
def test_nothing_is_taken_anywhere_else(
    pages_of: Pages, uri: str, recorder: Recorder, target: str, code: int
) -> None:
    assert post(pages_of(uri), {"action": "pause"}, target).code == code
    assert recorder.sent == []


def test_reading_the_address_steers_nothing(pages_of: Pages, uri: str, recorder: Recorder) -> None:
    assert pages_of(uri).get(PATH).code == 405
    assert recorder.sent == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"action": ["pause"]},
        {"action": {"a": 1}},
        {"action": "erase"},
        {"action": "pause", "trial": "t0000"},
        {"action": "try", "params": {"lr": {"low": 1}}},
        {"action": "try", "params": 3},
        {"action": "try", "params": {"nothing": 1}},
        {"action": "stop", "trial": "../t0000"},
        {"action": "set", "trials": "many"},
        {"action": "set", "target": [1]},
    ],
    ids=str,
)
def test_whatever_a_page_sends_the_channel_refuses_it_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    folder = study_folder(tmp_path, monkeypatch)
    with control.driving(folder), pytest.raises(ConfigError, match=r"must|no field|not searched"):
        control.send("study", fields, wait_s=0.1)
    assert not (folder / control.FILE).exists()


def test_a_page_cannot_choose_the_id_by_which_a_request_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = study_folder(tmp_path, monkeypatch)
    fields = {"action": "pause", "id": "00000000", "at": "yesterday"}
    with control.driving(folder), pytest.raises(ServiceError):
        control.send("study", fields, wait_s=0.1)
    (line,) = (folder / control.FILE).read_text().splitlines()
    written = json.loads(line)
    assert written["id"] != "00000000" and written["at"] != "yesterday"


# --- What the page offers


def study_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(tmp_path))
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "ledger.jsonl").touch()
    (folder / "study.yaml").write_text(STUDY)
    return folder


def test_who_looks_is_told_the_fields_or_why_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(tmp_path))
    assert "not here" in control.outlook("study")["why"]
    folder = study_folder(tmp_path, monkeypatch)
    assert control.outlook("study") == {"why": "no search of it runs", "fields": []}
    with control.driving(folder):
        assert control.outlook("study") == {"why": "", "fields": FIELDS}
        (folder / "study.yaml").write_text("recipe: [")
        assert control.outlook("study")["why"]


def actions(client: Client) -> str:
    return unescape(client.get("/studies/study/parts/actions").text)


def test_read_only_there_are_no_buttons_and_no_address(pages_of: Pages, uri: str) -> None:
    client = pages_of(uri, read_only=True)
    assert post(client, {"action": "pause"}).code == 404
    assert client.get("/studies/study/parts/actions").code == 404
    layout = client.get("/studies/study/parts/layout").text
    assert 'id="actions"' not in layout and "data-action" not in layout


def test_what_cannot_be_steered_says_why_and_has_no_button(
    pages_of: Pages, uri: str, recorder: Recorder
) -> None:
    recorder.outlook = {"why": "no search of it runs", "fields": []}
    client = pages_of(uri)
    assert 'data-part="actions"' in client.get("/studies/study/parts/layout").text
    assert "from here: no search of it runs." in actions(client)
    assert not re.findall("<(?:form|button|input)", actions(client))


def test_names_and_choices_that_attack_are_text(
    pages_of: Pages, uri: str, recorder: Recorder
) -> None:
    evil = """'"><img src=x onerror=alert(1)>"""
    recorder.outlook["fields"] = [
        {"name": evil, "values": evil, "choices": ()},
        {"name": "b", "values": "", "choices": (evil, True, None, 3)},
    ]
    html = pages_of(uri).get("/studies/study/parts/actions").text
    assert "<img" not in html
    choices = re.findall("<option value='([^']*)'", html)
    assert [json.loads(choice) for choice in choices] == [evil, True, None, 3]


def test_forms_have_labels_the_recommended_values_and_the_settings(
    tmp_path: Path, pages_of: Pages, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "PAUSE_S", 0.0)
    monkeypatch.setattr(channel, "SHARE", 1e9)
    search = Search(store_of([], folder=tmp_path))
    client = pages_of(f"sqlite:///{tmp_path / 'mlflow.db'}")
    search.start("t0000")
    wait_for(lambda: client.get("/studies/study").code == 200 and "t0000" in running(client))
    assert "the search’s choice, as no trial met the target yet" in actions(client)
    assert 'data-action="stop" data-trial="t0000"' in running(client)
    search.finish("t0000", time_s=1.5)
    best = Recommended(trial_id="t0000", runs=2, hits=2, expected_s=1.5)
    search.tracker.recommend([best])
    wait_for(lambda: "as in t0000, which is recommended" in actions(client))
    html = actions(client)
    assert 'placeholder="0.15"' in html and "64, as recommended" in html
    assert 'placeholder="20"' in html and "from 0.02 to 0.4 (log)" in html
    fields = re.findall(r'<(?:input|select) id="([^"]*)"', html)
    assert sorted(fields) == sorted(re.findall(r'<label for="([^"]*)"', html))
    assert len(fields) == 2 + 3
    assert 'data-action="pause"' in html
    search.tracker.steered({"paused": "yes", "trials": "30"}, [["2026-01-01", "pause: yes"]])
    wait_for(lambda: 'data-action="go-on"' in actions(client))
    assert 'placeholder="30"' in actions(client)
    recorder.outlook = {"why": "no search of it runs", "fields": []}
    search.start("t0001")
    wait_for(lambda: "t0001" in running(client))
    assert "data-action" not in running(client) + actions(client)
    search.end()


def running(client: Client) -> str:
    return client.get("/studies/study/parts/running").text

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_evaluation
from helpers.reporting.pages import certified, ordinary, trained, varied
from helpers.reporting.server import Answer, Client, Search, ask, run, wait_for
from helpers.tracking.stores import put, store_of

from tune_speed.cli.watch import recipe_text
from tune_speed.core.records import Status
from tune_speed.reporting.page.site import study_page
from tune_speed.reporting.server import app as server_app
from tune_speed.reporting.server import channel
from tune_speed.reporting.server.app import LivePages
from tune_speed.reporting.study.reader import read_study
from tune_speed.tracking import Store, schema

Pages = Callable[[str], Client]
EVIL = '"><img src=x onerror=alert(1)>'


@pytest.fixture(scope="module")
def pages_of() -> Iterator[Pages]:
    clients: list[Client] = []

    def pages_of(uri: str) -> Client:
        app = LivePages(Store(uri), recipe_yaml=recipe_text, ending=asyncio.Event()).app()
        clients.append(Client(app))
        return clients[-1]

    yield pages_of
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = [*ordinary(), certified("t0002", 0.7, 0.8, 0.9), *varied(study="varied")]
    return store_of(records, folder=tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def client(uri: str, pages_of: Pages) -> Client:
    return pages_of(uri)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PAUSE_S", 0.0)
    monkeypatch.setattr(channel, "QUIET_PAUSE_S", 0.0)
    monkeypatch.setattr(channel, "SHARE", 1e9)


def parts(page: str) -> list[str]:
    return re.findall(r'data-part="([^"]*)"', page)


def state(answer: Answer) -> Any:
    return json.loads(
        unescape(re.findall(r'<template id="state">(.*?)</template>', answer.text)[0])
    )


def without_pages(html: str) -> str:
    """Returns a part without the way to pages of trials, which a report has not."""
    return re.sub(r'<div><dt>Its page</dt><dd><a href="/studies/[^<]*</a></dd></div>\n', "", html)


@pytest.mark.parametrize("study", ["study", "varied"])
def test_every_part_of_a_study_is_in_its_report_as_it_is(
    client: Client, uri: str, study: str
) -> None:
    report = study_page(read_study(Store(uri), study), recipe_yaml=recipe_text)
    names = [n for n in parts(client.get(f"/studies/{study}/parts/layout").text) if n != "running"]
    found = {name: client.get(f"/studies/{study}/parts/{name}") for name in names}
    assert {answer.code for answer in found.values()} == {200}
    missing = [name for name, a in found.items() if without_pages(a.text) not in report]
    assert missing == []
    drawn = {name for name, answer in found.items() if "<svg" in answer.text}
    assert len(drawn) == report.count("<svg")
    assert {"part-1-answer", "part-1-recipe", "part-1-trials", "searches"} <= found.keys()
    assert found["part-1-trials"].text.count('class="status') >= 12


def test_figures_of_the_page_are_the_reports_and_links_lead_to_rows(client: Client) -> None:
    figure = client.get("/studies/study/parts/part-1-figure-front").text
    rows = client.get("/studies/study/parts/part-1-trials").text
    targets = set(re.findall(r'href="#(trial-[^"]*)"', figure))
    assert targets and targets <= set(re.findall(r'id="(trial-[^"]*)"', rows))


def test_a_page_paints_the_answer_and_waits_for_no_figure(client: Client) -> None:
    client.get("/studies/varied/parts/layout")
    page = client.get("/studies/varied").text
    assert "<svg" not in page
    assert 'class="card answer estimate"' in page
    holes = re.findall(r'class="place card hole [^"]*" data-part="([^"]*)"', page)
    assert {"part-1-figure-front", "part-1-figure-parallel", "part-1-trials"} <= set(holes)


def test_policy_lets_a_script_ask_its_own_server_alone(client: Client) -> None:
    for target in ("/", "/boards", "/studies/study"):
        page = client.get(target).text
        policy = unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
        assert "connect-src 'self'" in policy and "default-src 'none'" in policy
        assert "http" not in policy
        assert set(re.findall(r"""<link[^>]* href="([^"]*)""", page)) == {"data:,"}
        assert not re.findall(r"<(?:script|img|iframe|object)[^>]* (?:src|data)=", page)


def test_all_studies_and_their_boards_have_links_to_pages_that_are_there(client: Client) -> None:
    studies = client.get("/parts/studies").text
    named = re.findall(r'<a href="(/studies/[^"]*)">', studies)
    assert sorted(named) == ["/studies/study", "/studies/varied"]
    boards = client.get("/parts/boards").text
    links = re.findall(r'href="(/studies/[^"]*/trials/[0-9a-f]{32})"', boards)
    assert links and ">study/t000" in boards
    assert {client.get(link).code for link in (links[0], links[-1])} == {200}


def test_a_trial_has_a_page_with_curve_recipe_log_and_reason(client: Client, uri: str) -> None:
    trial = next(t for t in read_study(Store(uri), "study").trials if t.record.trial_id == "t0010")
    page = client.get(f"/studies/study/trials/{trial.run_id}").text
    inside = client.get(f"/studies/study/parts/trial-{trial.run_id}").text
    assert "<h1>t0010</h1>" in page
    for text in (str(trial.record.stop_reason), "<svg", "resnet20", "<h3>Log</h3>", trial.run_id):
        assert text in unescape(inside), text
    # Its two evaluations, and the target, which it missed.
    assert "2 evaluations; best accuracy 0.8025, target 0.9." in inside


@pytest.mark.parametrize(
    "target",
    [
        "/studies/nobody",
        "/studies/nobody/events",
        "/studies/..%2F..%2Fetc%2Fpasswd",
        "/studies/%2e%2e/events",
        "/studies/.hidden",
        f"/studies/{'a' * 101}",
        "/studies/study/trials/t0000",
        f"/studies/study/trials/{'0' * 32}",
        "/studies/study/trials/..%2f..%2fmlflow.db",
        "/studies/study/parts/nothing",
        "/studies/study/parts/part-9-answer",
        "/studies/study/parts/part-1-figure-__init__",
        "/studies/study/parts/part-1-sections",
        "/studies/study/parts/..%2fmlflow.db",
        "/parts/searches",
        "/mlflow.db",
        "//etc/passwd",
    ],
)
def test_what_is_not_there_is_not_found(client: Client, target: str) -> None:
    assert client.get(target).code == 404


def test_a_study_that_is_not_there_is_told_with_those_that_are(client: Client) -> None:
    answer = client.get("/studies/vareid")
    assert answer.code == 404
    assert "there is no study 'vareid'" in unescape(answer.text)
    assert "'varied'" in unescape(answer.text)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_sent(client: Client, method: str) -> None:
    assert client.run(ask(client.app, "/studies/study", method=method)).code == 405


def test_a_store_is_read_and_left_as_it_is(uri: str, tmp_path: Path, pages_of: Pages) -> None:
    path = Path(uri.removeprefix("sqlite:///"))
    before = sha256(path.read_bytes()).hexdigest()
    client = pages_of(uri)
    for name in parts(client.get("/studies/study/parts/layout").text):
        client.get(f"/studies/study/parts/{name}")
    client.get("/boards")
    assert sha256(path.read_bytes()).hexdigest() == before


def test_hostile_names_are_text_and_have_no_address(tmp_path: Path, pages_of: Pages) -> None:
    changes: dict[str, Any] = {"device": EVIL, "workload_name": EVIL, "params": {EVIL: EVIL}}
    uri = store_of([trained("t0000", **changes), trained(EVIL, **changes)], folder=tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute(
            "INSERT INTO experiments (name, lifecycle_stage, artifact_location)"
            " VALUES (?, 'active', 'x')",
            (EVIL,),
        )
        number = database.execute("SELECT max(experiment_id) FROM experiments").fetchone()[0]
        values = (schema.KIND, schema.STUDY_KIND, number)
        database.execute(
            "INSERT INTO experiment_tags (key, value, experiment_id) VALUES (?, ?, ?)", values
        )
        database.commit()
    client = pages_of(uri)
    studies = client.get("/parts/studies").text
    assert "<img" not in studies
    assert re.findall(r'href="([^"]*)"', studies) == ["/studies/study"]
    assert f'<th scope="row">{EVIL}</th>' in unescape(studies)
    layout = client.get("/studies/study/parts/layout").text
    names = parts(layout)
    for name in names:
        assert "<img" not in client.get(f"/studies/study/parts/{name}").text, name
    assert "<img" not in layout + client.get("/studies/study").text + client.get("/boards").text


# --- A study that runs


@pytest.fixture
def search(tmp_path: Path, eager: None) -> Iterator[Search]:
    uri = store_of([], folder=tmp_path)
    search = Search(uri)
    yield search
    search.end()


def facts(client: Client) -> Any:
    return state(client.get("/studies/study"))


def test_an_evaluation_changes_the_pulse_and_an_outcome_the_results(
    search: Search, tmp_path: Path, pages_of: Pages
) -> None:
    client = pages_of(f"sqlite:///{tmp_path / 'mlflow.db'}")
    search.start("t0000")
    wait_for(lambda: client.get("/studies/study").code == 200 and facts(client)["running"] == 1)
    first = facts(client)
    assert (first["state"], first["finished"], first["planned"]) == ("running", 0, 20)
    search.evaluated("t0000", make_evaluation(step=5, train_s=0.5, accuracy=0.4321))
    wait_for(lambda: facts(client)["pulse"] != first["pulse"])
    assert facts(client)["stamp"] == first["stamp"]
    assert "0.4321" in client.get("/studies/study/parts/running").text
    search.finish("t0000", time_s=0.75)
    wait_for(lambda: facts(client)["finished"] == 1)
    done = facts(client)
    assert done["stamp"] != first["stamp"] and done["layout"] != first["layout"]
    assert (done["best_s"], done["best_trial"], done["texts"]["best"]) == (0.75, "t0000", "0.750 s")
    assert "0.750 s" in client.get("/studies/study/parts/part-1-answer").text


def test_a_running_trial_has_a_page_that_follows_its_evaluations(
    search: Search, tmp_path: Path, pages_of: Pages
) -> None:
    client = pages_of(f"sqlite:///{tmp_path / 'mlflow.db'}")
    search.finish("t0000")
    search.start("t0001")
    search.evaluated("t0001", make_evaluation(step=5, train_s=0.5, accuracy=0.25))
    search.evaluated("t0001", make_evaluation(step=9, train_s=0.9, accuracy=0.5))
    running = "/studies/study/parts/running"
    wait_for(
        lambda: client.get("/studies/study").code == 200 and "0.5000" in client.get(running).text
    )
    (run_id,) = re.findall(r"/trials/([0-9a-f]{32})", client.get(running).text)
    part = f"/studies/study/parts/trial-{run_id}"
    wait_for(lambda: "2 evaluations; best accuracy 0.5, target 0.9." in client.get(part).text)
    assert client.get(part).headers["follows"] == "pulse"
    search.finish("t0001")
    wait_for(lambda: client.get(part).headers["follows"] == "stamp")
    assert "resnet20" in client.get(part).text


def test_times_that_are_told_anew_when_a_search_ends_are_seen(
    tmp_path: Path, eager: None, pages_of: Pages
) -> None:
    uri = store_of([], folder=tmp_path)
    search, client = Search(uri), pages_of(uri)
    search.finish("t0000", time_s=0.75)
    wait_for(lambda: client.get("/studies/study").code == 200 and facts(client)["finished"] == 1)
    assert facts(client)["best_s"] == 0.75
    (trial,) = read_study(Store(uri), "study").trials
    mlflow = Store(uri).create()
    for name, value in schema.record_tags(trained("t0000", Status.REACHED, time_s=0.5)).items():
        mlflow.set_tag(trial.run_id, name, value)
    mlflow.set_terminated(trial.run_id, end_time=mlflow.get_run(trial.run_id).info.end_time + 1)
    search.end()
    wait_for(lambda: facts(client)["state"] == "ended")
    assert facts(client)["best_s"] == 0.5


def test_a_stream_tells_the_present_then_what_comes_and_again_after_a_break(
    search: Search, tmp_path: Path, pages_of: Pages
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    search.finish("t0000")
    client = pages_of(uri)
    wait_for(lambda: client.get("/studies/study").code == 200 and facts(client)["finished"] == 1)

    def heard(finished: int) -> list[Any]:
        ending, said = asyncio.Event(), list[Any]()

        def hear(text: str) -> None:
            said.extend(json.loads(line[6:]) for line in text.splitlines() if line[:5] == "data:")
            if said and said[-1]["finished"] == 1 < finished and len(said) == 1:
                search.finish("t0001", time_s=0.25)
            if said and said[-1]["finished"] >= finished:
                ending.set()

        app = LivePages(Store(uri), recipe_yaml=recipe_text, ending=ending).app()
        run(asyncio.wait_for(ask(app, "/studies/study/events", heard=hear), 20))
        return said

    said = heard(2)
    assert (said[0]["finished"], said[-1]["finished"]) == (1, 2)
    assert (said[0]["best_s"], said[-1]["best_s"]) == (1.0, 0.25)
    again = heard(2)[0]
    assert (again["finished"], again["best_s"]) == (2, 0.25), "who comes back gets the present"


def test_streams_beyond_a_number_are_refused_and_pages_are_not(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "MOST_STREAMS", 2)

    async def codes() -> list[int]:
        ending, heard = asyncio.Event(), list[str]()
        app = LivePages(Store(uri), recipe_yaml=recipe_text, ending=ending).app()
        targets = ("/events", "/studies/study/events")
        open_ones = [asyncio.ensure_future(ask(app, each, heard=heard.append)) for each in targets]
        while sum(text.startswith("data:") for text in heard) < 2:
            await asyncio.sleep(0.02)
        answers = [await ask(app, target) for target in (*targets, "/")]
        ending.set()
        answers += [*await asyncio.gather(*open_ones), await ask(app, "/events")]
        return [answer.code for answer in answers]

    assert run(asyncio.wait_for(codes(), 30)) == [503, 503, 200, 200, 200, 200]


def test_a_study_that_appears_later_is_found(tmp_path: Path, eager: None, pages_of: Pages) -> None:
    uri = store_of(ordinary(), folder=tmp_path)
    client = pages_of(uri)
    assert client.get("/studies/later").code == 404
    put(ordinary(study="later"), uri)
    assert client.get("/studies/later").code == 200
    assert "/studies/later" in client.get("/parts/studies").text


def test_several_viewers_get_one_drawing(
    uri: str, monkeypatch: pytest.MonkeyPatch, pages_of: Pages
) -> None:
    from tune_speed.reporting.server import live_study

    drawn: list[str] = []
    draw = live_study.draw_svg
    monkeypatch.setattr(
        live_study, "draw_svg", lambda name, *a, **k: drawn.append(name) or draw(name, *a, **k)
    )
    client = pages_of(uri)
    names = ["front", "best_so_far", "parallel"]
    answers = client.together([f"/studies/study/parts/part-1-figure-{n}" for n in names] * 8)
    assert {answer.code for answer in answers} == {200}
    assert sorted(drawn) == sorted(names)

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.command import TINY_STUDY, finished, run_inside

from tune_speed.core.errors import ConfigError
from tune_speed.study.file import load_study
from tune_speed.tuning.ray import concurrency
from tune_speed.tuning.ray.concurrency import FILE, Packing, packed, read_packing, write_packing
from tune_speed.tuning.ray.node_query import Node
from tune_speed.tuning.ray.nodes import Nodes

STUDY = TINY_STUDY.replace("trials: 6, concurrent: 1", "trials: 2, concurrent: auto")
ASKED = {"resources": "1 core", "there": "1 nodes, 2 CPU, 0 GPU"}
PACKING = Packing(concurrent=2, at_once=2, gains={1: 1.0, 2: 1.9}, asked=ASKED)


def load(folder: Path, concurrent: str) -> object:
    (folder / "tiny.yaml").write_text(TINY_STUDY)
    return load_study(
        folder / "tiny.yaml", overrides=[f"search.concurrent={concurrent}"]
    ).search.concurrent


def test_concurrent_is_a_number_above_zero_or_auto(tmp_path: Path) -> None:
    assert load(tmp_path, "auto") == "auto" and load(tmp_path, "3") == 3
    for wrong in ("0", "1.5", "automatic", "true"):
        with pytest.raises(ConfigError, match=r"search\.concurrent"):
            load(tmp_path, wrong)


def test_what_was_measured_holds_until_what_was_asked_changes(tmp_path: Path) -> None:
    assert read_packing(tmp_path, ASKED) is None
    write_packing(PACKING, tmp_path)
    assert read_packing(tmp_path, ASKED) == PACKING
    assert read_packing(tmp_path, {**ASKED, "there": "1 nodes, 4 CPU, 0 GPU"}) is None


def test_what_was_not_measured_is_tried_again_and_damage_is_none(tmp_path: Path) -> None:
    write_packing(PACKING.model_copy(update={"gains": {}}), tmp_path)
    assert not (tmp_path / FILE).exists()
    (tmp_path / FILE).write_text('{"concurrent": ')
    assert read_packing(tmp_path, ASKED) is None


class Alone(Nodes):
    def __init__(self, *, is_local: bool = True) -> None:
        self.is_local, self.allowed = is_local, ()


def test_study_that_goes_on_keeps_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.yaml").write_text(STUDY)
    study, cpus, measured = load_study(tmp_path / "tiny.yaml"), {"CPU": 2.0}, list[int]()

    def choose(study: object, nodes: Sequence[Node]) -> Packing:
        measured.append(len(nodes))
        return PACKING

    monkeypatch.setattr(concurrency, "choose", choose)
    monkeypatch.setattr(concurrency, "alive_nodes", lambda: [Node("a", "127.0.0.1", cpus)])
    said: list[str] = []
    for _ in range(2):
        chosen, packing = packed(study, Alone(), folder=tmp_path, on_line=said.append)
        assert packing and chosen.search.concurrent == PACKING.concurrent
    assert measured == [1]
    assert said[1:] == [PACKING.line(), f"as measured before: {PACKING.line()}"]
    cpus["CPU"] = 4.0
    packed(study, Alone(), folder=tmp_path, on_line=said.append)
    assert measured == [1, 1]


@pytest.mark.parametrize(
    "case",
    [
        (8, "{cpu: 1}", {"CPU": 2.0}, 2, "is 8, but only 2 trials at a time have room here, with"),
        (2, "{cpu: 1}", {"CPU": 2.0}, 2, ""),
        (3, "{cpu: 1, gpu: 0.5}", {"CPU": 8.0, "GPU": 1.0}, 2, "with 1 CPU and 0.5 GPU each"),
        (2, "{cpu: 1, gpu: 1}", {"CPU": 8.0, "GPU": 1.0}, 1, "only 1 trial at a time has room"),
        (2, "{cpu: 1, gpu: 2}", {"CPU": 8.0, "GPU": 4.0}, 2, ""),
        (3, "{cpu: 1, gpu: 0.3333}", {"CPU": 8.0, "GPU": 1.0}, 3, ""),
    ],
)
@pytest.mark.parametrize("is_local", [True, False])
def test_more_trials_than_have_room_are_said_and_on_one_machine_wait_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool, case: tuple[Any, ...]
) -> None:
    concurrent, resources, there, runs, said = case
    (tmp_path / "tiny.yaml").write_text(TINY_STUDY)
    overrides = [f"search.concurrent={concurrent}", f"search.resources={resources}"]
    study = load_study(tmp_path / "tiny.yaml", overrides=overrides)
    monkeypatch.setattr(concurrency, "alive_nodes", lambda: [Node("a", "127.0.0.1", there)])
    lines: list[str] = []
    nodes = Alone(is_local=is_local)
    chosen, packing = packed(study, nodes, folder=tmp_path, on_line=lines.append)
    assert packing is None and chosen.search.concurrent == (runs if is_local else concurrent)
    assert [said in line for line in lines] == [True] * bool(said)
    assert [line.endswith(f": {runs} at a time") for line in lines] == [is_local] * bool(said)


@pytest.mark.slow
def test_search_measures_says_and_records_the_packing(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(STUDY)
    done = run_inside("search", "tiny.yaml", folder=tmp_path)
    assert done.code in (0, 1), done.err
    folder = tmp_path / "tune_speed_studies" / "tiny"
    packing = Packing.model_validate_json((folder / FILE).read_text())
    lines = done.err.splitlines()
    assert "measuring how many trials at a time finish most an hour …" in lines
    assert packing.line() in lines
    assert f"tiny: 2 trials, {packing.concurrent} at a time; target accuracy ≥ 0.8" in done.err
    assert {record["max_cotenants"] for record in finished(tmp_path)} == {packing.concurrent - 1}
    tags = search_tags(tmp_path)
    assert tags["tune_speed.concurrent"] == str(packing.concurrent)
    assert tags["tune_speed.packing"] == packing.line()


def search_tags(folder: Path) -> dict[str, str]:
    import sqlite3
    from contextlib import closing

    query = (
        "select t.key, t.value from tags t where t.run_uuid not in"
        " (select run_uuid from tags where key = 'mlflow.parentRunId')"
    )
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        return dict(connection.execute(query))

"""`tune-speed train` with several seeds, and with two recipes, as a user runs it."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import TINY_STUDY, Done, start

RECIPE = TINY_STUDY.replace("{low: 0.02, high: 0.4, log: true}", "0.1").replace(
    "value: 0.8", "value: 0.3"
)
RECIPE = RECIPE.replace("{low: 1, high: 10}", "6").replace("{choices: [25, 50]}", "50")
RECIPE += "run: {device: cpu, cpu_threads: 1, seed: 4}\n"
OTHER = RECIPE.replace("epochs: 6", "epochs: 1").replace("seed: 4", "seed: 90")

pytestmark = pytest.mark.slow

Call = Callable[..., Done]


def write(folder: Path) -> None:
    (folder / "a.yaml").write_text(RECIPE)
    (folder / "b.yaml").write_text(OTHER)


def test_seeds_give_the_record_and_its_statistics(tmp_path: Path, call: Call) -> None:
    write(tmp_path)
    done = call("train", "a.yaml", "--seeds", "3", "--json", folder=tmp_path)
    assert done.code == 0, done.err
    record, found = done.json, done.json["statistics"]
    assert [run["seed"] for run in record["runs"]] == [4, 5, 6]
    times_s = [run["time_to_target_s"] for run in record["runs"]]
    hits_s = [time_s for time_s in times_s if time_s is not None]
    assert (found["n"], found["k"], found["times_s"]) == (3, len(hits_s), times_s)
    spent_s = sum(run["clocks"]["train_s"] for run in record["runs"])
    assert found["expected_s"] == pytest.approx(spent_s / len(hits_s))
    assert sum(found["timing"].values()) == 3


def test_both_recipes_train_in_turns_with_the_same_seeds(tmp_path: Path, call: Call) -> None:
    write(tmp_path)
    done = call("train", "a.yaml", "--against", "b.yaml", "--seeds", "2", folder=tmp_path)
    assert done.code == 0, done.err
    lines = [line.split(":")[0] for line in done.err.splitlines() if ", " in line]
    assert lines == ["A  seed 4", "B  seed 4", "B  seed 5", "A  seed 5"]
    assert "A = a.yaml" in done.out and "B = b.yaml" in done.out
    assert "2 pairs of runs" in done.out
    assert "Not decided" in done.out


def test_one_pair_is_compared_and_overrides_go_to_both(tmp_path: Path, call: Call) -> None:
    write(tmp_path)
    options = ("--set", "epochs=1", "--set", "workload.target.value=0.99", "--json")
    done = call("train", "a.yaml", "--against", "b.yaml", *options, folder=tmp_path)
    assert done.code == 1, done.err
    a, b, comparison = (done.json[key] for key in ("a", "b", "comparison"))
    assert a["recipe"] == b["recipe"]
    assert (
        a["runs"][0]["evaluations"][-1]["accuracy"] == b["runs"][0]["evaluations"][-1]["accuracy"]
    )
    assert (comparison["faster"], comparison["p_value"]) == (None, None)
    assert a["statistics"]["median_s"] is None


def test_recipes_with_other_targets_are_refused(tmp_path: Path, call: Call) -> None:
    write(tmp_path)
    (tmp_path / "b.yaml").write_text(OTHER.replace("value: 0.3", "value: 0.4"))
    done = call("train", "a.yaml", "--against", "b.yaml", folder=tmp_path)
    assert done.code == 2
    assert "workload.target.value: must be the same for both recipes" in done.err
    assert done.out == ""


def test_ctrl_c_shows_the_runs_that_were_done(tmp_path: Path) -> None:
    write(tmp_path)
    process = start("train", "a.yaml", "--against", "b.yaml", "--seeds", "500", folder=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("B  seed 4: ") and "target" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "A = a.yaml" in out and "B = b.yaml" in out
    assert "of 1,000 runs that were done" in err
    assert "Traceback" not in err

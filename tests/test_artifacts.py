"""What an earlier version left is read, gone on with and answered for as by that version."""

import io
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from artifacts.old_store import EXPECTED, HERE, LOOP, QUESTIONS, expected, known, plain, unpack
from helpers.command import Done, finished, run, run_inside
from helpers.training.golden import EVERYWHERE

import tune_speed
from tune_speed.cli.search import function_of
from tune_speed.components.plugins import registry
from tune_speed.core.records import TrialRecord
from tune_speed.core.words import IN_WORDS, joined
from tune_speed.custom.spec import OwnRecipe, OwnSpec, OwnTask
from tune_speed.custom.trial import run_own_trial
from tune_speed.experiments.certification.certificate import Certificate
from tune_speed.experiments.certification.schedule import FIRST_FRESH_SEED
from tune_speed.training.checkpoint.checkpoints import identity_of, load
from tune_speed.training.checkpoint.store import head, split, write
from tune_speed.training.objective import run_trial
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, CheckpointPlan, TrialSpec
from tune_speed.training.workload import Workload

Call = Callable[..., Done]
CPU = torch.device("cpu")
MADE_ON = "cpu (1 threads, Intel(R) Xeon(R) Processor)"
PLUGIN = ("--plugin", "my_nets.py")


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    yield
    registry.unload()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The old store's folder, for tests that only read."""
    folder = unpack(tmp_path_factory.mktemp("old"))
    move_ablation_here(folder)
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A store of the test's own, as if it had been made on this machine's processor."""
    folder = tmp_path / "copy"
    folder.mkdir()
    unpack(folder)
    name_device(folder, device_here())
    return folder


def name_device(folder: Path, name: str) -> None:
    """Makes a store one of a machine of this name; checkpoints stay."""
    for file in (*folder.rglob("*.jsonl"), *folder.rglob("*.json")):
        file.write_text(file.read_text().replace(MADE_ON, name))
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        for table in ("tags", "experiment_tags", "params"):
            change = f"UPDATE {table} SET value = replace(value, ?, ?)"
            database.execute(change, (MADE_ON, name))


def move_ablation_here(folder: Path) -> None:
    """Makes the ablation one that this machine may go on with; its runs stay where they ran."""
    ledger = folder / "tune_speed_studies" / "small" / "ablation" / "ablation-1.jsonl"
    begin, *runs = ledger.read_text().splitlines(keepends=True)
    there, here = (name.replace("1 threads, ", "") for name in (MADE_ON, device_here()))
    assert there in begin
    ledger.write_text("".join([begin.replace(there, here), *runs]))


def device_here() -> str:
    return identity_of(broken_spec(), CPU)["device"]


def events(study: str, name: str = "ledger.jsonl") -> list[dict[str, Any]]:
    """Returns the events of a ledger as the old version wrote it."""
    return [json.loads(line) for line in (HERE / "studies" / study / name).read_text().splitlines()]


def record_of(study: str, trial_id: str) -> dict[str, Any]:
    records = [event["record"] for event in events(study) if event["event"] == "finished"]
    return next(record for record in records if record["trial_id"] == trial_id)


# --- What was recorded


@pytest.mark.parametrize("name", QUESTIONS)
def test_commands_answer_as_the_old_version(store: Path, call: Call, name: str) -> None:
    done = call(*QUESTIONS[name], folder=store)
    assert done.code == 0, done.err
    assert known(plain(done.json), expected(name)) == expected(name)


def test_every_kept_answer_is_asked_for() -> None:
    kept = {file.stem for file in EXPECTED.iterdir()}
    assert kept == {*QUESTIONS, "train"}


LEDGERS = [
    file.relative_to(HERE / "studies") for file in sorted((HERE / "studies").rglob("*.jsonl"))
]


@pytest.mark.parametrize("ledger", LEDGERS, ids=str)
def test_records_of_ledgers_are_read_without_loss(ledger: Path) -> None:
    lines = (HERE / "studies" / ledger).read_text().splitlines()
    records = [event["record"] for event in map(json.loads, lines) if "record" in event]
    assert records or ledger.parts[0] == "slope"
    for record in records:
        read = TrialRecord.model_validate(record)
        assert known(read.model_dump(mode="json", context=IN_WORDS), record) == record
        assert TrialRecord.model_validate(read.model_dump(mode="json")) == read


CERTIFICATES = sorted((HERE / "studies").glob("*/certified/*.json"))


@pytest.mark.parametrize("file", CERTIFICATES, ids=lambda file: file.stem)
def test_certificates_are_valid_and_unchanged(file: Path) -> None:
    content = json.loads(file.read_text())
    read = Certificate.model_validate(content)
    assert known(read.model_dump(mode="json", context=IN_WORDS), content) == content


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("best", "--study", "tiny"), "best.yaml"),
        (("show", "tiny/t0001"), "shown.yaml"),
    ],
)
def test_exported_recipes_are_the_same(
    store: Path, call: Call, command: tuple[str, ...], name: str
) -> None:
    done = call(*command, "--export", f"again-{name}", folder=store)
    assert done.code == 0, done.err
    again, before = (yaml.safe_load((store / each).read_text()) for each in (f"again-{name}", name))
    assert known(again, before) == before


def test_frames_have_the_trials_with_their_curves(store: Path) -> None:
    results = tune_speed.Results(f"sqlite:///{store}/mlflow.db")
    trials = results.trials("tiny")
    assert len(trials) == len(expected("trials_tiny"))
    shown = expected("show_estimate")
    curve = results.curves(shown["run_id"])
    evaluations = shown["runs"][0]["evaluations"]
    assert list(curve["step"]) == [each["step"] for each in evaluations]
    assert list(curve["accuracy"]) == pytest.approx([each["accuracy"] for each in evaluations])


def test_page_of_a_study_has_all_its_trials(store: Path, call: Call) -> None:
    assert call("report", "tiny", "--html", "page.html", folder=store).code == 0
    page = (store / "page.html").read_text()
    assert all(f"t000{number}" in page for number in range(8))


def test_store_whose_files_are_elsewhere_still_lists_its_trials(tmp_path: Path, call: Call) -> None:
    """MLflow knows only where the files of runs were, unless somebody tells it."""
    unpack(tmp_path)
    shutil.rmtree(tmp_path / "mlartifacts")
    done = call(*QUESTIONS["trials_tiny"], folder=tmp_path)
    assert known(plain(done.json), expected("trials_tiny")) == expected("trials_tiny")
    shown = call(*QUESTIONS["show_estimate"], folder=tmp_path)
    (ours,), (kept,) = plain(shown.json)["runs"], expected("show_estimate")["runs"]
    assert ours["evaluations"] == kept["evaluations"][-1:]  # In a tag of the run.
    assert known({**ours, "evaluations": kept["evaluations"]}, kept) == kept


def test_logged_model_classifies(store: Path) -> None:
    import mlflow.pytorch

    (place,) = (store / "mlartifacts").glob("tiny-*/models/*/artifacts")
    model = mlflow.pytorch.load_model(str(place))
    logits = model(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
    assert logits.shape == (3, 10) and logits.isfinite().all()


# --- Training again


@pytest.mark.slow
def test_exported_recipe_trains_to_the_same_curve(store: Path) -> None:
    done = run("train", "best.yaml", "--json", folder=store, **EVERYWHERE)
    assert done.code == 0, done.err
    ours, kept = (curve_of(each["runs"][0]) for each in (done.json, expected("train")))
    assert len(ours) == len(kept) > 1
    for mine, theirs in zip(ours, kept, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-4)


def curve_of(result: dict[str, Any]) -> list[dict[str, float]]:
    """Returns what of a run's evaluations is no time."""
    fields = ("step", "samples", "epoch", "accuracy", "macro_f1", "loss", "train_loss")
    return [
        {name: e[name] for name in fields if e[name] is not None} for e in result["evaluations"]
    ]


def test_trial_of_the_store_trains(store: Path, call: Call) -> None:
    done = call("train", "tiny/t0001", "--json", folder=store)
    assert done.code == 0, done.err
    before = plain(record_of("tiny", "t0001")["recipe"])
    assert known(plain(done.json["recipe"]), before) == before


def test_trial_with_a_plugin_trains_with_it_alone(store: Path, call: Call) -> None:
    refused = call("train", "plugged/t0000", folder=store)
    assert refused.code == 2 and "Add `--plugin my_nets.py`" in refused.err
    done = call("train", "plugged/t0000", "--json", *PLUGIN, folder=store)
    assert done.code == 0, done.err
    assert done.json["plugins"] == record_of("plugged", "t0000")["plugins"]


def test_trial_of_a_function_is_no_recipe_to_train(store: Path, call: Call) -> None:
    refused = call("train", "hill/t0001", folder=store)
    assert refused.code == 2 and "--train FILE.py:FUNCTION" in refused.err


def test_function_of_the_old_study_runs_as_recorded(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store)
    old = record_of("hill", "t0001")
    record = run_own_trial(hill_spec(old), function_of(LOOP[1]))
    assert record.workload == old["workload"]
    ours, kept = record.model_dump(mode="json")["runs"][0], old["runs"][0]
    assert [(e["step"], e["accuracy"]) for e in ours["evaluations"]] == [
        (e["step"], pytest.approx(e["accuracy"])) for e in kept["evaluations"]
    ]


def hill_spec(record: dict[str, Any]) -> OwnSpec:
    names = ("study", "trial_id", "params", "workload_hash", "space_hash")
    return OwnSpec(
        **{name: record[name] for name in names},
        recipe=OwnRecipe.model_validate(record["recipe"]),
        workload=OwnTask.model_validate(record["workload"]),
        seed=record["runs"][0]["seed"],
        allotment=Allotment(device="cpu"),
    )


# --- Going on


def broken_spec(*, cpus: int = 2, place: Path | None = None) -> TrialSpec:
    """Returns the trial that was killed, as its study gave it to a machine of so many cores."""
    header, first = events("broken")[0], record_of("broken", "t0000")
    proposed = next(e for e in events("broken") if e.get("trial_id") == "t0001")
    return TrialSpec(
        study="broken",
        trial_id="t0001",
        params=proposed["params"],
        recipe=Recipe.model_validate(saved_header("broken", "t0001").recipe),
        workload=Workload.model_validate(first["workload"]),
        workload_hash=header["workload_hash"],
        space_hash=header["space_hash"],
        seed=proposed["seed"],
        allotment=Allotment(device="cpu", cpu_fraction=1 / cpus),
        checkpoint=None if place is None else CheckpointPlan(place=str(place), every_s=1e6),
    )


def saved_header(study: str, trial_id: str) -> Any:
    file = HERE / "studies" / study / "checkpoints" / f"{trial_id}.ckpt"
    return split(file.read_bytes())[0]


def make_ours(place: Path, **identity: str) -> int:
    """Makes a checkpoint one of this machine, and returns its step."""
    header, payload = split(place.read_bytes())
    ours = header.model_copy(update={"identity": {**header.identity, **identity}})
    content = io.BytesIO(payload)
    with place.open("wb") as file:
        write(file, head(ours, content), content)
    return header.step


def test_checkpoint_is_of_the_trial_that_its_study_gives_today() -> None:
    ours, saved = identity_of(broken_spec(), CPU), saved_header("broken", "t0001").identity
    assert ours.keys() == saved.keys()
    machine = {key for key in ours if key == "device" or key.startswith("version of ")}
    assert {key: ours[key] for key in ours.keys() - machine} == {
        key: saved[key] for key in saved.keys() - machine
    }


def test_trial_goes_on_from_its_checkpoint(copy: Path) -> None:
    place = copy / "tune_speed_studies" / "broken" / "checkpoints" / "t0001.ckpt"
    state = load(split(place.read_bytes())[1])
    spec = broken_spec(place=place)
    step = make_ours(place, **identity_of(spec, CPU))
    trial = run_trial(spec)
    next(trial)
    with pytest.raises(StopIteration) as ended:
        trial.send("An epoch is enough.")
    (result,) = ended.value.value.runs
    num_steps = saved_header("broken", "t0001").num_steps
    assert f"resumed at step {step} of {num_steps}" in joined(result.note), result
    saved = json.loads(state["progress"])["evaluations"]
    *before, last = (e.model_dump(mode="json") for e in result.evaluations)
    assert known(before, saved) == saved and result.steps == last["step"] == step + 12
    assert last["loss"] == pytest.approx(saved[-1]["loss"], abs=0.1)  # At first it is 2.3.
    assert not place.exists()


@pytest.mark.slow
def test_killed_search_goes_on_and_runs_nothing_again(copy: Path) -> None:
    place = copy / "tune_speed_studies" / "broken" / "checkpoints" / "t0001.ckpt"
    # Ray counts cores in several ways; the share of them is part of what a trial is.
    count = {"RAY_USE_MULTIPROCESSING_CPU_COUNT": "1"}
    step = make_ours(place, **identity_of(broken_spec(cpus=os.cpu_count() or 1), CPU))
    before = finished(copy, "broken")
    more = ("--resume", "--trials", "2", "--json")
    done = run_inside("search", "broken.yaml", *more, folder=copy, **count)
    assert done.code == 1, done.err  # Its target is met by no trial.
    first, second = finished(copy, "broken")
    assert [first] == before
    assert second["trial_id"] == "t0001"
    assert f"resumed at step {step} of " in second["runs"][0]["note"]
    assert sum(done.json["trials"].values()) == 2


@pytest.mark.slow
def test_killed_search_of_a_function_goes_on(copy: Path, call: Call) -> None:
    place = copy / "tune_speed_studies" / "slope" / "checkpoints" / "t0000.ckpt"
    step = make_ours(place, device=device_here())
    done = call("search", "slope.yaml", *LOOP, "--resume", folder=copy)
    assert done.code == 1, done.err
    first, second = finished(copy, "slope")
    assert f"resumed at step {step}" in first["runs"][0]["note"]
    steps = [each["step"] for each in first["runs"][0]["evaluations"]]
    assert steps == list(range(5, 201, 5))
    assert "resumed" not in second["runs"][0]["note"]


@pytest.mark.slow
def test_study_with_a_plugin_goes_on_with_it_alone(copy: Path, call: Call) -> None:
    before = finished(copy, "plugged")
    more = ("search", "plugged.yaml", "--resume", "--trials", "4")
    refused = call(*more, folder=copy)
    assert refused.code == 2 and "my_net" in refused.err
    done = call(*more, *PLUGIN, folder=copy)
    assert done.code == 0, done.err
    assert "4 trials: " in done.out and finished(copy, "plugged") == before


@pytest.mark.slow
def test_old_study_is_certified_again(copy: Path, call: Call) -> None:
    few = ("--again", "--top", "1", "--seeds", "1", "--final", "0", "--json")
    done = call("certify", "tiny", *few, folder=copy)
    assert done.code in (0, 1), done.err  # With one fresh seed a recipe may miss.
    contents = done.json["certification"]["certificates"]
    assert contents  # That of the old leader is among them, where it is not the fastest estimate.
    for content in contents:
        certificate = Certificate.model_validate(content)
        old = record_of("tiny", certificate.provenance.trial_id)
        assert known(content["recipe"]["resolved"], old["recipe"]) == old["recipe"]
        assert certificate.task.workload_hash == old["workload_hash"]
        assert all(each.seed >= FIRST_FRESH_SEED for each in certificate.result.runs)
        assert certificate.provenance.tuning_trials == len(finished(copy, "tiny"))

"""Plugins on the command line, and on their way to the processes that train."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.command import Done
from helpers.components.plugins import MY_NET, RECIPE, write
from helpers.imports import imported_by_command

from tune_speed.components.plugins import registry
from tune_speed.components.speedups.base import Shape
from tune_speed.core.records import TrialRecord
from tune_speed.study.file import parse_recipe
from tune_speed.tracking.schema import record_tags
from tune_speed.training.checkpoint.checkpoints import identity_of
from tune_speed.training.distributed.local import run_here
from tune_speed.training.objective import finish
from tune_speed.training.precheck import answers
from tune_speed.training.throughput import Place, throughput_key
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.tuning.ray.trial_process import TrialProcess

Call = Callable[..., Done]


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    yield
    registry.unload()


def spec_of(text: str = RECIPE, **allotment: object) -> TrialSpec:
    file = parse_recipe(text, file="recipe.yaml")
    return TrialSpec(
        study="tiny",
        trial_id="t0000",
        params={},
        recipe=file.recipe,
        workload=file.workload,
        workload_hash="w",
        space_hash="s",
        seed=0,
        allotment=Allotment(device="cpu", **allotment),
    )


def test_train_takes_a_plugin_and_its_record_says_so(tmp_path: Path, call: Call) -> None:
    write(tmp_path)
    write(tmp_path, "recipe.yaml", RECIPE)
    refused = call("train", "recipe.yaml", folder=tmp_path)
    assert refused.code == 2 and "It is in my_nets.py: add `--plugin my_nets.py`." in refused.err
    done = call("train", "recipe.yaml", "--json", "--plugin", "my_nets.py", folder=tmp_path)
    assert done.code == 0, done.err
    assert done.json["plugins"] == registry.hashes()
    tags = record_tags(TrialRecord.model_validate(done.json))
    assert tags["tune_speed.plugin.my_nets.py"] == registry.hashes()["my_nets.py"]


def test_listings_and_schema_have_the_entries(tmp_path: Path, call: Call) -> None:
    write(tmp_path)
    assert "my_net" not in call("list", "models", folder=tmp_path).out
    listed = call("list", "models", "--json", "--plugin", "my_nets.py", folder=tmp_path).json
    about = {row["name"]: row for row in listed}["my_net"]
    assert "Pixels, one hidden layer, classes." in about.values()
    assert "Units of the hidden layer." in call("schema", folder=tmp_path).out


def test_the_environment_names_plugins_for_every_command(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.setenv(registry.VARIABLE, "my_nets.py")
    assert "my_net" in call("list", "models", folder=tmp_path).out
    registry.unload()
    monkeypatch.setenv(registry.VARIABLE, "absent.py")
    done = call("leaderboard", folder=tmp_path)
    assert done.code == 2 and "absent.py, which is not there" in done.err
    assert call("leaderboard", "--help", folder=tmp_path).code == 0


def test_a_broken_plugin_ends_a_command_with_what_to_mend(tmp_path: Path, call: Call) -> None:
    write(tmp_path, text=MY_NET.replace("num_classes: int", "classes: int"))
    done = call("list", "models", "--plugin", "my_nets.py", folder=tmp_path)
    assert done.code == 2
    file = tmp_path / "my_nets.py"
    assert f"error: {file}:19: MyNet.network: must take every call of its base" in done.err
    assert "Traceback" not in done.err


def test_without_plugins_nothing_of_them_is_imported() -> None:
    heavy = ("torch", "tune_speed.components.plugins.registry")
    assert imported_by_command("search", "--help", names=heavy) == set()


@pytest.mark.slow
def test_networks_of_plugins_are_tried_before_a_search(tmp_path: Path) -> None:
    text = MY_NET.replace("image_size**2", "49")  # For images of 7x7 pixels.
    registry.load([str(write(tmp_path, text=text))])
    recipe = spec_of().recipe.model_dump(mode="json")
    data = {"image_shape": [8, 8, 1], "num_classes": 10, "num_train": 300}
    question = json.dumps({"recipes": [recipe], **data})
    ((here,),) = answers(json.loads(question))
    done = subprocess.run(
        [sys.executable, "-m", "tune_speed.training.precheck"],
        input=question,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[here]]
    assert here["path"] == "model"


def test_a_trial_s_process_loads_plugins_before_it_reads_the_trial(tmp_path: Path) -> None:
    """Without Ray: what its process does with what the driver gives it."""
    registry.load([str(write(tmp_path))])
    from tune_speed.components.plugins.registry import shipped

    given = {"plugins": shipped(), "spec": spec_of().model_dump_json()}
    registry.unload()
    process = TrialProcess.__new__(TrialProcess)
    with pytest.raises(KeyError, match="stop_after_s"):  # Which it wants once it has the trial.
        process._begin(given)
    assert type(process._trial.spec.recipe.model).__name__ == "MyNet"
    registry.unload()
    gone = given["plugins"].replace("my_nets.py", "gone").replace('"source":', '"version":')
    with pytest.raises(Exception, match="must be an installed distribution"):
        process._begin({**given, "plugins": gone})


@pytest.mark.slow
def test_ranks_on_this_machine_have_the_plugins(tmp_path: Path) -> None:
    registry.load([str(write(tmp_path))])
    spec = spec_of(RECIPE.replace("epochs: 2", "epochs: 1\n  devices: 2"))
    record = finish(run_here(spec), on_report=lambda record: None)
    assert str(record.stop_reason).startswith(("target", "the run")), record.runs[-1].traceback
    assert record.plugins == registry.hashes()


def test_checkpoints_and_step_times_are_of_one_source(tmp_path: Path) -> None:
    import torch

    cpu, text = torch.device("cpu"), RECIPE.replace("my_net", "resnet20")
    without, key = identity_of(spec_of(text), cpu), key_of(text)
    registry.load([str(write(tmp_path))])
    loaded = identity_of(spec_of(text), cpu)
    assert {k: v for k, v in loaded.items() if k not in without} == {
        "plugin my_nets.py": registry.hashes()["my_nets.py"]
    }
    assert {k: loaded[k] for k in without} == without
    assert key_of(text) != key
    registry.unload()
    assert key_of(text) == key


def key_of(text: str) -> str:
    return throughput_key(
        spec_of(text).recipe,
        shape=Shape(8, 8),
        image_shape=(8, 8, 1),
        num_train=300,
        num_classes=10,
        place=Place("cpu", "cpu", {}, {}),
    )

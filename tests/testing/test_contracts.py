import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import broken_entries as broken
import pytest
import torch
from helpers.texts import Texts

from tune_speed import components, testing
from tune_speed.components.metrics import METRICS
from tune_speed.components.models import MODELS
from tune_speed.components.models.cifar import PlainCNN
from tune_speed.components.plugins.validation import TABLES
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.core.errors import ConfigError

SPEEDUP_FIELDS: dict[str, dict[str, Any]] = {
    "easiest_first": {"groups": (0, 0, 0, 0, 0, 1, 1, 1, 1, 1)},
    "meprop": {"conv_frac": 0.5},
}
SOUND = {
    *("MODELS.Good", "OPTIMIZERS.Sound", "DATASETS.Noise"),
    *("SPEEDUPS.Still", "SCHEDULES.Falling"),
}


@pytest.mark.parametrize("name", ["resnet20", "plain_cnn", "speednet"])
def test_models_keep_their_contracts(name: str) -> None:
    testing.check_model(name, MODELS[name], image_size=16)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_keep_their_contracts(name: str) -> None:
    testing.check_schedule(name, SCHEDULES[name])


# Pretraining needs another data set of as many channels, which ours is not.
@pytest.mark.parametrize("name", sorted(SPEEDUPS.keys() - {"pretrain_other"}))
def test_speedups_keep_their_contracts(name: str) -> None:
    testing.check_speedup(name, SPEEDUPS[name], fields=SPEEDUP_FIELDS.get(name), image_size=8)


@pytest.mark.parametrize("name", METRICS)
def test_metrics_keep_their_contracts(name: str) -> None:
    testing.check_metric(name, METRICS[name])


def test_each_contract_is_broken_by_an_entry_that_is_told_what_to_mend(kept_text: Texts) -> None:
    plugin = ModuleType("broken")
    for table in TABLES:
        own = {name: each for name, each in vars(broken).items() if not hasattr(components, name)}
        vars(plugin)[table] = {n: each for n, each in own.items() if TABLES[table].fits(each)}
    every = testing.contracts(plugin, image_size=16)[1:]
    told: dict[str, str] = {}
    unbroken = {id_.split(".")[2] for id_, _ in every}
    for id_, check in every:
        place, _, contract = id_.rpartition(".")
        try:
            check()
        except testing.ContractError as error:
            told.setdefault(place, f"{contract}: {_plain(str(error))}")
            unbroken.discard(contract)
    assert unbroken == set()
    assert {id_.rpartition(".")[0] for id_, _ in every} - told.keys() == SOUND
    kept_text("".join(f"{place}, {text}\n" for place, text in told.items()))


def test_what_an_entry_itself_raised_is_kept_as_the_cause() -> None:
    with pytest.raises(testing.ContractError) as caught:
        testing.check_speedup("entry", broken.FailsToBegin, image_size=8)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_speedup_that_takes_none_of_our_networks_is_checked_on_a_given_one() -> None:
    fields = {"include_stochastic_depth": False}
    model = PlainCNN(width=4, dropout=0.0, input_dropout=0.0)
    with pytest.raises(testing.ContractError, match="Give the contracts a `model` that it accepts"):
        testing.check_speedup(
            "dropout_removal", SPEEDUPS["dropout_removal"], fields=fields, image_size=8, model=model
        )


def test_contracts_leave_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    testing.check_model("good", broken.Good)
    testing.check_optimizer("sound", broken.Sound)
    testing.check_speedup("still", broken.Still, image_size=8)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_no_plugin_may_be_is_one_contract_of_the_module(tmp_path: Path) -> None:
    file = tmp_path / "no_nets.py"
    file.write_text("MODELS = {'Net': dict, 'list': []}\nSCHEDULES = []\n")
    ((id_, check),) = testing.contracts(file)
    assert id_ == "no_nets.can_be_loaded_as_a_plugin"
    with pytest.raises(testing.ContractError) as caught:
        check()
    message = str(caught.value)
    assert f"{file}:1: " in message and "lower-case letters" in message
    assert f"{file}:2: SCHEDULES must be a dict" in message


def test_a_file_without_tables_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("")
    ((_, check),) = testing.contracts(tmp_path / "bare.py")
    with pytest.raises(testing.ContractError, match="one of MODELS, "):
        check()


def test_a_file_takes_no_other_modules_place(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("MODELS = []")
    testing.contracts(tmp_path / "json.py")
    assert sys.modules["json"] is json


def test_a_file_that_is_not_there_and_fields_of_no_entry_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        testing.contracts(tmp_path / "my_nets.py")
    plugin = ModuleType("my_nets")
    vars(plugin)["MODELS"] = {"good": broken.Good}
    with pytest.raises(ConfigError, match="did you mean `good`"):
        testing.contracts(plugin, fields={"god": {}})


def _plain(text: str) -> str:
    """Returns a message without figures, places and what libraries say."""
    text = text.replace(broken.__file__, "FILE")
    text = re.sub(r"(fails with \w+): .*?(?= \(the traceback|\. [A-Z])", r"\1: …", text)
    text = re.sub(r"FILE:\d+", "FILE", text)
    return re.sub(r"-?\d+\.\d+(e[-+]\d+)?|\b[0-9a-f]{16,}\b|stage=\d+", "…", text)

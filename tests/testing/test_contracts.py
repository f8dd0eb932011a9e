"""Our entries keep the contracts that users' pytest runs, and broken ones are told what to mend."""

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import broken_entries as broken
import pytest
import torch

from tune_speed.components.metrics import METRICS
from tune_speed.components.models import MODELS
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.cifar import PlainCNN
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.base import OptimizerConfig
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.schedules.base import ScheduleConfig
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import SpeedupConfig
from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig
from tune_speed.testing import (
    ContractError,
    check_dataset,
    check_metric,
    check_model,
    check_optimizer,
    check_schedule,
    check_speedup,
    contracts,
)

SMALL_MODELS = ("resnet20", "plain_cnn", "speednet")
OPTIMIZER_FIELDS = {"yellowfin": {"lr": 1.0}}
SPEEDUP_FIELDS: dict[str, dict[str, Any]] = {
    "easiest_first": {"groups": (0, 0, 0, 0, 0, 1, 1, 1, 1, 1)},
    "meprop": {"conv_frac": 0.5},
}
BASES: dict[str, type[Config]] = {
    "MODELS": ModelConfig,
    "DATASETS": DatasetConfig,
    "OPTIMIZERS": OptimizerConfig,
    "SCHEDULES": ScheduleConfig,
    "SPEEDUPS": SpeedupConfig,
}


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_models_keep_their_contracts(name: str) -> None:
    check_model(name, MODELS[name], image_size=16)


def test_a_data_set_keeps_its_contracts() -> None:
    check_dataset("digits", DATASETS["digits"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_keep_their_contracts(name: str) -> None:
    check_optimizer(name, OPTIMIZERS[name], fields=OPTIMIZER_FIELDS.get(name))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_keep_their_contracts(name: str) -> None:
    check_schedule(name, SCHEDULES[name])


# Pretraining needs another data set of as many channels, which ours is not.
@pytest.mark.parametrize("name", sorted(SPEEDUPS.keys() - {"pretrain_other"}))
def test_speedups_keep_their_contracts(name: str) -> None:
    check_speedup(name, SPEEDUPS[name], fields=SPEEDUP_FIELDS.get(name), image_size=8)


@pytest.mark.parametrize("name", METRICS)
def test_metrics_keep_their_contracts(name: str) -> None:
    check_metric(name, METRICS[name])


def test_sound_entries_of_a_user_keep_them() -> None:
    check_model("good", broken.Good)
    check_optimizer("sound", broken.Sound)
    check_dataset("noise", broken.Noise)
    check_speedup("still", broken.Still, image_size=8)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (broken.Undocumented, ["must have a docstring", "below `class …`"]),
        (broken.BareField, ["every field must be documented", "`depth`"]),
        (broken.NoDefault, ["must be made of the fields", "depth", "fields={'entry': {…}}"]),
        (broken.TakesATuple, ["readable again", "YAML has lists and no tuples"]),
        (broken.ChangesWhatItReads, ["width=5", "came back as", "must not change"]),
        (broken.DrawsInCheck, ["`check` must leave torch's random numbers alone", "fork_rng"]),
        (broken.TenClasses, ["(4, 7)", "have (4, 10)", "`num_classes` outputs"]),
        (broken.ThreeChannels, ["(4, 1, 32, 32)", "from `in_channels`"]),
        (broken.OtherArguments, ["unexpected keyword argument 'in_channels'", "in_channels: int"]),
        (broken.Evaluating, ["training mode", "Leave out `.eval()`"]),
        (broken.CutOff, ["reach every weight", "`first.1.weight`", "without `.detach()`"]),
        (broken.Zeros, ["other than 0", "initial weights of 0"]),
        (broken.OwnSeed, ["must differ for another torch seed", "Leave out torch.manual_seed"]),
        (broken.Unseeded, ["the same for the same torch seed", "not by numpy"]),
        (broken.NormalisedByBatch, ["in a batch and alone", "running statistics"]),
        (broken.MixesTypes, ["fails with RuntimeError"]),
    ],
)
def test_a_broken_model_is_told_what_to_mend(kind: Any, says: list[str]) -> None:
    assert_told(lambda: check_model("entry", kind), kind.__name__, says)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (broken.Remembering, ["same progress and losses", "Keep nothing between calls"]),
        (broken.ToZero, ["in step 0 of 1 it is 0.0", "progress - step_frac"]),
        (broken.PlainFloat, ["must return Factors(lr=…, momentum=…)", "returned 1.0"]),
        (broken.FollowsUnsaid, ["`follows_loss: ClassVar[bool] = True`"]),
        (broken.SortsLosses, ["must leave `losses` as they are", "Work on a copy"]),
    ],
)
def test_a_broken_schedule_is_told_what_to_mend(kind: Any, says: list[str]) -> None:
    assert_told(lambda: check_schedule("entry", kind), kind.__name__, says)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (broken.KeepsItsRate, ["while the groups' `lr` is 0", "Read group['lr']"]),
        (broken.Ascends, ["within 0.5 of w = 1", "Step against the gradient"]),
        (broken.ForgetsItsSteps, ["same steps", "self.state[parameter]"]),
        (broken.HoldsFrozen, ["the 8 parameters that require a gradient", "and 2 others"]),
        (broken.NeverDecays, ["it moved none", "decay by group['weight_decay']"]),
        (broken.MovesTheAbsent, ["`weight`", "`if parameter.grad is None: continue`"]),
        (broken.NoClosure, ["must return what its closure returns", "returned None"]),
        (broken.NoFusedKernel, ["with `fused=True` and without", "or pass over it"]),
        (broken.BareGroups, ["`base_lr`", "self.groups(model, effective_batch_size)"]),
    ],
)
def test_a_broken_optimizer_is_told_what_to_mend(kind: Any, says: list[str]) -> None:
    assert_told(lambda: check_optimizer("entry", kind), kind.__name__, says)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (broken.LabelsFromOne, ["from 0 to 1", "are from 1 to 2", "Number classes from 0"]),
        (broken.ShortLabels, ["must be int64", "uint8", "dtype=np.int64"]),
        (broken.ListOfLabels, ["both NumPy arrays", "Images of ndarray, list", "np.array"]),
        (broken.Normalised, ["must be uint8", "float32", "Do not normalise"]),
        (broken.ChannelsFirst, ["(20, 1, 5, 5)", ".transpose(0, 2, 3, 1)"]),
        (broken.OneOfAKind, ["set images aside for validation", "at least some images"]),
        (broken.Miscounted, ["`num_train`", "returned 21, and 20 images"]),
        (broken.Drawn, ["decoding twice", "draw nothing"]),
        (broken.Silent, ["(20, 20)", "never"]),
        (broken.FolderAsSource, ["no file /", "no folders"]),
        (broken.NoSuchField, ["`location_fields`", "`root`"]),
    ],
)
def test_a_broken_data_set_is_told_what_to_mend(kind: Any, says: list[str]) -> None:
    assert_told(lambda: check_dataset("entry", kind), kind.__name__, says)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (broken.NoSlot, ["`slot` must be one of init, ", "it is None"]),
        (broken.MeanLoss, ["must add up", "not their mean"]),
        (broken.FailsToBegin, ["fails with KeyError: 'depth'"]),
        (broken.CountsOn, ["steps of warm-up", "back in `begin`"]),
        (broken.CountsUnsaved, ["a run that is resumed", "from `state`"]),
        (broken.DrawsAHead, ["for the same torch seed", "`1.weight`", "not by numpy"]),
        (broken.LeavesOut, ["`spare.weight`", "`leaves_gradients_out: ClassVar[bool] = True`"]),
        (broken.Reseeds, ["leave torch's random numbers alone", "torch.Generator of your own"]),
        (broken.HalvesBatches, ["the 8 of 8 samples that `kept` says", "4 labels"]),
        (broken.OtherShapeEachTime, ["the same for the same `frac`", "`frac` and the fields"]),
        (broken.ChangesInCheck, ["in training mode", "it changed its mode", "`change_model`"]),
        (broken.TwiceTheLogits, ["finite logits (8, 10)", "(8, 20)"]),
        (broken.EndsSmall, ["end with whole images", "height=8"]),
    ],
)
def test_a_broken_speedup_is_told_what_to_mend(kind: Any, says: list[str]) -> None:
    check = lambda: check_speedup("entry", kind, image_size=16)  # noqa: E731
    assert_told(check, kind.__name__, says)


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (broken.TERSE, ["`about` must be a sentence", "'Accuracy'"]),
        (broken.NO_UNIT, ["`unit` must be given", "may be `1`"]),
        (broken.FAILS_EARLY, ["a run that failed at once", "IndexError", "Return None"]),
        (broken.GIVES_INTEGERS, ["float or None", "`float(…)`"]),
    ],
)
def test_a_broken_metric_is_told_what_to_mend(metric: Any, says: list[str]) -> None:
    assert_told(lambda: check_metric("entry", metric), "entry", says)


def test_each_contract_is_broken_by_some_entry() -> None:
    plugin = ModuleType("broken")
    for table, base in BASES.items():
        kinds = [kind for kind in vars(broken).values() if _is_of(kind, base)]
        vars(plugin)[table] = {kind.__name__: kind for kind in kinds}
    by_name = defaultdict[str, list[Callable[[], None]]](list)
    for id_, check in contracts(plugin, image_size=8)[1:]:
        by_name[id_.rpartition(".")[2]].append(check)
    assert [name for name, checks in by_name.items() if not any(map(_is_broken, checks))] == []


def test_what_an_entry_itself_raised_is_kept_as_the_cause() -> None:
    with pytest.raises(ContractError) as caught:
        check_model("entry", broken.OtherArguments)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_speedup_that_takes_none_of_our_networks_is_checked_on_a_given_one() -> None:
    fields = {"include_stochastic_depth": False}
    model = PlainCNN(width=4, dropout=0.0, input_dropout=0.0)
    with pytest.raises(ContractError, match="Give the contracts a `model` that it accepts"):
        check_speedup(
            "dropout_removal", SPEEDUPS["dropout_removal"], fields=fields, image_size=8, model=model
        )


def test_contracts_leave_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    check_model("good", broken.Good)
    check_optimizer("sound", broken.Sound)
    check_speedup("still", broken.Still, image_size=8)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_entry_of_a_plugin_has_each_contract_of_its_table() -> None:
    plugin = ModuleType("my_nets")
    vars(plugin).update(MODELS={"good": broken.Good}, SCHEDULES={"to_zero": broken.ToZero})
    ids = [id_ for id_, _ in contracts(plugin)]
    assert len(set(ids)) == len(ids)
    assert "MODELS.good.gradients_reach_every_weight" in ids
    assert "SCHEDULES.to_zero.factors_are_a_pure_function" in ids
    both = [id_.rpartition(".")[2] for id_ in ids].count("class_and_every_field_are_documented")
    assert both == 2


def test_what_no_plugin_may_be_is_one_contract_of_the_module(tmp_path: Path) -> None:
    file = tmp_path / "no_nets.py"
    file.write_text("MODELS = {'Net': dict, 'list': []}\nSCHEDULES = []\n")
    ((id_, check),) = contracts(file)
    assert id_ == "no_nets.can_be_loaded_as_a_plugin"
    with pytest.raises(ContractError) as caught:
        check()
    message = str(caught.value)
    assert f"{file}:1: " in message and "lower-case letters" in message
    assert f"{file}:2: SCHEDULES must be a dict" in message


def test_a_file_without_tables_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("")
    ((_, check),) = contracts(tmp_path / "bare.py")
    with pytest.raises(ContractError, match="one of MODELS, "):
        check()


def test_a_file_takes_no_other_modules_place(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("MODELS = []")
    contracts(tmp_path / "json.py")
    assert sys.modules["json"] is json


def test_a_file_that_is_not_there_and_fields_of_no_entry_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no "):
        contracts(tmp_path / "my_nets.py")
    plugin = ModuleType("my_nets")
    vars(plugin)["MODELS"] = {"good": broken.Good}
    with pytest.raises(ConfigError, match="did you mean `good`"):
        contracts(plugin, fields={"god": {}})


def _is_of(kind: Any, base: type[Config]) -> bool:
    return isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == broken.__name__


def _is_broken(check: Callable[[], None]) -> bool:
    try:
        check()
    except ContractError:
        return True
    return False


def assert_told(check: Any, name: str, says: list[str]) -> None:
    with pytest.raises(ContractError) as caught:
        check()
    message = str(caught.value)
    for part in [name, *says]:
        assert part in message, message
    assert message.endswith(".")

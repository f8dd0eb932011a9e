from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers.making import make_record
from helpers.training.tiny import CPU, make_images, make_splits, make_workload, to_end

from tune_speed.components.models.libraries import Timm
from tune_speed.core.records import TrialRecord
from tune_speed.data.split import Splits
from tune_speed.experiments.run_summary import runs_text
from tune_speed.reporting.trials.recipe_export import recipe_that_ran
from tune_speed.reporting.trials.text import describe
from tune_speed.training.build import Job, normalisation_of, open_loader, view_of
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe

SIDE = 32


def splits_of(channels: int = 3) -> Splits:
    splits = make_splits(channels=channels)
    train_part = make_images(24, size=SIDE, channels=channels)
    held_out = make_images(18, size=SIDE, channels=channels, seed=1)
    return splits._replace(train=train_part, validation=held_out, test=held_out)


def recipe_of(weights: Path | None, **changes: object) -> Recipe:
    model = Timm(name="test_resnet", weights_file=None if weights is None else str(weights))
    fields = {"optimizer": {"sgd": {"lr": 0.01}}, "epochs": 1.0, "batch_size": 8}
    recipe = Recipe.model_validate({**fields, "model": {"resnet20": {}}, **changes})
    return recipe.model_copy(update={"model": model})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights of timm's test_resnet, under other names."""
    state = timm.create_model("test_resnet", num_classes=7).state_dict()
    named = {f"m{n}.{name.rpartition('.')[2]}": w for n, (name, w) in enumerate(state.items())}
    torch.save(named, tmp_path / "w.pt")
    return tmp_path / "w.pt"


def recorded(recipe: Recipe, splits: Splits) -> TrialRecord:
    run = to_end(train(Job(make_workload(), recipe, splits, seed=1, device=CPU)))
    changes = {"recipe": recipe.model_dump(mode="json"), "runs": (run,)}
    return make_record().model_copy(update=changes)


@pytest.mark.parametrize("channels", [1, 3])
def test_training_and_evaluation_see_what_published_weights_know(
    channels: int, weights: Path
) -> None:
    splits, recipe = splits_of(channels), recipe_of(weights)
    cfg = timm.get_pretrained_cfg("test_resnet")
    mean, std = (np.array(values).reshape(-1, 3) for values in (cfg.mean, cfg.std))
    if channels == 1:
        mean, std = mean.mean(1), std.mean(1)
    batches = open_loader(recipe, splits.validation, splits, seed=0, device=CPU).epoch(0)
    seen = torch.cat([images for images, _ in batches]).permute(0, 2, 3, 1).numpy()
    expected = (splits.validation.pixels / 255 - mean) / std
    assert np.sort(seen.ravel()) == pytest.approx(np.sort(expected.ravel()), abs=1e-5)
    used = normalisation_of(recipe, splits)
    assert view_of(recipe, splits)[:2] == (used.mean, used.std)


def test_fresh_networks_keep_the_training_part_s_statistics() -> None:
    splits = splits_of()
    found = normalisation_of(recipe_of(None), splits)
    assert (found.mean, found.std) == (splits.mean, splits.std)


def test_a_run_records_and_shows_by_what_its_images_were_normalised(
    weights: Path,
) -> None:
    record = recorded(recipe_of(weights), splits_of())
    (run,) = record.runs
    cfg = timm.get_pretrained_cfg("test_resnet")
    assert run.normalisation is not None
    assert (run.normalisation.mean, run.normalisation.std) == (cfg.mean, cfg.std)
    assert any(str(weights) in str(note) and "order" in str(note) for note in run.note)
    read = TrialRecord.model_validate_json(record.model_dump_json())
    assert read.runs[0].normalisation == run.normalisation
    for shown in (describe(record, run_id=None), runs_text(record)):
        assert shown.count(str(run.normalisation)) == 1
    assert "normalisation" not in make_record().runs[0].model_dump()


def test_a_run_of_an_earlier_version_runs_again_by_the_training_part_s_statistics(
    weights: Path,
) -> None:
    record, splits = recorded(recipe_of(weights), splits_of()), splits_of()
    assert recipe_that_ran(record).model.normalise_by == "weights"
    (run,) = record.runs
    old = record.model_copy(update={"runs": (run.model_copy(update={"normalisation": None}),)})
    recipe = recipe_that_ran(old)
    assert normalisation_of(recipe, splits).mean == splits.mean

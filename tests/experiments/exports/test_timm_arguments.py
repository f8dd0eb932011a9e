from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from helpers.data.files import write_cifar, write_noise
from helpers.experiments.exports import RECIPES, recipe_file, small
from PIL import Image
from scipy.stats import ks_2samp
from timm.data import Mixup, create_transform, resolve_data_config
from timm.optim import create_optimizer_v2, optimizer_kwargs
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler_factory import scheduler_kwargs
from torchvision.datasets import CIFAR10

from tune_speed.components.models.networks.layers import rate_factors
from tune_speed.components.optim.base import set_rates
from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data.augmentation.base import Drawer
from tune_speed.data.augmentation.config import draw
from tune_speed.data.augmentation.mix import mixed
from tune_speed.data.loaders.resident import Showing, View
from tune_speed.experiments.exports.timm_arguments import timm_arguments
from tune_speed.study.file import RecipeFile

OPTIONS = Path(__file__).with_name("timm_train_options.txt").read_text().splitlines()[1:]
UPDATES = 5
"""Of an epoch: 40 images in steps of 8."""
SMALL = "timm: {name: resnet10t}"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images for training and 10 to evaluate on, of 16 pixels in two classes."""
    folder = tmp_path_factory.mktemp("images")
    return write_noise(folder, {"train": 40, "test": 10}, size=16)


def a_file(
    images: Path,
    *,
    model: str = SMALL,
    optimizer: str = "sgd: {lr: 0.1}",
    more: str = "",
    epochs: str = "4",
    batch_size: int = 8,
) -> RecipeFile:
    return recipe_file(f"""
workload:
  dataset: {{name: image_folder, root: {images}, image_size: 16}}
  target: 1.0
recipe:
  model: {{{model}}}
  optimizer: {{{optimizer}}}
  epochs: {epochs}
  batch_size: {batch_size}
{more}""")


def read(file: RecipeFile) -> Namespace:
    """Returns the arguments as `train.py` reads them, which takes others' defaults for the rest."""
    values = yaml.safe_load(timm_arguments(file, origin="# of a test"))
    assert [name for name in values if name not in OPTIONS] == []
    return Namespace(**{"momentum": 0.9, "opt_eps": None, "opt_betas": None, **values})


SCHEDULES = {
    "constant": "",
    "warm": "  lr_schedule: {constant: {warmup_frac: 0.5, warmup_start: 0.2}}",
    "cosine": "  lr_schedule: {cosine: {final_frac: 0.1}}",
    "warm cosine": "  lr_schedule: {cosine: {warmup_frac: 0.25, final_frac: 0.05}}",
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_of_every_step_are_those_of_the_recipe(name: str, images: Path) -> None:
    file = a_file(images, more=SCHEDULES[name])
    arguments = read(file)
    weights = [torch.nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.SGD(weights, lr=arguments.lr)
    scheduler, epochs = create_scheduler_v2(
        optimizer, **scheduler_kwargs(arguments), updates_per_epoch=UPDATES
    )
    ours = torch.optim.SGD([{"params": weights, "base_lr": 0.1}], lr=0.1)
    assert epochs == 4
    for step in range(epochs * UPDATES):
        scheduler.step_update(step)
        factors = file.recipe.lr_schedule.factors((step + 1) / 20, step_frac=1 / 20)
        set_rates(ours, factors)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(ours.param_groups[0]["lr"])


OPTIMIZERS = [
    "sgd: {lr: 0.1, weight_decay: 0.01}",
    "sgd: {lr: 0.1, momentum: 0.5, nesterov: false}",
    "sgd: {lr: 2.0, lr_per_examples: 1024}",
    "adam: {lr: 0.01, weight_decay: 0.01, beta1: 0.8}",
    "adamw: {lr: 0.01, weight_decay: 0.1, beta2: 0.99, eps: 1e-6}",
    "timm: {name: lamb, lr: 0.01, weight_decay: 0.1, betas: [0.8, 0.9], trust_clip: true}",
    "timm: {name: rmsproptf, lr: 0.01, momentum: 0.8}",
]


def test_rates_of_layers_are_those_of_timm_s_own_argument(images: Path) -> None:
    file = a_file(images, optimizer="sgd: {lr: 0.1}", more="  layer_decay: 0.7\n")
    model = timm.create_model("resnet10t", num_classes=2)
    theirs = create_optimizer_v2(model, **optimizer_kwargs(read(file)))
    scales = {id(p): g["lr_scale"] for g in theirs.param_groups for p in g["params"]}
    assert scales == rate_factors(model, 0.7, 1.0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_of_the_recipe_s_optimizer(optimizer: str, images: Path) -> None:
    file = a_file(images, optimizer=optimizer)
    arguments, after = read(file), []
    for is_ours in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4))
        if is_ours:
            made = file.recipe.optimizer.build(model, effective_batch_size=8, fused=False)
        else:
            own = getattr(arguments, "opt_kwargs", {})
            made = create_optimizer_v2(model, **optimizer_kwargs(arguments), **own)
        for _ in range(3):
            made.zero_grad()
            model(torch.rand(2, 3, 5, 5)).sigmoid().sum().backward()
            made.step()
        after.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*after, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        SMALL,
        "timm: {name: resnet18, drop_rate: 0.2, drop_path_rate: 0.1}",
        "vit: {patch_size: 8, drop_rate: 0.1}",
        "mobilenet: {variant: v3_small_050, stem: native}",
    ],
)
def test_network_is_the_recipe_s(model: str, images: Path) -> None:
    file = a_file(images, model=model)
    given = read(file)
    torch.manual_seed(0)
    theirs = timm.create_model(
        given.model,
        pretrained=given.pretrained,
        in_chans=given.in_chans,
        num_classes=given.num_classes,
        drop_rate=given.drop,
        drop_path_rate=given.drop_path,
        **given.model_kwargs,
    )
    torch.manual_seed(0)
    ours = file.recipe.model.build(in_channels=3, num_classes=2, image_size=16)
    assert str(theirs) == str(ours)
    assert all(map(torch.equal, theirs.state_dict().values(), ours.state_dict().values()))


@pytest.mark.parametrize("flip", ["none", "random"])
def test_images_are_as_the_recipe_has_them(flip: str, images: Path) -> None:
    given = read(a_file(images, more=f"  augmentation: {{flip: {flip}}}"))
    size, moments = tuple(given.input_size), {"mean": given.mean, "std": given.std}
    own = {k: v for k, v in vars(given).items() if k in ("scale", "ratio", "hflip", "color_jitter")}
    options = {"is_training": True, "no_aug": vars(given).get("no_aug", False)}
    transform = create_transform(
        size, **moments, **own, **options, interpolation=given.train_interpolation
    )
    image = Image.open(images / "train" / "class 0" / "0.png")
    mean, std = (np.array(moments[name])[:, None, None] for name in ("mean", "std"))
    plain = (np.asarray(image).transpose(2, 0, 1) / 255 - mean) / std
    seen = {"plain": 0, "flipped": 0}
    for _ in range(20):
        found = transform(image).numpy()
        name = "plain" if np.allclose(found, plain, atol=1e-5) else "flipped"
        assert name == "plain" or np.allclose(found, plain[:, :, ::-1], atol=1e-5)
        seen[name] += 1
    assert bool(seen["flipped"]) == (flip == "random") and seen["plain"]
    config = resolve_data_config(vars(given))
    assert config["input_size"] == (3, 16, 16) and config["crop_pct"] == 1.0


RRC = "crop: {random_resized: {scale: 0.35, ratio: 1.5}}"


def test_windows_are_those_that_timm_cuts(images: Path) -> None:
    more = f"  image_size: 12\n  crop_pct: 0.75\n  augmentation: {{{RRC}}}"
    text = timm_arguments(a_file(images, more=more), origin="#")
    assert "as they are, not as they are stored" in text
    given = Namespace(**yaml.safe_load(text))
    config = resolve_data_config(vars(given))
    assert config["input_size"] == (3, 12, 12) and config["crop_pct"] == 0.75
    own = {name: getattr(given, name) for name in ("scale", "ratio", "hflip", "color_jitter")}
    first = create_transform(config["input_size"], is_training=True, **own).transforms[0]
    assert tuple(first.scale) == (0.35, 1.0) and tuple(first.ratio) == (1 / 1.5, 1.5)


def test_evaluation_and_centre_crops_of_photographs_are_those_of_timm(images: Path) -> None:
    given = read(a_file(images, more="  image_size: 48\n  crop_pct: 0.8"))
    config = resolve_data_config(vars(given))
    x, y = np.meshgrid(np.linspace(0, 6, 120), np.linspace(0, 9, 160))
    pixels = np.stack([127 + 120 * np.sin(x + k) * np.cos(y) for k in range(3)], axis=2)
    photo = pixels.astype(np.uint8)
    show = Showing(View(given.mean, given.std, image_size=48, crop_pct=0.8), (160, 120), CPU)
    ours = show(torch.from_numpy(photo)[None], None)[0]
    theirs = create_transform(**config, is_training=False)(Image.fromarray(photo))
    assert float((ours - theirs).abs().mean()) < 0.02
    own = {name: getattr(given, name) for name in ("scale", "ratio", "hflip", "color_jitter")}
    moments = {name: getattr(given, name) for name in ("mean", "std")}
    train = create_transform(48, is_training=True, interpolation="bilinear", **own, **moments)
    whole = Showing(View(given.mean, given.std, image_size=48), (160, 120), CPU)
    seen = whole(torch.from_numpy(photo)[None], None)[0]
    assert float((train(Image.fromarray(photo)) - seen).abs().mean()) < 0.02


MIXES = "mixup: 0.4, cutmix: 1.0, mixup_prob: 0.7, mixup_switch_prob: 0.3"


def test_mixes_are_drawn_by_timm_as_by_the_recipe(images: Path) -> None:
    file = a_file(images, more=f"  augmentation: {{{MIXES}}}")
    given = read(file)
    np.random.seed(0)
    mixup = Mixup(
        given.mixup,
        given.cutmix,
        prob=given.mixup_prob,
        switch_prob=given.mixup_switch_prob,
        mode=given.mixup_mode,
        label_smoothing=0.0,
        num_classes=2,
    )
    # Either mixes an image with one of the other class.
    pixels, halves = torch.zeros(4000, 1, 16, 16), torch.arange(4000) // 2000
    theirs = mixup(pixels.clone(), halves)[1][range(4000), halves]
    changes = file.recipe.augmentation
    draws = draw(changes, Drawer(4000, 1, 0, 16, 16))
    tensors = {name: torch.from_numpy(values) for name, values in draws.items()}
    turns = torch.arange(4000) % 2
    ours = mixed(pixels, turns, tensors, num_classes=2)[1][range(4000), turns]
    assert ks_2samp(theirs, ours).pvalue > 0.01


def test_erasing_and_jitter_have_timm_s_words(images: Path) -> None:
    jitter = "{brightness: 0.4, hue: 0.1, probability: 0.8}"
    more = f"erasing: {{probability: 0.25, mode: pixel}}, color_jitter: {jitter}"
    given = read(a_file(images, more=f"  augmentation: {{{more}}}"))
    transform = create_transform(
        16,
        is_training=True,
        color_jitter=given.color_jitter,
        color_jitter_prob=given.color_jitter_prob,
        re_prob=given.reprob,
        re_mode=given.remode,
    )
    steps = {type(step).__name__: step for step in transform.transforms}
    applied, erasing = steps["RandomApply"], steps["RandomErasing"]
    seen = applied.transforms[0]
    assert (tuple(seen.brightness), tuple(seen.hue)) == ((0.6, 1.4), (-0.1, 0.1))
    assert (seen.contrast, seen.saturation, applied.p) == (None, None, 0.8)
    assert (erasing.probability, erasing.per_pixel) == (0.25, True)


def test_statistics_are_those_of_the_weights(images: Path) -> None:
    given = read(a_file(images, model="timm: {name: tf_efficientnet_lite0, pretrained: true}"))
    assert given.pretrained and given.mean == given.std == [0.5] * 3


def test_the_rest_of_a_recipe_is_in_the_file(images: Path) -> None:
    more = """  accumulation_steps: 5
  precision: bf16
  label_smoothing: 0.1
  clip_value: 0.5
  channels_last: false
  compile: true"""
    given = vars(read(a_file(images, more=more)))
    assert {
        "batch_size": 8, "grad_accum_steps": 5, "amp": True, "amp_dtype": "bfloat16",
        "smoothing": 0.1, "clip_grad": 0.5, "clip_mode": "value", "channels_last": False,
        "torchcompile": "inductor", "device": "cpu", "seed": 3, "data_dir": str(images),
        "val_split": "test", "num_classes": 2,
    }.items() <= given.items()  # fmt: skip
    assert given["mean"] == pytest.approx([0.5] * 3, abs=0.02)


def test_cifar_is_read_by_torchvision_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(CIFAR10, tmp_path, monkeypatch)
    file = recipe_file(f"""
workload:
  dataset: {{name: cifar10, root: {tmp_path}}}
  target: 1.0
  split: {{validation_frac: 0.2}}
recipe: {{model: {{{SMALL}}}, optimizer: {{sgd: {{lr: 0.1}}}}, epochs: 2, batch_size: 4}}
""")
    given = read(file)
    assert (given.dataset, given.data_dir, given.num_classes) == ("torch/cifar10", str(tmp_path), 3)


def test_head_says_on_what_it_trains_and_what_was_left_out(images: Path) -> None:
    text = timm_arguments(a_file(images, more="  optimizer_kernels: foreach"), origin="# origin")
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert head[0] == "# origin"
    assert "all 40 training images, those of the validation part too" in head[1]
    assert "recipe.optimizer_kernels=foreach" in head[-1]


def refused(file: RecipeFile) -> list[str]:
    with pytest.raises(ConfigError) as error:
        timm_arguments(file, origin="#")
    return [problem.path for problem in error.value.problems]


def test_everything_that_timm_cannot_carry_is_named_at_once() -> None:
    assert refused(small(RECIPES["adamw"])) == [
        "recipe.model", "recipe.lr_schedule",
        "workload.dataset", "workload.split.train_samples", "workload.split.validation_samples",
        "recipe.epochs",
    ]  # fmt: skip
    assert refused(small(RECIPES["augmented"])) == [
        "recipe.model", "recipe.augmentation.pad", "recipe.augmentation.affine",
        "recipe.augmentation.cutout",
        "workload.dataset", "workload.split.train_samples", "workload.split.validation_samples",
        "recipe.epochs", "recipe.lr_schedule.cosine.warmup_frac",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"more": "  deterministic: true"}, ["recipe.deterministic"]),
        ({"model": "timm: {name: resnet18, stem: cifar}"}, ["recipe.model.timm.stem"]),
        ({"optimizer": "sgd: {lr: 0.1, bias_lr: 0.2}"}, ["recipe.optimizer.sgd.bias_lr"]),
        ({"more": "  clip_norm: 1.0\n  clip_value: 0.1"}, ["recipe.clip_value"]),
        ({"epochs": "3.5"}, ["recipe.epochs"]),
        ({"more": "  image_size: 16\n  eval_size: 24"}, ["recipe.eval_size"]),
        ({"batch_size": 16}, ["recipe.drop_last"]),
        ({"batch_size": 16, "more": "  drop_last: true"}, []),
        ({"more": "  accumulation_steps: 2"}, ["recipe.accumulation_steps"]),
        (
            {"model": "vit: {}", "optimizer": "adamw: {lr: 0.1, weight_decay: 0.1}"},
            ["recipe.optimizer.weight_decay"],
        ),
        ({"model": "vit: {}", "optimizer": "adamw: {lr: 0.1}"}, []),
        ({"more": "  augmentation: {auto: rand_augment}"}, ["recipe.augmentation.auto"]),
        (
            {"more": "  augmentation: {erasing: {probability: 0.1, ratio: 2}}"},
            ["recipe.augmentation.erasing.ratio"],
        ),
        (
            {"more": "  augmentation: {erasing: {probability: 0.1}, mixup: 0.1}"},
            ["recipe.augmentation.erasing.probability"],
        ),
    ],
)
def test_what_timm_cannot_carry_is_named(
    changes: dict[str, Any], paths: list[str], images: Path
) -> None:
    file = a_file(images, **changes)
    if paths:
        assert refused(file) == paths
    else:
        read(file)


def test_data_without_a_test_part_or_that_are_gone_are_refused(
    images: Path, tmp_path: Path
) -> None:
    file = a_file(images / "train")
    assert refused(file) == ["workload.dataset"]
    workload = a_file(tmp_path / "gone").workload
    with pytest.raises(DataError, match="gone"):
        timm_arguments(replace(file, workload=workload), origin="#")

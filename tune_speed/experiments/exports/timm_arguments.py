"""A recipe as arguments of timm's `train.py`, which reads them with `--config`."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tune_speed.components.models import MODELS
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.libraries import Timm
from tune_speed.components.models.published import Published
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.schedules.decays import Cosine
from tune_speed.core.errors import Problem
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.augmentation.crops import RandomResized
from tune_speed.data.cache import prepare
from tune_speed.data.datasets.image_folder import parts_in
from tune_speed.data.split import Splits, make_splits
from tune_speed.experiments.exports.carried import CARRIED, ONLY, WINDOWS, Form, refuse_what_is_lost
from tune_speed.experiments.exports.script import SCRIPT, has_windows, name_in, without_weights
from tune_speed.study.file import RecipeFile
from tune_speed.study.yaml import dump_yaml
from tune_speed.training.build import normalisation_of

CHANGES = (
    *("recipe.augmentation.color_jitter.[!p]*", "recipe.augmentation.erasing.probability"),
    *(f"recipe.augmentation.{n}" for n in ("mixup", "cutmix", "mixup_prob", "mixup_switch_prob")),
)
"""What other forms refuse and timm's script has too."""
TIMMS_ERASING = {"min_area": 0.02, "max_area": 1 / 3, "ratio": 1 / 0.3}
METRICS = {"accuracy": "top1", "micro_f1": "top1", "top5_accuracy": "top5", "loss": "loss"}
TIMM = Form(
    name="arguments of timm's train.py",
    only={
        **{path: values for path, values in ONLY.items() if path not in CHANGES},
        **{f"recipe.augmentation.erasing.{n}": (v,) for n, v in TIMMS_ERASING.items()},
        "recipe.model": tuple(
            name for name, kind in MODELS.items()
            if kind is Timm or (issubclass(kind, Published) and kind.library is Timm)
        ),
        "recipe.model.*.stem": ("native",),
        "recipe.model.*.resize_to": (None,),
        "recipe.model.*.weights_file": (None,),
        "recipe.optimizer": (*ONLY["recipe.optimizer"], "timm"),
        "recipe.optimizer.*.bias_lr": (None,),
        "recipe.optimizer.*.decay_norms_and_biases": (False,),
        "recipe.lr_schedule": ("constant", "cosine"),
        "recipe.init_loss_scale": (None, 65536.0),
        "recipe.loss_scale_growth_steps": (2000,),
        "recipe.augmentation.flip": ("none", "random"),
        "recipe.augmentation.pad": (0,),
        "recipe.augmentation.affine": (0.0,),
        "recipe.augmentation.cutout": (0,),
        "recipe.eval_size": (None,),
        "recipe.deterministic": (False,),
        "workload.target.metric": tuple(METRICS),
        "workload.mode": ("fixed_length",),
        "workload.dataset": ("cifar10", "cifar100", "image_folder"),
        "workload.split.*_samples": (None,),
        "workload.eval_every_samples": (None,),
    },
    carried=(
        *CARRIED,
        *WINDOWS,
        *CHANGES,
        "workload.eval_batch_size",
        "recipe.layer_decay",
    ),
    other_speed=(*SCRIPT.other_speed, "recipe.optimizer_kernels"),
)  # fmt: skip


def timm_arguments(file: RecipeFile, *, origin: str) -> str:
    """Returns a YAML file for `train.py --config`; channels, classes and statistics need the data.

    Raises: ConfigError that names every field that timm's script cannot carry; DataError if the
        data are missing.
    """
    if file.workload.dataset_name not in TIMM.only["workload.dataset"]:
        refuse_what_is_lost(TIMM, file, more=_lost(file))
    data = prepare(file.workload.dataset)
    num_train = len(data.train.labels)
    sizes = _lost_with(file, num_train, data.test is not None)
    refuse_what_is_lost(TIMM, file, more=chain(_lost(file), sizes))
    splits = make_splits(data, file.workload.split)
    left, is_cut = TIMM.left_out(file), has_windows(file)
    notes = [
        f"timm trains on all {num_train} training images, those of the validation part too, and"
        " evaluates on the test part.",
        *(["It cuts windows out of the images as they are, not as they are stored."] * is_cut),
        "On a GPU it allows TF32 in matrix products and convolutions.",
        *([f"Left out, as it changes the speed only: {', '.join(left)}."] if left else []),
    ]
    comment = "\n".join([origin, *(f"# {note}" for note in notes)])
    return f"{comment}\n{dump_yaml(arguments(file, splits))}"


def arguments(file: RecipeFile, splits: Splits) -> dict[str, Any]:
    recipe, model = file.recipe, _timm(file)
    assert isinstance(model, Timm)
    height, width, channels = recipe.train_shape(splits.train.pixels.shape[1:])
    normalisation = normalisation_of(recipe, splits)
    size = max(height, width)
    network = model.arguments(
        in_channels=channels, num_classes=splits.num_classes, image_size=size, pretrained=False
    )
    own = {name: network[name] for name in ("img_size", "patch_size") if name in network}
    precision = {"bf16": "bfloat16", "fp16": "float16"}.get(recipe.precision)
    return {
        **_data(file),
        "model": model.name,
        "pretrained": model.pretrained,
        "num_classes": splits.num_classes,
        "input_size": [channels, height, width],
        "in_chans": channels,
        "model_kwargs": own,
        "drop": model.drop_rate,
        "drop_path": model.drop_path_rate,
        "mean": list(normalisation.mean),
        "std": list(normalisation.std),
        "crop_pct": recipe.crop_pct,
        "interpolation": "bilinear",
        "train_interpolation": "bilinear",
        **_changes(recipe.augmentation),
        "batch_size": recipe.batch_size,
        "validation_batch_size": file.workload.eval_batch_size,
        "grad_accum_steps": recipe.samples_per_step // int(recipe.batch_size or 1),
        **_optimizer(file),
        **_schedule(file),
        "smoothing": recipe.label_smoothing,
        "clip_grad": recipe.clip_norm or recipe.clip_value,
        "clip_mode": "value" if recipe.clip_norm is None else "norm",
        "amp": precision is not None,
        "amp_dtype": precision or "float16",
        "channels_last": recipe.channels_last is not False,
        "torchcompile": "inductor" if recipe.compile is True else None,
        "torchcompile_mode": recipe.compile_mode if recipe.compile is True else None,
        "device": "cpu" if file.run.device == "cpu" else "cuda",
        "seed": file.run.seed,
        "eval_metric": METRICS[file.workload.target.metric],
    }


def _changes(changes: Augmentation) -> dict[str, Any]:
    crop, least, ratio = changes.crop, 1.0, 1.0
    if isinstance(crop, RandomResized):
        least, ratio = crop.scale, crop.ratio
    hflip = 0.0 if changes.flip == "none" else 0.5
    jitter, mixes = changes.color_jitter, ("mixup", "cutmix", "mixup_prob", "mixup_switch_prob")
    factors = [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue]
    return {
        "scale": [least, 1.0],
        "ratio": [1 / ratio, ratio],
        "hflip": hflip,
        "color_jitter": factors if jitter.is_on else None,
        "color_jitter_prob": jitter.probability if jitter.is_on else None,
        "reprob": changes.erasing.probability,
        "remode": changes.erasing.mode,
        **{name: getattr(changes, name) for name in mixes},
        "mixup_mode": "elem",
    }


def _timm(file: RecipeFile) -> ModelConfig:
    model = file.recipe.model
    return model.published() if isinstance(model, Published) else model


def _data(file: RecipeFile) -> dict[str, Any]:
    name, dataset = file.workload.dataset_name, file.workload.located().dataset
    root: str = getattr(dataset, "root")  # noqa: B009
    if name != "image_folder":
        return {"dataset": f"torch/{name}", "data_dir": root, "val_split": "validation"}
    place, parts = parts_in(Path(root))
    names = {part: folder.name for part, folder in parts.items()}
    own = {"train_split": names["train"]} if names.get("train", "train") != "train" else {}
    return {"dataset": "", "data_dir": str(place), **own, "val_split": names.get("test", "")}


def _optimizer(file: RecipeFile) -> dict[str, Any]:
    optimizer: Any = file.recipe.optimizer
    name = name_in(OPTIMIZERS, optimizer)
    common = {
        "lr": optimizer.step_lr(file.recipe.samples_per_step),
        "weight_decay": optimizer.weight_decay,
    }
    if name == "sgd":
        # In timm's words `sgd` is Nesterov's.
        own = {"opt": "sgd" if optimizer.nesterov else "momentum", "momentum": optimizer.momentum}
    elif name == "timm":
        own = {"opt": optimizer.name, "opt_kwargs": optimizer.model_extra, "opt_eps": optimizer.eps}
        own["momentum"] = optimizer.momentum or 0.9
        own["opt_betas"] = optimizer.betas and [*optimizer.betas]
    else:
        betas = [optimizer.beta1, optimizer.beta2]
        own = {"opt": name, "opt_betas": betas, "opt_eps": optimizer.eps}
    layers = file.recipe.model_dump(include={"layer_decay"})
    return {**own, **common, **layers}


def _schedule(file: RecipeFile) -> dict[str, Any]:
    schedule: Any = file.recipe.lr_schedule
    lr = file.recipe.optimizer.step_lr(file.recipe.samples_per_step)
    warm = round(schedule.warmup_frac * file.recipe.epochs)
    common = {
        "epochs": round(file.recipe.epochs),
        "sched_on_updates": True,
        "warmup_epochs": warm,
        "warmup_lr": schedule.warmup_start * lr,
    }
    if not isinstance(schedule, Cosine):
        return {**common, "sched": "step", "decay_rate": 1.0}
    # The cosine begins where the warm-up ends, and timm counts its epochs from there.
    own = {"epochs": common["epochs"] - warm, "warmup_prefix": True}
    return {**common, **own, "sched": "cosine", "min_lr": schedule.final_frac * lr}


def _lost(file: RecipeFile) -> Iterator[Problem]:
    recipe, schedule = file.recipe, file.recipe.lr_schedule
    if not isinstance(recipe.batch_size, int):
        yield _problem("recipe.batch_size", "must be a number", recipe.batch_size)
    if recipe.epochs != round(recipe.epochs):
        yield _problem("recipe.epochs", "must be a whole number", recipe.epochs)
    warm = getattr(schedule, "warmup_frac", 0.0) * recipe.epochs
    if abs(warm - round(warm)) > 1e-9 * recipe.epochs:
        path = f"recipe.lr_schedule.{type(schedule).__name__.lower()}.warmup_frac"
        yield _problem(path, "must come to whole epochs", f"{warm:g} epochs")
    if recipe.clip_norm is not None and recipe.clip_value is not None:
        yield _problem("recipe.clip_value", "must be null with clip_norm", recipe.clip_value)
    changes = recipe.augmentation
    if changes.erasing.is_on and changes.mixed_images > 1:
        must = "must be 0 with mixup or cutmix, as timm erases after mixing,"
        given = changes.erasing.probability
        yield _problem("recipe.augmentation.erasing.probability", must, given)
    model = _timm(file)
    if recipe.optimizer.weight_decay and isinstance(model, Timm):
        network = without_weights(model)
        never: Callable[[], set[str]] = getattr(network, "no_weight_decay", set)
        # Such as position embeddings, which we do decay.
        if names := never() & {name for name, _ in network.named_parameters()}:
            listed = ", ".join(sorted(names))
            must = f"must be 0 with {model.name}, as timm never decays its {listed}"
            yield _problem("recipe.optimizer.weight_decay", must, recipe.optimizer.weight_decay)


def _lost_with(file: RecipeFile, num_train: int, has_test: bool) -> Iterator[Problem]:
    recipe = file.recipe
    if not has_test:
        must = "must have a test part, on which timm evaluates"
        yield _problem("workload.dataset", must, file.workload.dataset_name)
    whole, rest = divmod(num_train, int(recipe.batch_size or 1))
    if rest and not recipe.drop_last:
        must = f"must be true, as timm leaves out the last {rest} of {num_train} images of an epoch"
        yield _problem("recipe.drop_last", must, "false")
    steps = recipe.samples_per_step // int(recipe.batch_size or 1)
    if whole % steps:
        must = f"must divide the {whole} batches of an epoch"
        yield _problem("recipe.accumulation_steps", must, steps)


def _problem(path: str, must: str, given: object) -> Problem:
    return Problem(path=path, must=f"{must} in {TIMM.name}", given=str(given))

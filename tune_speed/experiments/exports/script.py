"""A recipe as one Python file that needs torch, and neither Ray nor this package.

The file is plain, or around Lightning's `Trainer`.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FunctionLoader, StrictUndefined
from torch import nn

from tune_speed.components.models import MODELS
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.cifar import ResNet, ResNet20
from tune_speed.components.models.libraries import Timm, TorchVision
from tune_speed.components.models.networks.libraries import STEMS, first_conv
from tune_speed.components.models.published import Published
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.base import given_momenta
from tune_speed.components.optim.libraries import TimmOptimizer
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups.evaluation import Ema, Tta
from tune_speed.core.config import Config, Table
from tune_speed.core.errors import DataError, Problem
from tune_speed.core.text import printable
from tune_speed.data.augmentation import crops
from tune_speed.data.datasets import image_folder
from tune_speed.data.datasets.decoding import FORMATS
from tune_speed.data.datasets.image_parquet import ImageParquet
from tune_speed.experiments.exports.carried import CARRIED, ONLY, WINDOWS, Form, refuse_what_is_lost
from tune_speed.study.file import RecipeFile

NETWORKS = tuple(
    name for name, kind in MODELS.items()
    if kind in (ResNet, ResNet20, Timm, TorchVision) or issubclass(kind, Published)
)  # fmt: skip
DATASETS = {
    "digits": ("digits", "scikit-learn"),
    "cifar10": ("cifar", "torchvision"),
    "cifar100": ("cifar", "torchvision"),
    "image_folder": ("image_folder", "pillow"),
    "image_parquet": ("image_parquet", "pillow, pyarrow"),
}
"""Data sets by name: how they are read, and which packages that needs."""
PRECISIONS = {"fp32": "", "bf16": "torch.bfloat16", "fp16": "torch.float16"}
SHOWN = {"macro_f1": "macro F1", "top5_accuracy": "top-5 accuracy"}
SCRIPT = Form(
    name="a plain script",
    only={
        **ONLY,
        "recipe.model": NETWORKS,
        "recipe.layer_decay": (None,),
        "recipe.optimizer": (*ONLY["recipe.optimizer"], "timm"),
        "recipe.lr_schedule": tuple(name for name in SCHEDULES if name != "reduce_on_plateau"),
        "recipe.speedups.averaging": ("off", "ema"),
        "recipe.speedups.views": ("off", "tta"),
        "workload.dataset": tuple(DATASETS),
        "workload.dataset.*.group_column": (None,),
        "workload.target.metric": ("accuracy", "micro_f1", "macro_f1", "top5_accuracy", "loss"),
    },
    carried=(
        *CARRIED,
        "recipe.*loss_scale*",
        *WINDOWS,
        *(f"recipe.augmentation.{name}" for name in ("pad", "flip", "affine", "cutout")),
        "recipe.speedups.averaging.ema.*",
        "recipe.speedups.views.tta.*",
        "recipe.optimizer_kernels",
        "recipe.deterministic",
        "workload.mode",
        "workload.eval_*",
    ),
    other_speed=("recipe.loader*", "recipe.cuda_graph", "recipe.activation_checkpointing"),
)
LIGHTNING = replace(
    SCRIPT,
    name="a Lightning script",
    only={
        **SCRIPT.only,
        "recipe.speedups.averaging": ("off",),
        "recipe.init_loss_scale": (None, 65536.0),
        "recipe.loss_scale_growth_steps": (2000,),
        "workload.mode": ("fixed_length",),
        "workload.target.metric": ("accuracy", "micro_f1", "loss"),
        "workload.eval_every_samples": (None,),
    },
)


def script(file: RecipeFile, *, form: Form = SCRIPT, origin: str, path: str) -> str:
    """Raises: ConfigError that names every field that a script of this form cannot carry."""
    refuse_what_is_lost(form, file, more=_lost(file, form))
    is_lightning = form is LIGHTNING
    facts = context(file, form, origin=origin, path=path)
    if is_lightning:
        facts["needs"].append("lightning")
    template = "lightning.py.j2" if is_lightning else "script.py.j2"
    return rendered(template, {**facts, "is_lightning": is_lightning})


def _lost(file: RecipeFile, form: Form) -> Iterator[Problem]:
    recipe, dataset = file.recipe, file.workload.located().dataset
    if isinstance(dataset, ImageParquet):
        with suppress(DataError):  # Of data that are elsewhere.
            if not dataset.is_plain():
                must = f"must name files or folders of Parquet, numbers and columns in {form.name}"
                yield Problem(path="workload.dataset", must=must, given=repr(dataset))
    if not isinstance(recipe.batch_size, int):
        must, given = f"must be a number in {form.name}", str(recipe.batch_size)
        yield Problem(path="recipe.batch_size", must=must, given=given)
    if form is LIGHTNING and recipe.clip_norm is not None and recipe.clip_value is not None:
        must = f"must be null with clip_norm in {form.name}, whose Trainer clips in one way"
        yield Problem(path="recipe.clip_value", must=must, given=f"{recipe.clip_value:g}")


def context(file: RecipeFile, form: Form, *, origin: str, path: str) -> dict[str, Any]:
    model = network_facts(file.recipe.model)
    packages = [*filter(None, [model["library"]])]
    packages += ["safetensors"] if "safetensors" in model["read"] else []
    if has_windows(file):
        packages.append("torchvision")
        model["takes"] = model["takes"].replace("height, width", "*images.size")
    packages += ["timm"] * isinstance(file.recipe.optimizer, TimmOptimizer)
    needs = ["torch", *packages, *DATASETS[file.workload.dataset_name][1].split(", ")]
    has_own = model["kind"] == "library" or model["weights_file"]
    return {
        "recipe": file.recipe,
        "workload": file.workload,
        "run": file.run,
        "origin": origin,
        "notes": _notes(file, form),
        # It is within a docstring.
        "file": printable(Path(path).name).replace("\\", "/").replace('"', "'"),
        "needs": list(dict.fromkeys(needs)),
        "model": model,
        "network_call": f"{'build_network' if has_own else 'CifarResNet'}({model['takes']})",
        **_data(file),
        **_steps(file),
        **_evaluation(file),
        "device": "cuda" if file.run.device.startswith("cuda") else "cpu",
        "threads": file.run.cpu_threads or 1,
    }


def _data(file: RecipeFile) -> dict[str, Any]:
    dataset: Any = file.workload.located().dataset
    places = [getattr(dataset, name, None) for name in ("train", "test")]
    changes = file.recipe.augmentation
    layout = inspect.getsource(image_folder).replace("@listed_once\n", "")
    return {
        "split": file.workload.split,
        # Of three channels or one, as data sets that scripts read have them.
        "normalisation": file.recipe.model.normalisation(in_channels=3),
        "dataset_kind": DATASETS[file.workload.dataset_name][0],
        "torchvision_set": f"torchvision.datasets.{file.workload.dataset_name.upper()}",
        "data": getattr(dataset, "root", None) or [place for place in places if place] or None,
        "layout": layout[layout.index("PARTS =") : layout.index("def _refuse")].rstrip(),
        "formats": list(FORMATS),
        "has_windows": has_windows(file),
        "store_size": getattr(dataset, "store_size", None),
        "crop": changes.crop if isinstance(changes.crop, crops.RandomResized) else None,
        "attempts": crops.ATTEMPTS,
        "shape_stream": crops.SHAPE,
        "place_stream": crops.PLACE,
        "size": _square(file.recipe.image_size),
        "eval_size": _square(file.recipe.eval_size),
        "draws": bool(changes.pad or changes.cutout) or changes.flip != "none",
    }


def has_windows(file: RecipeFile) -> bool:
    """Returns whether the network sees windows of stored images, and not these."""
    recipe = file.recipe
    sizes = recipe.image_size, recipe.eval_size
    is_cropped = not isinstance(recipe.augmentation.crop, crops.Centre) or recipe.crop_pct != 1
    return is_cropped or sizes != (None, None)


def _square(side: int | None) -> str:
    return "" if side is None else f"[{side}, {side}]"


def _steps(file: RecipeFile) -> dict[str, Any]:
    recipe, optimizer = file.recipe, file.recipe.optimizer
    per, mode, smoothing = optimizer.lr_per_examples, recipe.compile_mode, recipe.label_smoothing
    compiled = f"torch.compile(network, dynamic=False, mode={literal(mode)})"
    return {
        "accumulation_steps": recipe.samples_per_step // int(recipe.batch_size or 1),
        "optimizer": optimizer,
        "optimizer_name": name_in(OPTIMIZERS, optimizer),
        "optimizer_call": _optimizer_call(file),
        "bias_lr": getattr(optimizer, "bias_lr", None),
        "per_examples": f" * STEP_SIZE / {per}" if per else "",
        "schedule": recipe.lr_schedule,
        "schedule_name": name_in(SCHEDULES, recipe.lr_schedule),
        "has_momentum": any(m is not None for m in given_momenta(recipe.lr_schedule)),
        "precision": PRECISIONS[recipe.precision],
        "smoothing": f", label_smoothing={smoothing}" if smoothing else "",
        "channels_last": recipe.channels_last is not False,
        "compiled": compiled if recipe.compile is True else "",
    }


def _evaluation(file: RecipeFile) -> dict[str, Any]:
    metric, precision = file.workload.target.metric, PRECISIONS[file.recipe.precision]
    averaging, views = file.recipe.speedups.averaging, file.recipe.speedups.views
    autocast = f", torch.autocast(images.labels.device.type, {precision})"
    return {
        "autocast": autocast if precision else "",
        "ema": averaging if isinstance(averaging, Ema) else None,
        "tta": views if isinstance(views, Tta) else None,
        "metric_words": f"accuracy, {SHOWN[metric]}" if metric in SHOWN else "accuracy",
        "metric_name": "score" if metric in SHOWN else "loss" if metric == "loss" else "accuracy",
        "metric_shown": f"  {metric} {{score:.4f}}" if metric in SHOWN else "",
    }


def _notes(file: RecipeFile, form: Form) -> list[str]:
    recipe = file.recipe
    notes = [f"max_train_s: {file.workload.max_train_s:g} s limited the run; nothing does here."]
    if left := form.left_out(file):
        notes.append(f"Left out, as it changes no result, only the speed: {', '.join(left)}.")
    if file.workload.certify_on != "train":
        notes.append("Certified runs trained on the validation part too; this one does not.")
    settled = {"channels_last": "true", "compile": "false", "optimizer_kernels": "fused"}
    auto = [f"{n}: {v}" for n, v in settled.items() if getattr(recipe, n) == "auto"]
    return notes + ([f"Was `auto`, and is not measured here: {', '.join(auto)}."] if auto else [])


def _optimizer_call(file: RecipeFile) -> str:
    optimizer: Any = file.recipe.optimizer
    kernels = "foreach" if file.recipe.optimizer_kernels == "foreach" else "fused"
    name = name_in(OPTIMIZERS, optimizer)
    if name == "timm":
        settings = "".join(f", {n}={literal(v)}" for n, v in optimizer.settings().items())
        call = f"timm.optim.create_optimizer_v2([weights, others], {literal(optimizer.name)}"
        return f"{call}, lr=LR{settings})"
    if name == "sgd":
        own = f"momentum={optimizer.momentum}, nesterov={optimizer.nesterov}"
        return f"torch.optim.SGD([weights, others], lr=LR, {own}, {kernels}=True)"
    own = f"betas=({optimizer.beta1}, {optimizer.beta2}), eps={optimizer.eps}"
    return f"torch.optim.{optimizer.torch_name}([weights, others], lr=LR, {own}, {kernels}=True)"


def name_in(table: Table, config: Config) -> str:
    return next(name for name, kind in table.items() if type(config) is kind)


# --- Networks


class _Variable:
    """Stands for a variable of the script in a call that is written out."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


SIZES = {name: _Variable(name) for name in ("in_channels", "num_classes", "image_size")}


def network_facts(config: ModelConfig) -> dict[str, Any]:
    if isinstance(config, ResNet | ResNet20):
        blocks = (config.depth - 2) // 6 if isinstance(config, ResNet) else 3
        own = {
            "blocks": blocks,
            "dropout": config.dropout,
            "library": "",
            "takes": "channels, num_classes",
        }
        return {"kind": "resnet", **own, **_reading(config)}
    model = config.published() if isinstance(config, Published) else config
    assert isinstance(model, Timm | TorchVision)
    library = "timm" if isinstance(model, Timm) else "torchvision"
    return {
        "kind": "library",
        "library": library,
        "takes": "channels, num_classes, max(height, width)",
        "name": model.name,
        "pretrained": model.pretrained,
        **_reading(model),
        "resize_to": model.resize_to,
        "call": _call(model),
        "stem": _stem(model) if model.stem == "cifar" else None,
    }


def _reading(config: ModelConfig) -> dict[str, Any]:
    file = config.weights_file
    if file is not None and file.endswith(".safetensors"):
        return {"weights_file": file, "read": f"safetensors.torch.load_file({literal(file)})"}
    call = f'torch.load({literal(file)}, weights_only=True, map_location="cpu")'
    return {"weights_file": file, "read": call}


def _call(model: Timm | TorchVision) -> str:
    if isinstance(model, Timm):
        create, given = "timm.create_model", model.arguments(**SIZES, pretrained=model.pretrained)
    else:
        sizes = {name: SIZES[name] for name in ("num_classes", "image_size")}
        create, given = "torchvision.models.get_model", model.arguments(**sizes)
    arguments = "".join(f"\n        {name}={literal(value)}," for name, value in given.items())
    name = model.name if isinstance(model, Timm) else model.network_name
    return f"{create}(\n        {literal(name)},{arguments}\n    )"


def _stem(model: Timm | TorchVision) -> dict[str, Any]:
    network = without_weights(model)
    stem = STEMS[f"{type(network).__module__}.{type(network).__qualname__}"]
    conv, _ = first_conv(network, within=stem.conv)
    return {
        "conv": conv,
        "dropped": [n for n in stem.dropped if n in dict(network.named_modules())],
    }


def without_weights(model: Timm | TorchVision) -> nn.Module:
    """Returns the network on torch's meta device, which holds shapes and no weights."""
    with torch.device("meta"):
        return model.network(in_channels=3, num_classes=10, image_size=224)


# --- Templates

OPTIONAL = {"import math\n": "math", "from torch import nn\n": "nn"}


def rendered(template: str, facts: Mapping[str, Any]) -> str:
    """Returns the text of a template, filled: what is in it, as a formatter leaves it."""
    text = _environment().get_template(template).render(facts)
    for line, name in OPTIONAL.items():
        is_used = re.search(rf"(?<![\w.]){name}\.", text)
        text = text if is_used else text.replace(line, "", 1)
    # Two blank lines before what is at the top, whatever was left out before it.
    tops = r"\n{2,}(?=(?:@|def |class |if __name__|conv3x3 =))"
    return re.sub(tops, "\n\n\n", text).rstrip() + "\n"


def literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    text = repr(value)
    return f'"{text[1:-1]}"' if text[0] == "'" and not {'"', "\\"} & set(text) else text


@cache
def _environment() -> Environment:
    folder = files(__package__) / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["repr"] = literal
    return environment

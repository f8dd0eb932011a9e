"""A recipe as one Python file that needs torch, and neither Ray nor this package."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tune_speed.components.optim import OPTIMIZERS, given_momenta
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups.chosen import Speedups
from tune_speed.components.speedups.ema import Ema
from tune_speed.components.speedups.tta import Tta
from tune_speed.core.config import Config, Table
from tune_speed.core.errors import Problem
from tune_speed.core.text import printable
from tune_speed.data.datasets import image_folder
from tune_speed.data.datasets.decoding import FORMATS
from tune_speed.experiments.exports.carried import Form, refuse_what_is_lost
from tune_speed.experiments.exports.filling import literal, rendered
from tune_speed.experiments.exports.networks import NETWORKS, network_facts
from tune_speed.study.file import RecipeFile

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
        "recipe.model": NETWORKS,
        "recipe.optimizer": ("sgd", "adam", "adamw"),
        "recipe.optimizer.*.lr_scales": ([],),
        "recipe.optimizer.sgd.decoupled_weight_decay": (False,),
        "recipe.lr_schedule": tuple(name for name in SCHEDULES if name != "reduce_on_plateau"),
        "recipe.devices": (1,),
        "recipe.precision": ("fp32", "bf16", "fp16"),
        "recipe.order": ("shuffle",),
        **{f"recipe.speedups.{slot}": ("off",) for slot in Speedups.model_fields},
        "recipe.speedups.averaging": ("off", "ema"),
        "recipe.speedups.views": ("off", "tta"),
        "workload.dataset": tuple(DATASETS),
        "workload.target.metric": ("accuracy", "micro_f1", "macro_f1", "top5_accuracy", "loss"),
        "workload.split.long_tail": (None,),
    },
    carried=(
        "recipe.model.*",
        "recipe.optimizer.*",
        "recipe.lr_schedule.*",
        "recipe.epochs",
        "recipe.*batch_size",
        "recipe.accumulation_steps",
        "recipe.matmul_precision",
        "recipe.*loss_scale*",
        "recipe.drop_last",
        "recipe.augmentation.*",
        "recipe.label_smoothing",
        "recipe.clip_*",
        "recipe.speedups.averaging.ema.*",
        "recipe.speedups.views.tta.*",
        "recipe.channels_last",
        "recipe.compile*",
        "recipe.optimizer_kernels",
        "recipe.deterministic",
        "workload.target.*",
        "workload.mode",
        "workload.max_train_s",
        "workload.dataset.*",
        "workload.split.*",
        "workload.eval_*",
        "workload.certify_on",
        "workload.name",
    ),
    other_speed=("recipe.loader*", "recipe.cuda_graph"),
)


def script(file: RecipeFile, *, origin: str, path: str) -> str:
    """Raises: ConfigError that names every field that a script cannot carry."""
    refuse_what_is_lost(SCRIPT, file, more=unsettled(file, SCRIPT))
    facts = context(file, SCRIPT, origin=origin, path=path)
    return rendered("script.py.j2", {**facts, "is_lightning": False})


def unsettled(file: RecipeFile, form: Form) -> Iterator[Problem]:
    if not isinstance(file.recipe.batch_size, int):
        must, given = f"must be a number in {form.name}", str(file.recipe.batch_size)
        yield Problem(path="recipe.batch_size", must=must, given=given)


def context(file: RecipeFile, form: Form, *, origin: str, path: str) -> dict[str, Any]:
    model = network_facts(file.recipe.model)
    needs = ["torch", *model.get("needs", ()), *DATASETS[file.workload.dataset_name][1].split(", ")]
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
    changes, layout = file.recipe.augmentation, inspect.getsource(image_folder)
    return {
        "split": file.workload.split,
        "dataset_kind": DATASETS[file.workload.dataset_name][0],
        "torchvision_set": f"torchvision.datasets.{file.workload.dataset_name.upper()}",
        "data": getattr(dataset, "root", None) or [place for place in places if place] or None,
        "layout": layout[layout.index("PARTS =") : layout.index("def _refuse")].rstrip(),
        "formats": list(FORMATS),
        "draws": bool(changes.pad or changes.cutout) or changes.flip != "none",
    }


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
    autocast = f", torch.autocast(images.pixels.device.type, {precision})"
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
    if name == "sgd":
        own = f"momentum={optimizer.momentum}, nesterov={optimizer.nesterov}"
        return f"torch.optim.SGD([weights, others], lr=LR, {own}, {kernels}=True)"
    own = f"betas=({optimizer.beta1}, {optimizer.beta2}), eps={optimizer.eps}"
    return f"torch.optim.{optimizer.torch_name}([weights, others], lr=LR, {own}, {kernels}=True)"


def name_in(table: Table, config: Config) -> str:
    return next(name for name, kind in table.items() if type(config) is kind)

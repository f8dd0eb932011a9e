"""`tune-speed init`: a first study file for somebody's own images, from a look and a short run."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from tune_speed.api.inputs import recipe_from
from tune_speed.api.progress import Progress
from tune_speed.api.shown import Shown
from tune_speed.components.metrics.base import guesses
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult
from tune_speed.core.text import counted, duration
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig, class_counts
from tune_speed.data.cache import prepare
from tune_speed.data.datasets.decoding import STORED_MARGIN, ImageFiles
from tune_speed.data.datasets.detect import detect
from tune_speed.data.split import in_words, make_splits
from tune_speed.experiments.rerun import train_seeds
from tune_speed.runtime.atomic_file import write_file
from tune_speed.runtime.device import resolve_device
from tune_speed.study.file import study_of
from tune_speed.study.schema import check_study_name
from tune_speed.study.yaml import scan_yaml
from tune_speed.training.workload import Workload

TRIALS = 40
MOST_EPOCHS = 30.0
"""Of the plain run, and of a searched one."""
FIRST_STEPS = 16
BATCH_SIZES = (4, 8, 16, 32, 64, 128)
"""Of which the three largest are searched that give an epoch four steps; the plain run takes the
middle one."""
LEAST_LEARNT = 0.25
SMALL_SET = 5000
"""Training images below which a fifth of them is for validation, not a tenth."""


@dataclass(frozen=True, kw_only=True)
class FirstStudy(Shown):
    """A study file that was written, and what it is based on."""

    file: str
    images: int
    """Of the training part, before validation images are taken from it."""
    classes: int
    largest_class: float
    """Share of the training images: what naming it always gets right."""
    reached: float
    """Accuracy of the plain run on the validation part."""
    target: float
    train_s: float
    """Training clock of the plain run [s]."""
    images_per_s: float
    batch_sizes: tuple[int, ...]
    max_train_s: float
    time_budget_s: float

    def parts(self) -> tuple[RenderableType, ...]:
        """Returns what was found, and the command that comes next."""
        return (
            f"wrote {self.file}: {counted(self.images, 'image')} of"
            f" {self.classes} classes; one plain run reached {self.reached:.4f} in"
            f" {self.train_s:.1f} s, so the target is {self.target:g}",
            f"Search, for at most {self.time_budget_s / 60:g} min:\n"
            f"  tune-speed search {shlex.quote(self.file)}",
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns its fields."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """What a trial gets."""

    most_pixels: int
    model: dict[str, Any]
    precision: str
    concurrent: int
    resources: dict[str, float]

    @classmethod
    def here(cls) -> "_Machine":
        if resolve_device("auto").type == "cuda":
            return cls(
                most_pixels=224,
                model={"resnet18": {}},
                precision="bf16",
                concurrent=4,
                resources={"cpu": 2, "gpu": 0.25},
            )
        return cls(
            most_pixels=32,
            model={"resnet20": {}},
            precision="fp32",
            concurrent=min(8, len(os.sched_getaffinity(0))),
            resources={"cpu": 1},
        )


def init(
    data: str | Path,
    *,
    study: str | None = None,
    out: str | Path | None = None,
    target: float | None = None,
    probe_s: float = 60.0,
    replace: bool = False,
    progress: Progress,
) -> FirstStudy:
    """Writes a commented study file for the images at `data`, and says what it is based on.

    A plain run (ResNet, AdamW, one-cycle) trains for `probe_s` seconds, or 30 epochs; without a
    `target`, that is a little below what it reaches. Raises: ConfigError, DataError.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(data).absolute().stem).strip("._-")
    name = study or stem[:100] or "my_images"
    check_study_name(name)
    file = Path(out) if out is not None else Path(f"{name}.yaml")
    if file.exists() and not replace:
        must = "must be a new file, unless --replace is given"
        raise ConfigError.of("", must, given=str(file), hint="Or name another with --out.")
    machine = _Machine.here()
    dataset = detect(Path(data), most_pixels=machine.most_pixels)
    prepared = prepare(dataset, on_progress=progress.decoded)
    labels = prepared.train.labels
    share = guesses(labels, len(prepared.class_names))["accuracy"]
    workload = _workload(dataset, len(labels), probe_s)
    for line in (
        *in_words(make_splits(prepared, workload.split), prepared.class_names),
        *prepared.notes,
        *dataset.notes(),
    ):
        progress.line(line)
    sizes = workload.sizes()  # Of a folder it lists all files.
    batch_sizes = tuple(size for size in BATCH_SIZES if 4 * size <= sizes.train)[-3:] or (1,)
    fixed = _fixed(dataset, are_several=labels.ndim == 2)
    trained = partial(_trained, workload, machine, _middle(batch_sizes), progress, fixed)
    plain, epochs = _plain_run(trained, sizes.train / _middle(batch_sizes), probe_s, progress)
    reached = _learnt(plain, share, probe_s, is_needed=target is None)
    train_s = plain.clocks.train_s
    found = FirstStudy(
        file=str(file),
        images=len(labels),
        classes=int((class_counts(labels, len(prepared.class_names)) > 0).sum()),
        largest_class=share,
        reached=reached,
        target=target or _target(reached, sizes.validation),
        train_s=train_s,
        images_per_s=plain.samples / train_s,
        batch_sizes=batch_sizes,
        max_train_s=float(f"{max(10.0, 2 * train_s):.2g}"),
        time_budget_s=60 * math.ceil(TRIALS * train_s / machine.concurrent / 60 + 1),
    )
    text = _text(found, name, _seen_from(dataset, file.parent), machine, epochs, fixed)
    study_of(scan_yaml(text, file=str(file)), check_data=False)
    write_file(file, text.encode())
    return found


def _fixed(dataset: DatasetConfig, *, are_several: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"speedups": {"loss": "bce"}} if are_several else {}
    if isinstance(dataset, ImageFiles) and dataset.store_size is not None:
        crop = {"random_resized": {"scale": 0.35}}
        fields["image_size"] = int(dataset.store_size / STORED_MARGIN)
        fields["augmentation"] = {"crop": crop, "flip": "random"}
    return fields


def _learnt(plain: RunResult, share: float, probe_s: float, *, is_needed: bool) -> float:
    """Returns what a run reached. Raises: ConfigError if it did not end, or learnt too little."""
    reached = plain.final.value("accuracy") if plain.final else None
    least = share + LEAST_LEARNT * (1 - share) if is_needed else 0.0
    if reached is not None and reached >= least:
        return reached
    must = f"a plain run of {probe_s:g} s must reach an accuracy of {least:.2f} to propose a target"
    why = f", as the largest class alone gives {share:.2f}"
    given = plain.stop_reason if reached is None else f"{reached:.4f}"
    hint = "Give it longer, as in `--probe 5m`, or look whether labels and images belong together."
    raise ConfigError.of("", must + why, given=given, hint=hint)


def _target(reached: float, num_validation: int) -> float:
    """Returns what a run reached less its standard error, √(a (1 − a) / n), in whole hundredths."""
    # By luck alone the same run would miss what it just reached in every second search.
    error = math.sqrt(reached * (1 - reached) / num_validation)
    return min(0.99, math.floor(100 * (reached - error)) / 100)


def _seen_from(dataset: DatasetConfig, folder: Path) -> DatasetConfig:
    given = {name: getattr(dataset, name) for name in dataset.location_fields}
    ours = {n: os.path.relpath(p, folder) for n, p in given.items() if p and not os.path.isabs(p)}
    return dataset.model_copy(update=ours)


def _workload(dataset: DatasetConfig, num_images: int, probe_s: float) -> Workload:
    split = {"validation_frac": 0.2} if num_images < SMALL_SET else {}
    tree = {
        "dataset": _tree_of(dataset),
        "target": {"value": 1.0},
        "max_train_s": 100 * probe_s,
        "split": split,
    }
    return Workload.model_validate(tree)


def _tree_of(dataset: DatasetConfig) -> dict[str, Any]:
    name = next(name for name, kind in DATASETS.items() if kind is type(dataset))
    return {"name": name, **dataset.model_dump(exclude_defaults=True)}


def _middle(sizes: Sequence[int]) -> int:
    return sizes[len(sizes) // 2]


def _plain_run(
    trained: Callable[[float], RunResult], epoch_steps: float, probe_s: float, progress: Progress
) -> tuple[RunResult, float]:
    first = trained(FIRST_STEPS / epoch_steps)
    if not first.step_time_ms:
        return first, 0.0
    epoch_s = epoch_steps * first.step_time_ms / 1000
    epochs = float(f"{min(MOST_EPOCHS, probe_s / epoch_s):.2g}")
    progress.line(f"one plain run of {epochs:g} epochs, about {duration(epochs * epoch_s)}")
    return trained(epochs), epochs


def _trained(
    workload: Workload,
    machine: _Machine,
    batch_size: int,
    progress: Progress,
    fixed: dict[str, Any],
    epochs: float,
) -> RunResult:
    tree = {
        "recipe": {
            "model": machine.model,
            "optimizer": {"adamw": {"lr": 3e-3, "weight_decay": 0.01}},
            "lr_schedule": "one_cycle",
            "epochs": epochs,
            "batch_size": batch_size,
            "precision": machine.precision,
            "loader": "auto",
            **fixed,
        },
        # Trials get one core each on a machine without a GPU.
        "run": {} if "gpu" in machine.resources else {"cpu_threads": 1},
    }
    file = recipe_from(tree, workload=workload, overrides=(), check_data=True)
    done = train_seeds(
        file, seeds=1, download=False, on_progress=progress.decoded, on_line=lambda line: None
    )
    if done.a is None:
        raise KeyboardInterrupt
    (run,) = done.a.runs
    if run.traceback:
        progress.warn(run.traceback)
    return run


def _changes(dataset: DatasetConfig, fixed: dict[str, Any]) -> str:
    side = dataset.model_dump().get("image_size") or 32
    moved = f"pad: {{choices: [0, {max(1, side // 8)}]}}  # pixels of random shift"
    if "image_size" in fixed:
        moved = "crop: {random_resized: {scale: {low: 0.1, high: 0.8}}}  # least area of a crop"
    size = f"  image_size: {fixed['image_size']}  # pixels\n" if "image_size" in fixed else ""
    loss = "  speedups: {loss: bce}  # several classes an image\n" if "speedups" in fixed else ""
    return f"""\
{size}{loss}  augmentation:
    {moved}
    flip: {{choices: [none, random]}}  # left-right: leave it out where sides matter
"""


def _text(
    found: FirstStudy,
    name: str,
    dataset: DatasetConfig,
    machine: _Machine,
    epochs: float,
    fixed: dict[str, Any],
) -> str:
    split = "\n  split: {validation_frac: 0.2}" if found.images < SMALL_SET else ""
    low = float(f"{epochs / 8:.2g}")
    fields = "".join(f"\n    {k}: {json.dumps(v)}" for k, v in _tree_of(dataset).items())
    (model,) = machine.model
    resources = json.dumps(machine.resources).replace('"', "")
    text = f"""\
# {found.images:,} images of {found.classes} classes. By `tune-speed init`; change what you like.
#   tune-speed search {found.file}
study: {json.dumps(name)}

workload:  # what must be reached; never searched
  name: {json.dumps(name)}
  dataset:{fields}
  # A plain run of {found.train_s:.1f} s, {epochs:g} epochs, reached {found.reached:.4f} on the
  # validation part; naming the largest class always, {found.largest_class:.4f}.
  target: {{metric: accuracy, value: {found.target:g}}}
  max_train_s: {found.max_train_s:g}  # limit of one run: twice the plain one{split}

recipe:  # bare values are fixed, the others are searched
  model: {model}  # others: tune-speed list models
  optimizer:
    choices:
      sgd:
        lr: {{low: 0.5, high: 16.0, log: true}}
        lr_per_examples: 1024  # so that one rate fits every batch size
        momentum: 0.9
        weight_decay: {{low: 1.0e-5, high: 1.0e-3, log: true}}
      adamw:
        lr: {{low: 1.0e-3, high: 2.0e-2, log: true}}
        weight_decay: 0.01
  lr_schedule:
    one_cycle:
      pct_start: {{low: 0.1, high: 0.5}}
      div_factor: {{low: 2.0, high: 50.0, log: true}}
      final_div_factor: {{low: 1.0, high: 1000.0, log: true}}
  epochs: {{low: {low:g}, high: {epochs:g}, log: true}}
  batch_size: {{choices: {list(found.batch_sizes)}}}
  precision: {machine.precision}
  loader: auto  # images lie on the device where they fit
{_changes(dataset, fixed)}
search:
  trials: {TRIALS}
  concurrent: {machine.concurrent}
  time_budget: {found.time_budget_s / 60:g}m  # the search ends after that
  resources: {resources}
"""
    # One column for all comments.
    return re.sub(r"^(.*\S)  # ", lambda line: f"{line[1]:<35} # ", text, flags=re.MULTILINE)

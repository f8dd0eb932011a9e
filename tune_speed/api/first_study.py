"""`tune-speed init`: a first study file for somebody's own images, from a look and a short run."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
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
from tune_speed.data.datasets.detect import described, detect
from tune_speed.data.split import Splits, in_words, make_splits
from tune_speed.experiments.fine_tuning import networks, range_test
from tune_speed.experiments.fine_tuning.targets import TIMES, Point, below, promised
from tune_speed.experiments.rerun import train_seeds
from tune_speed.runtime.atomic_file import write_file
from tune_speed.runtime.device import resolve_device
from tune_speed.study.file import RecipeFile, study_of
from tune_speed.study.schema import check_study_name
from tune_speed.study.yaml import scan_yaml
from tune_speed.training.build import Job
from tune_speed.training.trial import Allotment
from tune_speed.training.worker import open_device
from tune_speed.training.workload import Workload

Tree = dict[str, Any]

TRIALS = 40
MOST_EPOCHS = 30.0
"""Of the plain run, and of a searched one."""
FIRST_STEPS = 16
PROBE_S = 60.0
FINE_PROBE_S = 150.0
QUICK = 0.25
"""Share of these that a quick look takes."""
EVALUATIONS = 6
"""Of the plain run of fine-tuning, from which its curve is read."""
CERTIFY = {"top": 2, "seeds": 5, "final": 0}
"""Options of the certification whose time `init` predicts."""
BATCH_SIZES = (4, 8, 16, 32, 64, 128)
"""Of which the three largest are searched that give an epoch four steps; the plain run takes the
middle one."""
EVAL_BATCH_SIZE = 200
"""Of photographs: a thousand at 160 pixels take 3 GiB."""
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
    promised: float
    """What its curve promises for a longer run of fine-tuning; else the same."""
    target: float
    train_s: float
    """Training clock of the plain run [s]."""
    trial_s: float
    """The same without waits for a core [s]."""
    images_per_s: float
    batch_sizes: tuple[int, ...]
    max_train_s: float
    time_budget_s: float
    picture: str | None
    """File of the range test's picture, if there was one."""

    def parts(self) -> tuple[RenderableType, ...]:
        """Returns what was found, and the command that comes next."""
        curve = f", its curve promises {self.promised:.3f}" if self.promised > self.reached else ""
        return (
            f"wrote {self.file}: {counted(self.images, 'image')} of"
            f" {self.classes} classes; one plain run reached {self.reached:.4f} in"
            f" {self.train_s:.1f} s{curve}, so the target is {self.target:g}",
            *([f"range test of the learning rate: {self.picture}"] if self.picture else []),
            _how_long(self.trial_s, self.time_budget_s),
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
    model: Tree
    precision: str
    concurrent: int
    resources: dict[str, float]
    hardware: networks.Hardware

    @classmethod
    def here(cls) -> "_Machine":
        if resolve_device("auto").type == "cuda":
            return cls(
                most_pixels=224,
                model={"resnet18": {}},
                precision="bf16",
                concurrent=4,
                resources={"cpu": 2, "gpu": 0.25},
                hardware="gpu",
            )
        return cls(
            most_pixels=32,
            model={"resnet20": {}},
            precision="fp32",
            concurrent=min(8, len(os.sched_getaffinity(0))),
            resources={"cpu": 1},
            hardware="cpu",
        )

    @property
    def image_sizes(self) -> list[int]:
        """Sides at which fine-tuning is searched [pixels], whole patches."""
        side = networks.PIXELS[self.hardware]
        return [32 * round(factor * side / 32) for factor in (1.0, 1.25)]

    def budget_s(self, trial_s: float) -> float:
        """Returns the time of a search of usual trials [s], in whole minutes."""
        return 60 * math.ceil(TRIALS * trial_s / self.concurrent / 60 + 1)


_Plain = tuple[RunResult, float, float, range_test.Range | None]
"""A plain run, its epochs, their time in a trial [s], and the rates of a range test."""


def init(
    data: str | Path,
    *,
    study: str | None = None,
    out: str | Path | None = None,
    target: float | None = None,
    weights: str | Path | None = None,
    model: str | None = None,
    probe_s: float | None = None,
    quick: bool = False,
    replace: bool = False,
    progress: Progress,
) -> FirstStudy:
    """Writes a commented study file for the images at `data`, and says what it is based on.

    Photographs are fine-tuned, if published weights can be had: those in `weights`, else of timm's
    `model`, else of the best network for this machine. A range test finds the rates to search, and
    a plain run of `probe_s` seconds (150) the target: a little below what its curve promises.
    All others are trained from fresh weights: a plain run (ResNet, AdamW, one-cycle) of `probe_s`
    seconds (60), or 30 epochs; without a `target`, that is a little below what it reaches.
    `quick`: a quarter of these times. Raises: ConfigError, DataError.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(data).absolute().stem).strip("._-")
    name = study or stem[:100] or "my_images"
    check_study_name(name)
    file = Path(out) if out is not None else Path(f"{name}.yaml")
    if file.exists() and not replace:
        must = "must be a new file, unless --replace is given"
        raise ConfigError.of("", must, given=str(file), hint="Or name another with --out.")
    machine = _Machine.here()
    dataset, start = _dataset(Path(data), machine, weights, model, progress)
    probe_s = probe_s or (FINE_PROBE_S if start else PROBE_S) * (QUICK if quick else 1)
    prepared = prepare(dataset, on_progress=progress.decoded)
    labels = prepared.train.labels
    share = guesses(labels, len(prepared.class_names))["accuracy"]
    own: Tree = {"eval_batch_size": EVAL_BATCH_SIZE} if start else {}
    if len(labels) < SMALL_SET and not prepared.num_validation:
        own["split"] = {"validation_frac": 0.2}
    workload = _workload(dataset, probe_s, own)
    splits = make_splits(prepared, workload.split)
    for line in (
        *in_words(splits, prepared.class_names),
        *described(dataset, prepared),
        *prepared.notes,
        *dataset.notes(),
    ):
        progress.line(line)
    if start and weights and not model:
        side, given = networks.PIXELS[machine.hardware], start["name"]
        start["name"] = networks.twin_of(given, start["weights_file"], splits.train, side)
        if start["name"] != given:
            progress.line(f"network: {start['name']}, whose batch norms fit the photographs better")
    sizes = workload.sizes()  # Of a folder it lists all files.
    # Fine-tuning takes few steps, of small batches.
    allowed = BATCH_SIZES[:-1] if start else BATCH_SIZES
    batch_sizes = tuple(size for size in allowed if 4 * size <= sizes.train)[-3:] or (1,)
    fixed = _fixed(dataset, machine, start, are_several=labels.ndim == 2)
    fixed["batch_size"] = batch_size = batch_sizes[len(batch_sizes) // 2]
    picture = file.with_name(f"{file.stem}_range_test.svg") if start else None
    if picture is not None:
        plain = _fine_tuned(splits, workload, machine, fixed, probe_s, progress, picture)
    else:
        trained = partial(_trained, workload, machine, progress, fixed)
        plain = _plain_run(trained, sizes.train / batch_size, probe_s, progress)
    run, epochs, trial_s, rates = plain
    reached = likely = _learnt(run, share, probe_s, is_needed=target is None)
    if start:
        likely = promised([Point(e.samples, a) for e, a in run.measured("accuracy")[1:]])
    # The longest of fine-tuning has three times the epochs, of images with 1.6 times the pixels.
    longest_s = trial_s * (2 * TIMES if start else 2)
    found = FirstStudy(
        file=str(file),
        images=len(labels),
        classes=int((class_counts(labels, len(prepared.class_names)) > 0).sum()),
        largest_class=share,
        reached=reached,
        promised=likely,
        target=target or below(likely, sizes.validation),
        train_s=run.clocks.train_s,
        trial_s=trial_s,
        images_per_s=run.samples / trial_s,
        batch_sizes=batch_sizes,
        max_train_s=float(f"{max(10.0, longest_s):.2g}"),
        time_budget_s=machine.budget_s(trial_s),
        picture=str(picture) if picture else None,
    )
    seen = _tree_of(_seen_from(dataset, file.parent))
    known = {"found": found, "fixed": fixed, "machine": machine, "name": name, "rates": rates}
    known |= {"dataset": seen, "epochs": epochs, "workload": own}
    text = _text(known, machine.image_sizes)
    study_of(scan_yaml(text, file=str(file)), check_data=False)
    write_file(file, text.encode())
    return found


def _dataset(
    place: Path, machine: _Machine, file: str | Path | None, name: str | None, progress: Progress
) -> tuple[DatasetConfig, Tree | None]:
    """Returns the data set, and the model with published weights that photographs start from."""
    dataset = detect(place, most_pixels=machine.most_pixels)
    if not isinstance(dataset, ImageFiles) or dataset.store_size is None:
        if given := file or name:
            must = "must be left out, as these images are no photographs"
            raise ConfigError.of("--weights and --model", must, given=str(given))
        return dataset, None
    wanted = [name] if name else networks.ordered(dataset.num_train(), machine.hardware)
    start = networks.starting_model(os.path.abspath(file) if file else None, wanted, progress.line)
    if start is not None:
        return detect(place, most_pixels=machine.image_sizes[-1]), start
    progress.line(
        "no published weights: a run from fresh ones takes many times the epochs, and with some"
        " thousand images ends far below. Give --weights FILE, or connect to fetch them."
    )
    return dataset, None


def _fixed(
    dataset: DatasetConfig, machine: _Machine, start: Tree | None, *, are_several: bool
) -> Tree:
    """Returns the plain recipe, but for its length and batch."""
    fields: Tree = {
        "model": {"timm": start} if start else machine.model,
        "optimizer": {"adamw": {"lr": 3e-3, "weight_decay": 0.01}},
        "lr_schedule": "one_cycle",
        "precision": machine.precision,
        "loader": "auto",
        "label_smoothing": 0.1 if start and not are_several else 0.0,
        "speedups": ({"loss": "bce"} if are_several else {}) | ({"views": "tta"} if start else {}),
        "image_size": None,
    }
    if isinstance(dataset, ImageFiles) and dataset.store_size is not None:
        largest = int(dataset.store_size / STORED_MARGIN)
        whole = min(max(32, largest // 32 * 32), networks.PIXELS[machine.hardware])
        fields["image_size"] = whole if start else largest
        fields["augmentation"] = {"crop": {"random_resized": {"scale": 0.35}}, "flip": "random"}
    return fields


def _fine_tuned(
    splits: Splits,
    workload: Workload,
    machine: _Machine,
    fixed: Tree,
    probe_s: float,
    progress: Progress,
    picture: Path,
) -> _Plain:
    """Tests the range of rates, and trains for `probe_s` at the one that it proposes."""
    limit = duration(range_test.LIMIT_S)
    steps = f"a range test of the rate, {limit} at most, and a plain run of {duration(probe_s)}"
    progress.line(f"next: {steps} or somewhat more")
    progress.line(f"then {_how_long(probe_s, machine.budget_s(probe_s))}")
    num_train = len(splits.train.labels)
    highest = {"adamw": {"lr": range_test.HIGHEST, "weight_decay": 0.01}}
    file = _file(workload, machine, fixed | {"optimizer": highest}, 1.0)
    device = open_device(Allotment(device=file.run.device))
    job = Job(workload, file.recipe, splits, seed=0, device=device)
    tested = range_test.range_test(job)
    rates = range_test.proposed(tested)
    range_test.draw(tested, rates, picture)
    why = "; usual ones, as the loss did not fall" if rates is range_test.USUAL else ""
    ends = f"searched from {rates.low:g} to {rates.high:g}"
    progress.line(f"learning rate: {rates.start:g}; {ends}{why}")
    epoch_s = num_train / fixed["batch_size"] * tested.step_s
    epochs = float(f"{min(MOST_EPOCHS / TIMES, probe_s / epoch_s):.2g}")
    progress.line(f"one plain run of {epochs:g} epochs, about {duration(epochs * epoch_s)}")
    every = {"eval_every_samples": max(1, math.ceil(epochs * num_train / EVALUATIONS))}
    recipe = fixed | {"optimizer": {"adamw": {"lr": rates.start, "weight_decay": 0.01}}}
    run = _trained(workload.model_copy(update=every), machine, progress, recipe, epochs)
    return run, epochs, epochs * epoch_s, rates


def _how_long(trial_s: float, search_s: float) -> str:
    certify_s = CERTIFY["top"] * CERTIFY["seeds"] * trial_s
    options = " ".join(f"--{name} {value}" for name, value in CERTIFY.items())
    return (
        f"a trial takes about {duration(trial_s)}, a search {duration(search_s)} at"
        f" most, a certification (`certify {options}`) about {duration(certify_s)}"
    )


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


def _seen_from(dataset: DatasetConfig, folder: Path) -> DatasetConfig:
    given = {name: getattr(dataset, name) for name in dataset.location_fields}
    ours = {n: os.path.relpath(p, folder) for n, p in given.items() if p and not os.path.isabs(p)}
    return dataset.model_copy(update=ours)


def _workload(dataset: DatasetConfig, probe_s: float, more: Tree) -> Workload:
    tree = {
        "dataset": _tree_of(dataset),
        "target": {"value": 1.0},
        "max_train_s": 100 * probe_s,
        **more,
    }
    return Workload.model_validate(tree)


def _tree_of(dataset: DatasetConfig) -> dict[str, Any]:
    name = next(name for name, kind in DATASETS.items() if kind is type(dataset))
    return {"name": name, **dataset.model_dump(exclude_defaults=True)}


def _plain_run(
    trained: Callable[[float], RunResult], epoch_steps: float, probe_s: float, progress: Progress
) -> _Plain:
    run = trained(FIRST_STEPS / epoch_steps)
    epochs = 0.0
    if run.step_time_ms:
        epoch_s = epoch_steps * run.step_time_ms / 1000
        epochs = float(f"{min(MOST_EPOCHS, probe_s / epoch_s):.2g}")
        progress.line(f"one plain run of {epochs:g} epochs, about {duration(epochs * epoch_s)}")
        run = trained(epochs)
    return run, epochs, run.clocks.train_s, None


def _file(workload: Workload, machine: _Machine, fixed: Tree, epochs: float) -> RecipeFile:
    # Trials get one core each on a machine without a GPU.
    run = {} if machine.hardware == "gpu" else {"cpu_threads": 1}
    tree = {"recipe": {**fixed, "epochs": epochs}, "run": run}
    return recipe_from(tree, workload=workload, overrides=(), check_data=True)


def _trained(
    workload: Workload, machine: _Machine, progress: Progress, fixed: Tree, epochs: float
) -> RunResult:
    file = _file(workload, machine, fixed, epochs)
    done = train_seeds(
        file, seeds=1, download=False, on_progress=progress.decoded, on_line=lambda line: None
    )
    if done.a is None:
        raise KeyboardInterrupt
    (run,) = done.a.runs
    if run.traceback:
        progress.warn(run.traceback)
    return run


def _text(known: Tree, image_sizes: list[int]) -> str:
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["json"] = json.dumps
    template = Path(__file__).with_name("first_study.yaml.j2").read_text()
    dataset, epochs, own = known["dataset"], known["epochs"], known["fixed"]["image_size"] or 0
    lengths = (epochs / TIMES, epochs * TIMES) if known["rates"] else (epochs / 8, epochs)
    largest = dataset.get("store_size", 0) / STORED_MARGIN
    sizes = sorted({own, *(size for size in image_sizes if size <= largest)})
    more: Tree = {
        "lengths": [float(f"{each:.2g}") for each in lengths],
        "image_size": f"{{choices: {sizes}}}" if known["rates"] and len(sizes) > 1 else own,
        "most_pad": max(1, dataset.get("image_size", 32) // 8),
        **{"times": TIMES, "trials": TRIALS},
    }
    text = environment.from_string(template).render(known | more)
    # One column for all comments.
    return re.sub(r"^(.*\S)  # ", lambda line: f"{line[1]:<35} # ", text, flags=re.MULTILINE)

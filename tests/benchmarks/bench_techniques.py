"""Each technique on and off: time per epoch, and accuracy after a fixed short training.

    python tests/benchmarks/bench_techniques.py --data ../shared/data    # CPU, about 20 minutes
    python tests/benchmarks/bench_techniques.py --data DIR --device cuda --precision bf16

ResNet-20 (or what a technique needs) on CIFAR-10 from two Parquet files. For the time, whole runs
of a few epochs alternate, off and on, so that what a technique does over a run counts as it does in
one; the ratio is that of the medians of the training clock, off over on: above 1, the technique
saves time. For the accuracy, the same recipe trains longer, off and on with the same seeds; nothing
is tuned for the technique, which would be the fair way to judge it (see `tune-speed search
techniques`). `--only NAME` runs some of them; `--rounds 0` or `--seeds 0` leaves a part out.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from tune_speed.core.config import canonical_hash
from tune_speed.core.records import RunResult
from tune_speed.data.cache import prepare
from tune_speed.data.datasets.image_parquet import ImageParquet
from tune_speed.data.split import SplitConfig, Splits, make_splits
from tune_speed.runtime.device import describe_device, resolve_device, set_up_process
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Target, Workload

Tree = Mapping[str, Any]


class Case(NamedTuple):
    """A technique, as changes to the base recipe."""

    on: Tree
    off: Tree = MappingProxyType({})
    expected: str = ""
    """What the specification of the technique lets expect of its time."""
    on_cpu: bool = True
    """Whether it is run on a CPU, too."""


BASE: Tree = {
    "model": {"resnet20": {}},
    "optimizer": {"sgd": {"lr": 0.4, "momentum": 0.9, "weight_decay": 5e-4}},
    "lr_schedule": {"one_cycle": {}},
    "batch_size": 128,
    "augmentation": {"pad": 4, "flip": "random"},
}
ADAMW: Tree = {"optimizer": {"adamw": {"lr": 0.01, "weight_decay": 0.01}}}


def slot(name: str, technique: str, **fields: Any) -> Tree:
    """Returns the change that switches a speed-up on."""
    return {"speedups": {name: {technique: fields}}}


CASES: dict[str, Case] = {
    "stochastic_depth uniform 0.5": Case(
        slot("depth", "stochastic_depth", survival=0.5, rule="uniform"), expected="≥ 1.7"
    ),
    "stochastic_depth linear 0.5": Case(
        slot("depth", "stochastic_depth", survival=0.5, rule="linear"), expected="1.25, ≤ 1.38"
    ),
    "boosted": Case(slot("depth", "boosted")),
    "progressive_resizing": Case(slot("resolution", "progressive_resizing"), expected="≥ 1.3"),
    "selective_backprop": Case(slot("selection", "selective_backprop")),
    "batch_stages": Case(slot("batch_growth", "batch_stages")),
    "bf16 and channels_last": Case(
        {"precision": "bf16", "channels_last": True},
        {"precision": "fp32", "channels_last": False},
        expected="≥ 1.5 with avx512_bf16",
    ),
    "bf16": Case({"precision": "bf16"}, {"precision": "fp32"}),
    "channels_last": Case({"channels_last": True}, {"channels_last": False}),
    # On a CPU, an epoch of 640 images took 294 s.
    "half, a negative control": Case({"precision": "half"}, on_cpu=False),
    "accumulation 4 × 32": Case({"batch_size": 32, "accumulation_steps": 4}),
    # ResNet-20 has no hidden linear layer; the extension to convolutions is what acts on it.
    "meprop on convolutions": Case(slot("backward", "meprop", conv_frac=0.25)),
    "dropout_removal": Case(
        {"model": {"resnet20": {"dropout": 0.2}}, **slot("dropout", "dropout_removal")},
        {"model": {"resnet20": {"dropout": 0.2}}},
    ),
    "pre-activation": Case({"model": {"preact_resnet": {"depth": 20}}}),
    "repeat_factor, long tail": Case({"order": {"repeat_factor": {"threshold": 0.1}}}),
    "curriculum": Case({"order": {"curriculum": {"step_length": 10, "scoring_epochs": 0.5}}}),
    "kaiming": Case(slot("init", "kaiming")),
    "whitening": Case(slot("init", "whitening")),
    "pretrain_subset": Case(slot("init", "pretrain_subset", part=0.5)),
    "focal": Case(slot("loss", "focal")),
    "label smoothing 0.1": Case({"label_smoothing": 0.1}),
    "ema": Case(slot("averaging", "ema")),
    "tta, 2 views": Case(slot("views", "tta", views=2)),
    "alternating flip": Case({"augmentation": {"pad": 4, "flip": "alternating"}}),
    "cutout 8": Case({"augmentation": {"pad": 4, "flip": "random", "cutout": 8}}),
    "clip_norm 1": Case({"clip_norm": 1.0}),
    "adamw": Case(ADAMW),
    "swats": Case({"optimizer": {"swats": {"lr": 0.01}}}, ADAMW),
    "yellowfin": Case({"optimizer": {"yellowfin": {}}, "lr_schedule": {"constant": {}}}),
    "muon": Case({"optimizer": {"muon": {"lr": 0.02}}}),
    "cosine": Case({"lr_schedule": {"cosine": {"warmup_frac": 0.1}}}),
    "trapezoid": Case({"lr_schedule": {"trapezoid": {}}}),
    "multi_step": Case({"lr_schedule": {"multi_step": {}}}),
    "reduce_on_plateau": Case({"lr_schedule": {"reduce_on_plateau": {"patience": 1}}}),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the Parquet files")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32", help="of recipes that do not say")
    parser.add_argument("--rounds", type=int, default=3, help="of the time; 0: none")
    parser.add_argument("--samples", type=int, default=1280, help="images of the time's epoch")
    parser.add_argument("--epochs", type=float, default=2.0, help="of the time's runs")
    parser.add_argument("--seeds", type=int, default=1, help="of the accuracy; 0: none")
    parser.add_argument("--accuracy-samples", type=int, default=5000)
    parser.add_argument("--accuracy-epochs", type=float, default=3.0)
    parser.add_argument("--only", nargs="+", help="names of techniques, or parts of them")
    parser.add_argument("--json", type=Path, help="writes every run's figures there")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    device = resolve_device(arguments.device)
    set_up_process(device, cpu_threads=arguments.threads)
    print(f"{describe_device(device)}, torch {torch.__version__}")
    print("| technique | time off [s/epoch] | on | off / on | expected | accuracy off | on |")
    print("|---|---|---|---|---|---|---|")
    bench = Bench(arguments, device)
    for name, case in CASES.items():
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        if device.type == "cpu" and not case.on_cpu:
            continue
        print(bench.row(name, case), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(bench.figures, indent=1))


class Bench:
    """Runs and remembers them."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.arguments, self.device = arguments, device
        self.figures: dict[str, Any] = {}
        self._splits: dict[str, Splits] = {}
        self._accuracies: dict[str, float] = {}

    def row(self, name: str, case: Case) -> str:
        """Returns a technique's line of the table."""
        seconds: dict[str, list[float]] = {"off": [], "on": []}
        for number in range(self.arguments.rounds):
            sides = ("off", "on") if number % 2 == 0 else ("on", "off")
            for side in sides:
                seconds[side].append(self._epoch_s(name, getattr(case, side), seed=number))
        accuracies = {
            side: [self._accuracy(name, getattr(case, side), s) for s in self._seeds()]
            for side in seconds
        }
        self.figures[name] = {"epoch_s": seconds, "accuracy": accuracies}
        times = "| | | "
        if self.arguments.rounds:
            off, on = (statistics.median(seconds[side]) for side in ("off", "on"))
            times = f"{off:.2f} | {on:.2f} | **{off / on:.2f}** "
        scores = " | ".join(_mean(accuracies[side]) for side in ("off", "on"))
        return f"| {name} | {times}| {case.expected} | {scores} |"

    def _seeds(self) -> Iterator[int]:
        yield from range(self.arguments.seeds)

    def _epoch_s(self, name: str, changes: Tree, *, seed: int) -> float:
        run = self._run(name, changes, self.arguments.samples, self.arguments.epochs, seed=seed)
        return run.clocks.train_s / self.arguments.epochs

    def _accuracy(self, name: str, changes: Tree, seed: int) -> float:
        key = canonical_hash({"changes": dict(changes), "seed": seed, "tail": _has_tail(name)})
        if key not in self._accuracies:
            samples, epochs = self.arguments.accuracy_samples, self.arguments.accuracy_epochs
            run = self._run(name, changes, samples, epochs, seed=seed)
            assert run.final is not None
            self._accuracies[key] = run.final.accuracy
        return self._accuracies[key]

    def _run(
        self, name: str, changes: Tree, samples: int, epochs: float, *, seed: int
    ) -> RunResult:
        tail = 0.05 if _has_tail(name) else None
        split = SplitConfig(train_samples=samples, validation_samples=2000, long_tail=tail)
        dataset = ImageParquet(
            train=str(self.arguments.data / "cifar10-train.parquet"),
            test=str(self.arguments.data / "cifar10-test.parquet"),
        )
        key = split.model_dump_json()
        if key not in self._splits:
            self._splits[key] = make_splits(prepare(dataset), split)
        workload = Workload(
            dataset=dataset, split=split, target=Target(value=1.0), max_train_s=3600.0
        )
        tree = {"precision": self.arguments.precision, **BASE, **changes}
        recipe = Recipe.model_validate({**tree, "epochs": epochs})
        run = train(workload, recipe, self._splits[key], seed=seed, device=self.device)
        while True:
            try:
                next(run)
            except StopIteration as end:
                result: RunResult = end.value
                return result


def _has_tail(name: str) -> bool:
    return "long tail" in name


def _mean(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3f}" if values else ""


if __name__ == "__main__":
    main()

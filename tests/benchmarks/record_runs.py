"""Records the learning curves of real training runs, as a Parquet table for benchmarks of searches.

    export OMP_NUM_THREADS=1
    python tests/benchmarks/record_runs.py train digits_one_cycle --minutes 44
    python tests/benchmarks/record_runs.py calibrate digits_one_cycle
    python tests/benchmarks/record_runs.py write digits_one_cycle

`train` resumes where the work file, or the table that was written, stops; two tables may train at
once, each on a core of its own. `calibrate` measures step times, best on an idle machine; run
again, it adds spans. `write` makes tests/benchmarks/data/TABLE.parquet.

**Configurations.** Every combination of the space's choices (a cell) comes once in each block of
runs, in an order of the block's own; within a cell, ranges follow a scrambled Sobol sequence. So
the first N runs are balanced for any N. Run number i has seed i. With `--configurations N` (to each
of the three commands) the first N come again and again; that table has `_seeds` in its name.

**The clock is steps x isolated step time**, as the machine may have other work. A throughput key is
what a step's duration depends on (micro-batch x accumulation, precision); `calibrate` trains a run
of each key in the same loop, by turns in spans of whole epochs, at least 30 steps; the shortest
span of a key gives its `step_time_s`.

**A table** has a row per run: `params` (JSON by dotted path, as `SearchSpace.read`), `step`,
`train_s` and `metric` (lists over evaluations, that of the untrained model left out), `status`
(`done`, `diverged`, `oom`) and `seed`. The file's metadata under `tune_speed` is JSON: name, space,
target (which a given share of the runs holds), mode, clock, device, command, environment. CIFAR-10
is read from two Parquet files (`--data`) of JPEG images of quality 75, hence `cifar10-jpeg`.
"""

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from scipy.stats import qmc

from tune_speed.core.records import Status
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.datasets.image_parquet import ImageParquet
from tune_speed.data.split import SplitConfig
from tune_speed.runtime.device import describe_device, set_up_process
from tune_speed.study.parameter import Parameter
from tune_speed.study.space import Params, SearchSpace
from tune_speed.training.build import Job
from tune_speed.training.loop import Run, train
from tune_speed.training.objective import finish, load_splits, run_trial
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, TrialSpec, environment
from tune_speed.training.workload import Target, Workload
from tune_speed.tuning.simulation.recorded import write_table

CPU = torch.device("cpu")
DATA = Path(__file__).parent / "data"
CLOCK = "steps x isolated step time"
COMMAND = "python tests/benchmarks/record_runs.py train | calibrate | write"
SHARE_OF_SEVERAL = 0.15
"""Of the runs of a table with several a configuration: some hold it in most of their runs."""
NEVER = Target(value=1.0)
"""Runs go to their end whatever they reach; a table's target is chosen from its curves."""
ENDLESS_S = 1e9
"""A time limit of a run that never binds [s]."""
SPAN_STEPS = 30
STATUSES = {
    Status.REACHED: "done",
    Status.MISSED: "done",
    Status.DIVERGED: "diverged",
    Status.OOM: "oom",
}

Row = dict[str, Any]
"""A run of the work file: `index`, `params`, `status`, `key`, `step`, `metric`."""

DIGITS_SPACE = {
    "model": {"resnet20": {}},
    "optimizer": {
        "sgd": {
            "lr": {"low": 0.01, "high": 5.0, "log": True},
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": {"low": 1e-5, "high": 3e-2, "log": True},
        }
    },
    "lr_schedule": {"one_cycle": {"pct_start": {"low": 0.05, "high": 0.6}}},
    "epochs": {"choices": [2, 4, 8, 16]},
    "batch_size": {"choices": [32, 64, 128]},
    "precision": "fp32",
}
CIFAR_SPACE = {
    "model": {"resnet20": {}},
    "optimizer": {
        "sgd": {
            "lr": {"low": 0.5, "high": 20.0, "log": True},
            "lr_per_examples": 1024,
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": {"low": 1e-5, "high": 1e-2, "log": True},
        }
    },
    "lr_schedule": {"one_cycle": {"pct_start": {"low": 0.1, "high": 0.5}}},
    "epochs": {"choices": [1, 2, 4, 6]},
    "batch_size": {"choices": [32, 64, 128]},
    "precision": "bf16",
    "augmentation": {"pad": 2, "flip": "random"},
}


@dataclass(frozen=True, kw_only=True)
class Recording:
    table: str
    """Name of the file."""
    name: str
    """Name of the data and of how it is trained."""
    space: SearchSpace
    workload: Workload
    seed: int
    """Of the choice of configurations."""
    share_on_target: float
    """Share of the runs that hold the target. 5 % of CIFAR-10's are long runs only."""


def main() -> None:
    arguments = parse_arguments()
    set_up_process(CPU, cpu_threads=1)
    recording = recordings(arguments.data)[arguments.table]
    if arguments.configurations:
        table, name = f"{recording.table}_seeds", f"{recording.name}, several seeds each"
        recording = replace(recording, table=table, name=name, share_on_target=SHARE_OF_SEVERAL)
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.command == "train":
        planned = itertools.islice(
            configurations(recording.space, seed=recording.seed), arguments.configurations
        )
        runs = itertools.islice(itertools.cycle(planned), arguments.runs)
        done = {row["index"] for row in recorded_rows(recording, arguments.work, arguments.out)}
        train_all(recording, arguments.work, runs=runs, done=done, minutes=arguments.minutes)
    elif arguments.command == "calibrate":
        calibrate(recording, arguments.work, rounds=arguments.rounds, pause_s=arguments.pause_s)
    else:
        write(recording, arguments.work, arguments.out)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["train", "calibrate", "write"])
    parser.add_argument("table", choices=["digits_one_cycle", "cifar10_jpeg_subset"])
    parser.add_argument("--data", default="../shared/data", help="folder of the CIFAR-10 files")
    parser.add_argument("--work", type=Path, default=Path("build/recordings"))
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--runs", type=int, default=1008, help="train: runs in all")
    parser.add_argument(
        "--configurations",
        type=int,
        help="the first so many by turns, for TABLE_seeds.parquet; default: all differ",
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="train: no run starts later"
    )
    parser.add_argument("--rounds", type=int, default=10, help="calibrate: spans of each key")
    parser.add_argument("--pause-s", type=float, default=0.0, help="calibrate: between rounds [s]")
    return parser.parse_args()


def recordings(data: str) -> dict[str, Recording]:
    digits = Workload(
        dataset=Digits(),
        target=NEVER,
        max_train_s=ENDLESS_S,
        split=SplitConfig(validation_frac=0.2),
        eval_every_samples=384,  # A third of an epoch, and a multiple of each batch size.
    )
    cifar = Workload(
        dataset=ImageParquet(
            train=f"{data}/cifar10-train.parquet", test=f"{data}/cifar10-test.parquet"
        ),
        target=NEVER,
        max_train_s=ENDLESS_S,
        split=SplitConfig(train_samples=2500, validation_samples=1000),
        eval_every_samples=625,
        eval_batch_size=100,  # Half the time of one batch of 1,000.
    )
    both = (
        Recording(
            table="digits_one_cycle",
            name="digits, ResNet-20, SGD one-cycle",
            space=SearchSpace.from_tree(DIGITS_SPACE),
            workload=digits,
            seed=1,
            share_on_target=0.05,
        ),
        Recording(
            table="cifar10_jpeg_subset",
            name="cifar10-jpeg (2,500 images), ResNet-20 in bf16, SGD one-cycle",
            space=SearchSpace.from_tree(CIFAR_SPACE),
            workload=cifar,
            seed=2,
            share_on_target=0.15,
        ),
    )
    return {recording.table: recording for recording in both}


def configurations(space: SearchSpace, *, seed: int) -> Iterator[Params]:
    """Yields parameters without end: each cell once a block, Sobol points within a cell."""
    assert not any(parameter.condition for parameter in space.parameters)
    choices = [p for p in space.parameters if p.kind == "categorical"]
    ranges = [p for p in space.parameters if p.kind == "float"]
    assert len(choices) + len(ranges) == len(space.parameters)
    cells = list(itertools.product(*(parameter.choices for parameter in choices)))
    sequences = [
        qmc.Sobol(len(ranges), rng=np.random.default_rng([seed, cell]))
        for cell in range(len(cells))
    ]
    shuffler = random.Random(seed)
    while True:
        for cell in shuffler.sample(range(len(cells)), len(cells)):
            point = sequences[cell].random(1)[0]
            chosen = {p.name: value for p, value in zip(choices, cells[cell], strict=True)}
            placed = {p.name: placed_at(p, float(u)) for p, u in zip(ranges, point, strict=True)}
            yield space.read({**chosen, **placed})


def placed_at(parameter: Parameter, position: float) -> float:
    """Returns the value, to 6 digits, at `position` in [0, 1) of the parameter's range."""
    low, high = parameter.low, parameter.high
    assert low is not None and high is not None
    value = low * (high / low) ** position if parameter.log else low + (high - low) * position
    return min(high, max(low, float(f"{value:.6g}")))


def train_all(
    recording: Recording,
    work: Path,
    *,
    runs: Iterable[Params],
    done: Container[int],
    minutes: float,
) -> None:
    file = work / f"{recording.table}.jsonl"
    started = time.monotonic()
    for index, params in enumerate(runs):
        if index in done:
            continue
        if time.monotonic() - started > 60 * minutes:
            return
        row = train_one(recording, params, index=index)
        add_line(file, row)
        elapsed_s = time.monotonic() - started
        last = row["metric"][-1] if row["metric"] else math.nan
        print(f"{index} {elapsed_s:.0f} s {row['status']} {last:.3f} {params}", flush=True)


def train_one(recording: Recording, params: Params, *, index: int) -> Row:
    """Returns the row of the run; an error that is no outcome of training is raised."""
    spec = TrialSpec(
        study=recording.table,
        trial_id=f"r{index:04}",
        params=params,
        recipe=Recipe.model_validate(recording.space.build(params)),
        workload=recording.workload,
        workload_hash="",
        space_hash=recording.space.hash,
        seed=index,
        allotment=Allotment(device="cpu", cpu_threads=1),
    )
    (result,) = finish(run_trial(spec), on_report=lambda record: None).runs
    if result.status not in STATUSES:
        raise RuntimeError(result.traceback or result.stop_reason)
    return {
        "index": index,
        "params": params,
        "status": STATUSES[result.status],
        "key": throughput_key(spec.recipe),
        "step": [e.step for e in result.evaluations if e.step],
        "metric": [recording.workload.metric_of(e) for e in result.evaluations if e.step],
    }


def throughput_key(recipe: Recipe) -> str:
    """Returns what the duration of a step depends on, within one table."""
    return f"{recipe.batch_size}x{recipe.accumulation_steps} {recipe.precision}"


def recorded_rows(recording: Recording, work: Path, out: Path) -> list[Row]:
    """Returns the rows of the work file and those of the table that it lacks, by index."""
    rows = {row["index"]: row for row in read_lines(work / f"{recording.table}.jsonl")}
    table = out / f"{recording.table}.parquet"
    for row in pq.read_table(table).to_pylist() if table.exists() else []:
        params = json.loads(row["params"])
        key = throughput_key(Recipe.model_validate(recording.space.build(params)))
        told = {name: row[name] for name in ("status", "step", "metric")}
        rows.setdefault(row["seed"], {"index": row["seed"], "params": params, "key": key, **told})
    return [rows[index] for index in sorted(rows)]


def calibrate(recording: Recording, work: Path, *, rounds: int, pause_s: float) -> None:
    """Adds `rounds` spans of each batch size to the table's file of spans."""
    spans = work / f"{recording.table}.spans.jsonl"
    params = next(configurations(recording.space, seed=recording.seed))
    (batch_size,) = (p for p in recording.space.parameters if p.name == "batch_size")
    runs = []
    for size in batch_size.choices:
        recipe = Recipe.model_validate(recording.space.build({**params, "batch_size": size}))
        runs.append(timed_spans(recording.workload, recipe, rounds=rounds))
    for number in range(rounds):
        # Every other round backwards, so that no key always follows the same one.
        for run in runs if number % 2 == 0 else reversed(runs):
            span = next(run)
            add_line(spans, span)
            print(span, flush=True)
        time.sleep(pause_s)


def timed_spans(workload: Workload, recipe: Recipe, *, rounds: int) -> Iterator[Row]:
    """Yields `key`, `steps` and `train_s` of span after span of one run."""
    splits = load_splits(workload)
    num_train = len(splits.train.labels)
    span_epochs = math.ceil(SPAN_STEPS / math.ceil(num_train / recipe.samples_per_step))
    # Small enough a rate that no run diverges: arithmetic with NaN has a speed of its own.
    gentle = recipe.optimizer.model_copy(update={"lr": 0.05})
    # One span more than asked for: the last one ends the run, which then yields no result.
    changes = {"epochs": float(span_epochs * (rounds + 1)), "optimizer": gentle}
    grid = {"eval_every_samples": num_train * span_epochs}
    run: Run = train(
        Job(
            workload.model_copy(update=grid),
            recipe.model_copy(update=changes),
            splits,
            seed=0,
            device=CPU,
        )
    )
    steps, train_s = 0, 0.0
    for result in run:
        yield {
            "key": throughput_key(recipe),
            "steps": result.steps - steps,
            "train_s": result.clocks.train_s - train_s,
        }
        steps, train_s = result.steps, result.clocks.train_s


def step_times_s(spans: Sequence[Row]) -> dict[str, float]:
    """Returns the shortest step time [s] of each throughput key."""
    times: dict[str, float] = {}
    for span in spans:
        step_time_s = span["train_s"] / span["steps"]
        times[span["key"]] = min(step_time_s, times.get(span["key"], math.inf))
    return times


def write(recording: Recording, work: Path, out: Path) -> None:
    rows = recorded_rows(recording, work, out)
    spans = read_lines(work / f"{recording.table}.spans.jsonl")
    step_time_s = step_times_s(spans)
    num_spans = min(sum(span["key"] == key for span in spans) for key in step_time_s)
    versions = {key: value for key, value in environment().items() if key != "host"}
    metadata = {
        "name": recording.name,
        "space": recording.space.tree,
        "target": choose_target([final_metric(row) for row in rows], recording.share_on_target),
        "mode": recording.workload.mode,
        "clock": f"{CLOCK} (the shortest of at least {num_spans} interleaved spans of a key)",
        "step_time_s": step_time_s,
        "eval_every_samples": recording.workload.eval_every_samples,
        "device": describe_device(CPU),
        "command": f"{COMMAND} {recording.table}",
        "environment": versions,
        "made": datetime.now(UTC).date().isoformat(),
    }
    path = out / f"{recording.table}.parquet"
    write_table(path, [table_row(row, step_time_s) for row in rows], metadata)
    print_summary(path)


def table_row(row: Row, step_time_s: Mapping[str, float]) -> Row:
    per_step_s = step_time_s[row["key"]]
    return {
        "params": json.dumps(row["params"]),
        "step": row["step"],
        "train_s": [step * per_step_s for step in row["step"]],
        "metric": row["metric"],
        "status": row["status"],
        "seed": row["index"],
    }


def final_metric(row: Row) -> float:
    """Returns the metric at a run's end; 0 for one that did not get there."""
    return float(row["metric"][-1]) if row["status"] == "done" else 0.0


def choose_target(finals: Sequence[float], share: float) -> float:
    """Returns the value, to 3 digits, that about that share of the finals hold."""
    values = np.asarray(finals)
    shares = {level: float((values >= level).mean()) for level in set(finals)}
    level = min(shares, key=lambda level: abs(shares[level] - share))
    # Down, so that the runs at that very level hold it; 1e-9 against 0.361 as 0.36099….
    return math.floor(1000 * level + 1e-9) / 1000


def print_summary(path: Path) -> None:
    table = pq.read_table(path)
    metadata = json.loads(table.schema.metadata[b"tune_speed"])
    rows = [row for row in table.to_pylist() if row["status"] == "done"]
    finals = np.array([final_metric(row) for row in rows])
    middles = np.array([row["metric"][len(row["metric"]) // 2 - 1] for row in rows])
    ends_s = [row["train_s"][-1] for row in rows]
    on_target = int((finals >= metadata["target"]).sum())
    print(f"{path}: {table.num_rows} runs, {len(rows)} done, {path.stat().st_size / 1000:.0f} kB")
    print(f"step times [s]: {metadata['step_time_s']}")
    print(f"target {metadata['target']}: {on_target} runs, {on_target / table.num_rows:.1%}")
    print(f"end times {min(ends_s):.3f} to {max(ends_s):.3f} s, final {np.median(finals):.3f}")
    print(f"correlation of mid-schedule and final: {np.corrcoef(middles, finals)[0, 1]:.3f}")


def read_lines(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def add_line(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

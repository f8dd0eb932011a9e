"""Parts of `on_gpu.py` with a bar of speed: others' scripts as they are, and what trials cost.

Others' scripts lie in a folder of their own (`--others`) and are run, not copied:
`airbench94_muon.py` of github.com/KellerJordan/cifar10-airbench, and `timm_train.py`, which is
train.py of github.com/huggingface/pytorch-image-models.
"""

import json
import math
import re
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import yaml
from gpu_part import CIFAR10, HERE, Options, Row, command, timed, tune_speed

from tune_speed.core.stats import wilson_interval

AIRBENCH, TIMM_TRAIN = "airbench94_muon.py", "timm_train.py"
TIMM_LINE = re.compile(r"Train: (\d+) \[ *(\d+)/.*?\([\d.]+s, +([\d.]+)/s\)")
"""Epoch, number of the step, and images/s since the epoch began."""
TARGET = 0.94
CONCURRENT = 4
STEPS_OF_EPOCH = 11
"""Of the 1,294 training images of digits in batches of 128."""


def quartiles(values: Sequence[float], digits: int) -> str:
    """Returns the median, and the quartiles in brackets."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else 3 * list(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


# timm's training script


def timm_script(options: Options) -> Iterator[Row]:
    """Images/s of our loop over those of timm's training script, in turns, bf16, batch 128."""
    write_images(options)
    models = {"resnet18": "resnet18", "resnet20": "tune_speed_resnet20"}
    if not options.on_gpu:
        del models["resnet18"]
    for ours, theirs in models.items():
        yield timm_row(options, ours, theirs)


def write_images(options: Options) -> None:
    """Writes images of CIFAR-10 into a folder a class, as they are in the Parquet files."""
    from pyarrow.parquet import ParquetFile

    assert options.data is not None
    counts = (20_000, 1000) if options.on_gpu else (80, 16)
    for split, file, count in zip(("train", "validation"), CIFAR10, counts, strict=True):
        rows = next(ParquetFile(options.data / file).iter_batches(batch_size=count))
        for number, row in enumerate(rows.to_pylist()):
            place = options.folder / "images" / split / str(row["label"]) / f"{number:05d}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(row["img"]["bytes"])


def timm_row(options: Options, ours: str, theirs: str) -> Row:
    process = our_process(options, ours)
    script, own = list[float](), list[float]()
    for _ in range(2 if options.on_gpu else 1):
        with timed(f"timm_train.py, {theirs}"):
            script += script_rates(options, theirs)
        own += our_rates(options, process)
    process.communicate()
    ratio = statistics.median(own) / statistics.median(script)
    value = f"{quartiles(own, 0)} / {quartiles(script, 0)} = {ratio:.2f}"
    figure = f"{ours}, bf16: images/s of graph over timm's script"
    return Row(figure, value, "≥ 1.5", ratio >= 1.5, len(script))


def script_rates(options: Options, model: str) -> list[float]:
    assert options.others is not None
    batch_size, workers, interval = (128, 8, 20) if options.on_gpu else (16, 1, 1)
    words: list[object] = [HERE / "timm_networks.py", options.others / TIMM_TRAIN]
    words += ["--data-dir", options.folder / "images", "--output", options.folder / "timm"]
    words += ["--model", model, "--img-size", 32, "--num-classes", 10, "--device", options.device]
    words += ["--batch-size", batch_size, "--workers", workers, "--log-interval", interval]
    words += ["--amp", "--amp-dtype", "bfloat16", "--channels-last", "--opt", "sgd", "--lr", 0.1]
    words += ["--weight-decay", 5e-4, "--epochs", 2, "--warmup-epochs", 0]
    # Crops and flips as ours have, without the script's changes of colours, which take longer.
    words += ["--color-jitter", 0, "--scale", 0.5, 1.0]
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False
    )
    rates = list(interval_rates(done.stdout + done.stderr))
    if done.returncode or not rates:
        raise RuntimeError(f"{TIMM_TRAIN}: {done.returncode}: {done.stderr[-800:]}")
    return rates


def interval_rates(log: str) -> Iterator[float]:
    """Yields images/s between lines of the script's log, without the first interval of an epoch.

    A line's own rate is that of its last step alone, that in brackets of the epoch so far.
    """
    lines = [(int(e), int(n) + 1, float(rate)) for e, n, rate in TIMM_LINE.findall(log)]
    for (epoch, first, before), (same, last, so_far) in pairwise(lines):
        if epoch == same and last > first > 1:
            yield (last - first) / (last / so_far - first / before)


def our_process(options: Options, model: str) -> "subprocess.Popen[str]":
    import bench_train_loop

    batch_size, steps = (128, 50) if options.on_gpu else (16, 1)
    settings = ["augmentation={pad: 4, flip: random}", "matmul_precision=high"]
    arguments = Namespace(
        device=options.device,
        threads=1,
        batch_size=batch_size,
        steps=steps,
        allocator="default",
        ours_set=settings,
    )
    case = [model, "--precisions", "bf16", "--layouts", "nhwc"]
    process = bench_train_loop.start(arguments, "graph" if options.on_gpu else "ours", case)
    bench_train_loop.ask(process)  # The first span warms up.
    return process


def our_rates(options: Options, process: "subprocess.Popen[str]") -> list[float]:
    import bench_train_loop

    images, spans = (128 * 50, 10) if options.on_gpu else (16, 2)
    return [images / bench_train_loop.ask(process) for _ in range(spans)]


# airbench


def airbench(options: Options) -> list[Row]:
    """Seconds and accuracy, the speed-run recipe and airbench94_muon, by `bench_airbench.py`."""
    out = options.folder / "airbench.json"
    words: list[object] = ["--data", options.data, "--device", options.device, "--json", out]
    words += ["--others", options.others, "--pairs", 30 if options.on_gpu else 1, "--seconds", 110]
    command(HERE / "bench_airbench.py", *words)
    runs = json.loads(out.read_text())
    rows = [accuracy_row(side, runs[side]) for side in runs]
    return [*rows, *ratio_rows(**runs)] if options.on_gpu else rows


def accuracy_row(side: str, runs: Sequence[Mapping[str, float]]) -> Row:
    accuracies, count = [run["accuracy"] for run in runs], len(runs)
    hits = sum(accuracy >= TARGET for accuracy in accuracies)
    low, high = wilson_interval(hits, count)
    value = f"{statistics.fmean(accuracies):.4f}; {hits / count:.2f} ({low:.2f} to {high:.2f})"
    return Row(f"cifar10-jpeg, {side}: mean accuracy; share ≥ {TARGET}", value, n=count)


def ratio_rows(
    ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> list[Row]:
    rows = []
    for name, key in (("training", "train_s"), ("with the evaluation", "whole_s")):
        times = [[run[key] for run in runs] for runs in (theirs, ours)]
        ratio = statistics.median(times[0]) / statistics.median(times[1])
        value = f"{quartiles(times[0], 3)} / {quartiles(times[1], 3)} = {ratio:.3f}"
        bar, held = ("≥ 0.95", ratio >= 0.95) if key == "train_s" else ("", None)
        rows.append(
            Row(f"cifar10-jpeg, seconds, airbench over ours, {name}", value, bar, held, len(ours))
        )
    ours_s, theirs_s = expected_s(ours), expected_s(theirs)
    # Where neither met it nothing is said.
    held = ours_s <= theirs_s if min(ours_s, theirs_s) < math.inf else None
    figure = f"cifar10-jpeg, expected seconds to {TARGET}, ours and airbench"
    value = f"{ours_s:.2f}, {theirs_s:.2f}"
    return [*rows, Row(figure, value, "ours ≤ theirs", held, len(ours))]


def expected_s(runs: Sequence[Mapping[str, float]]) -> float:
    """Returns the mean seconds of a run over the share that met the target; infinite if none."""
    hits = sum(run["accuracy"] >= TARGET for run in runs)
    return sum(run["train_s"] for run in runs) / hits if hits else math.inf


# Short trials


def short_trials(options: Options) -> list[Row]:
    """What a search of two-second trainings, four at a time, costs beside the training."""
    trials = 24 if options.on_gpu else 4
    epochs = two_seconds(options) if options.on_gpu else 1.0
    print(f"{epochs:.1f} epochs", flush=True)
    (options.folder / "short.yaml").write_text(yaml.safe_dump(short_tree(options, epochs)))
    with timed("the search") as search_s:
        words = ("search", "short.yaml", "--trials", trials)
        tune_speed(*words, folder=options.folder, allowed=(0, 1))
    ledger = options.folder / "studies" / "short" / "ledger.jsonl"
    events = map(json.loads, ledger.read_text().splitlines())
    records = [event["record"] for event in events if event["event"] == "finished"]
    return short_rows(records, search_s[0], trials)


def two_seconds(options: Options) -> float:
    """Returns the epochs that take two seconds alone."""
    from gpu_parts import digits_trial

    runs = [digits_trial(options, seed, cuda_graph=options.on_gpu) for seed in range(3)]
    step_ms = min(run.step_time_ms for run in runs if run.step_time_ms)
    print(f"a step alone takes {step_ms:.2f} ms", flush=True)
    return 2000 / step_ms / STEPS_OF_EPOCH


def short_tree(options: Options, epochs: float) -> dict[str, Any]:
    """Returns a study whose trials all run to their end, with five evaluations each."""
    return {
        "study": "short",
        "workload": {
            "dataset": "digits",
            "target": {"metric": "accuracy", "value": 0.999},
            "mode": "fixed_length",
            "eval_every_samples": max(1, round(epochs * STEPS_OF_EPOCH * 128 / 5)),
        },
        "recipe": {
            "model": "resnet20",
            "optimizer": {"sgd": {"lr": {"low": 0.02, "high": 0.4, "log": True}}},
            "lr_schedule": "one_cycle",
            "epochs": epochs,
            "batch_size": 128,
            "cuda_graph": options.on_gpu,
        },
        "search": {
            "concurrent": CONCURRENT if options.on_gpu else 2,
            "policy": "random",
            "seed": 1,
            "resources": {"cpu": 1, "gpu": 0.25 if options.on_gpu else 0},
        },
    }


def short_rows(records: Sequence[Mapping[str, Any]], search_s: float, trials: int) -> list[Row]:
    """Returns trials an hour, and which share of the places' time was no training."""
    count = len(records)
    places = CONCURRENT if count > CONCURRENT else 2
    began = sorted(seconds(record["started_at"]) for record in records)
    ended = sorted(seconds(record["finished_at"]) for record in records)
    # Without the first trial of each place, in which libraries are imported.
    later = sorted(records, key=lambda record: record["started_at"])[places:]
    passed_s = sum(record["runs"][-1]["shared_train_s"] for record in later)
    lone_s = [record["runs"][-1]["clocks"]["train_s"] for record in records]
    spans = [spans_of(record) for record in later]
    held_s = sum(ended[-places:]) - sum(ended[:places])
    share, whole = 1 - passed_s / held_s, ended[-1] - began[0]
    return [
        Row("trials that ended", count, str(trials), count == trials, count),
        Row("training of a trial, alone [s]", quartiles(lone_s, 2), n=count),
        Row("trials an hour, first to last", round(3600 * count / whole), n=count),
        Row("trials an hour, whole command", round(3600 * count / search_s), n=count),
        Row("share that is no training", round(share, 3), "< 0.2", share < 0.2, len(later)),
        *(
            Row(f"{span} of a trial", quartiles([each[span] for each in spans], 3), n=len(spans))
            for span in spans[0]
        ),
    ]


def spans_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of a trial's clocks, and what passed between them."""
    run = record["runs"][-1]
    clocks = {name: value for name, value in run["clocks"].items() if name != "train_s"}
    wall_s, passed_s = clocks.pop("wall_s"), run["shared_train_s"]
    clocks["rest_s"] = wall_s - passed_s - sum(clocks.values())
    return {"shared_train_s": passed_s, **clocks}


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()

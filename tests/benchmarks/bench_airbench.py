"""The speed-run recipe against airbench94_muon as it is, run by run in turns: seconds, accuracy.

    python tests/benchmarks/bench_airbench.py --others FOLDER --data FOLDER --pairs 10

`--others` has `airbench94_muon.py` of github.com/KellerJordan/cifar10-airbench, `--data` CIFAR-10
as two Parquet files. Each side has a process of its own and trains on all training images, to be
judged on the test images in six views: theirs by its own `main`, compiled and warmed up as it does
itself; ours by `train`, with the first recipe that the shipped study `cifar10_speedrun` tries, with
`cuda_graph` and what `--ours-set` says. Theirs goes first in every other pair.

Seconds are `train_s`, from the first weights to the last step, and `whole_s`, with the evaluation
at the end: `time_seconds` of theirs, and of ours the training clock and half of the time of our two
evaluations. `--json` gets each run of each side. On a CPU only ours runs, in miniature.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from tune_speed.core.targets import Target
from tune_speed.data.base import Images
from tune_speed.data.cache import PreparedData, prepare
from tune_speed.data.datasets.image_parquet import ImageParquet
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.runtime.device import resolve_device, set_up_process
from tune_speed.study.file import load_study
from tune_speed.study.space import typical
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload

STUDY = "cifar10_speedrun"
SMALL = {"model": {"speednet": {"width1": 8, "width2": 16, "width3": 16}}, "epochs": 1}
FEW = 512
"""Images of a rehearsal on a CPU."""
Run = dict[str, float]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--others", type=Path, help="folder of airbench94_muon.py")
    parser.add_argument("--data", type=Path, required=True, help="folder of the Parquet files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no pair after so many")
    parser.add_argument("--ours-set", nargs="*", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--json", type=Path, help="also write the runs there")
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.side:
        serve(arguments)
        return
    sides = ["ours"] if arguments.device == "cpu" else ["ours", "theirs"]
    runs: dict[str, list[Run]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        write_pt(prepared(arguments), Path(folder) / "cifar10")
        began_s = time.monotonic()
        processes = {side: start(side, folder) for side in sides}
        for side, process in processes.items():
            run = answer(process)
            print(f"{side} is warm after {time.monotonic() - began_s:.0f} s: {run}", flush=True)
        began_s = time.monotonic()
        for number in range(arguments.pairs):
            if time.monotonic() - began_s > arguments.seconds:
                break
            for side in sides[:: 1 if number % 2 else -1]:
                runs[side].append(ask(processes[side], number))
                print(f"{number + 1} {side:6} {runs[side][-1]}", flush=True)
        for process in processes.values():
            process.communicate()
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=2))


def prepared(arguments: argparse.Namespace) -> PreparedData:
    train_file, test_file = (
        arguments.data / f"cifar10-{part}.parquet" for part in ("train", "test")
    )
    data = prepare(ImageParquet(train=str(train_file), test=str(test_file)))
    if arguments.device != "cpu":
        return data
    assert data.test is not None
    return data._replace(train=first(data.train), test=first(data.test))


def first(images: Images) -> Images:
    return Images(images.pixels[:FEW], images.labels[:FEW])


def write_pt(data: PreparedData, folder: Path) -> None:
    folder.mkdir()
    for name, images in (("train", data.train), ("test", data.test)):
        assert images is not None
        tree = {
            "images": torch.from_numpy(np.array(images.pixels)),
            "labels": torch.from_numpy(np.array(images.labels)),
            "classes": list(data.class_names),
        }
        torch.save(tree, folder / f"{name}.pt")


def start(side: str, folder: str) -> "subprocess.Popen[str]":
    words = [word if word.startswith("--") else path_or(word) for word in sys.argv[1:]]
    command = [sys.executable, str(Path(__file__).absolute()), *words, "--side", side]
    return subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def path_or(word: str) -> str:
    """Returns a path in full: the sides run in another folder."""
    return str(Path(word).absolute()) if Path(word).exists() else word


def ask(process: "subprocess.Popen[str]", seed: int) -> Run:
    assert process.stdin is not None
    process.stdin.write(f"{seed}\n")
    process.stdin.flush()
    return answer(process)


def answer(process: "subprocess.Popen[str]") -> Run:
    """Returns a side's next line in JSON, of all that it prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            run: Run = json.loads(line)
            return run
    raise RuntimeError(f"a side ended with {process.wait()}")


def serve(arguments: argparse.Namespace) -> None:
    """Trains once to warm up, and then with each seed that comes in."""
    take = {"ours": ours, "theirs": theirs}[arguments.side](arguments)
    print(json.dumps(take("warmup")), flush=True)
    for line in sys.stdin:
        print(json.dumps(take(int(line))), flush=True)


def theirs(arguments: argparse.Namespace) -> Callable[[Any], Run]:
    sys.path.insert(0, str(arguments.others))
    airbench: Any = importlib.import_module("airbench94_muon")
    told: list[Mapping[str, Any]] = []
    airbench.print_training_details = lambda variables, is_final_entry: told.append(dict(variables))
    # As the script itself does it.
    model = airbench.CifarNet().cuda().to(memory_format=torch.channels_last)
    model.compile(mode="max-autotune")

    def take(seed: Any) -> Run:
        told.clear()
        airbench.main(seed, model)
        before, end = told[-2:]
        whole_s, accuracy = end["time_seconds"], end["tta_val_acc"]
        return {"train_s": before["time_seconds"], "whole_s": whole_s, "accuracy": accuracy}

    return take


def ours(arguments: argparse.Namespace) -> Callable[[Any], Run]:
    device = resolve_device(arguments.device)
    set_up_process(device, cpu_threads=1)
    data, recipe = prepared(arguments), our_recipe(arguments)
    splits = all_images(data)
    workload = Workload(
        dataset=ImageParquet(train="not asked", test="not asked"),
        target=Target(value=1.0),
        max_train_s=1e6,
        eval_every_samples=10**9,
    )

    def take(seed: Any) -> Run:
        number = 10**6 if seed == "warmup" else seed
        run = train(Job(workload, recipe, splits, seed=number, evaluated_on="test", device=device))
        while True:
            try:
                next(run)
            except StopIteration as end:
                clocks, final = end.value.clocks, end.value.final
                whole_s = clocks.train_s + clocks.eval_s / len(end.value.evaluations)
                return {"train_s": clocks.train_s, "whole_s": whole_s, "accuracy": final.accuracy}

    return take


def our_recipe(arguments: argparse.Namespace) -> Recipe:
    study = load_study(STUDY, check_data=False)
    tree = study.space.build(typical(study.space, study.search.points_to_evaluate))
    tree["cuda_graph"] = arguments.device != "cpu"
    if arguments.device == "cpu":
        tree |= {**SMALL, "batch_size": 128}
    for setting in arguments.ours_set:
        name, _, value = setting.partition("=")
        tree[name] = yaml.safe_load(value)
    return Recipe.model_validate(tree)


def all_images(data: PreparedData) -> Splits:
    """Returns parts of which the first has every training image; the others are the test images."""
    mean, std = channel_statistics(data.train.pixels)
    assert data.test is not None
    num_classes = len(data.class_names)
    return Splits(data.train, data.test, data.test, mean, std, num_classes, split_hash="")


if __name__ == "__main__":
    main()

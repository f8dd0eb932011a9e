"""How fast a search is from the command on: its first training step, and a hundred short trials.

    python tests/benchmarks/bench_search_speed.py [--trials 100] [--repeats 1] [--length 1]
    python tests/benchmarks/bench_search_speed.py --first-step [--repeats 3]
    python tests/benchmarks/bench_search_speed.py --commands [--repeats 11]

The first searches digits with trainings of about a second each (`--length 1.25` for a machine that
takes 0.8 s without), 2 at a time on one thread each, and prints the wall time of the whole command
over what 2 workers would take for the trainings alone: by the seconds that passed in training
(`shared_train_s`; bar: 1.35), and by the training clock. Then, in worker-seconds a trial, where the
rest goes. `--first-step` says when the quickstart's first training step began, and what came before
(bar: 15 s). `--commands` times `--help` (bars: 0.5 s, 1.5 times bare imports of typer and
rich.table) and `leaderboard` on 1,000 synthetic runs (bar: 0.6 s).

`--against FOLDER` does the same with another checkout of this project in turn, and prints the ratio
of the medians. Each command is a process of its own, with a local Ray and a new SQLite store.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

WORKERS = 2
STUDY = """
study: speed
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 0.999}  # Out of reach: a leader would end the search early.
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.02, high: 0.4, log: true}}}
  lr_schedule: {one_cycle: {pct_start: {low: 0.1, high: 0.5}}}
  epochs: {low: 1.6, high: 2.4}
  batch_size: {choices: [32, 64]}
search: {concurrent: 2, resources: {cpu: 1}}
"""
EPOCHS = {"low": 1.6, "high": 2.4}
BARS = {
    "ratio_isolated": 1.35,
    "ratio_passed": 1.35,
    "first_step_s": 15.0,
    "help": 0.5,
    "help / imports": 1.5,
    "leaderboard": 0.6,
}
FIRST_STEP = (
    "command",
    "command line read",
    "data ready",
    "Ray and MLflow ready",
    "search begins",
    "first proposal",
    "trial process there",
    "trial taken",
    "torch there",
    "model and data ready",
    "first training step",
)
Row = dict[str, float]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--first-step", action="store_true")
    what.add_argument("--commands", action="store_true")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--length", type=float, default=1.0, help="of the trainings; a factor")
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# One search, in a process of its own.


def side(folder: Path, arguments: list[str]) -> None:
    """Runs the command line with `arguments`, and marks down in `folder` when it came where."""
    from tune_speed.cli import main as cli
    from tune_speed.tuning import admission, search
    from tune_speed.tuning.driver.controller import SearchController

    mark = partial(mark_in, folder)

    def marked(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if before:
                mark(before)
            result = original(*args, **kwargs)
            if after:
                mark(after)
            return result

        setattr(owner, name, call)

    def with_timed_trials(*args: Any, **kwargs: Any) -> Any:
        from tune_speed.tuning.ray import tuner

        mark("Ray and MLflow ready")
        tuner.run_search = partial(tuner.run_search, process=timed_process(folder))
        return run(*args, **kwargs)

    run, search._Search.run = search._Search.run, with_timed_trials
    marked(search, "search", before="command line read", after="search returned")
    marked(admission, "prepare_workload", after="data ready")
    marked(SearchController, "propose", before="search begins", after="first proposal")
    marked(SearchController, "finished", after="last trial ended")
    sys.argv = ["tune-speed", *arguments]
    cli.main()


def timed_process(folder: Path) -> type:
    """Returns the class of trial processes, which mark down when they come where."""
    from tune_speed.tuning.ray.trial_process import TrialProcess

    class Timed(TrialProcess):
        def setup(self, config: dict[str, Any]) -> None:
            import psutil

            mark = partial(mark_in, folder)
            mark("trial process there", at_s=psutil.Process().create_time())
            mark("trial taken")
            super().setup(config)

        def _open(self, *args: Any, **kwargs: Any) -> Any:
            trial = super()._open(*args, **kwargs)
            from tune_speed.runtime.clock import Clock

            mark_in(folder, "torch there")
            start = Clock.start

            def marked_start(clock: Clock, span: Any) -> None:
                if span in ("eval_s", "train_s"):
                    mark_in(
                        folder, {"eval_s": "model and data ready"}.get(span, "first training step")
                    )
                start(clock, span)
                if span == "train_s":
                    Clock.start = start

            if not hasattr(type(self), "is_marked"):
                Clock.start, type(self).is_marked = marked_start, True
            return trial

    return Timed


def mark_in(folder: Path, name: str, *, at_s: float | None = None) -> None:
    with (folder / "marks.jsonl").open("a") as file:
        file.write(json.dumps([name, time.time() if at_s is None else at_s]) + "\n")


@contextmanager
def searched(source: Path | None, arguments: list[str]) -> Iterator[tuple[float, Path]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "speed.yaml").write_text(STUDY)
        command = [sys.executable, __file__, "--side", name, *arguments]
        began_s = time.time()
        done = subprocess.run(
            command, env=environment(folder, source), cwd=folder, capture_output=True, text=True
        )
        mark_in(folder, "command ended")
        if done.returncode not in (0, 1):
            sys.exit(f"the search failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
        yield began_s, folder


def environment(folder: Path, source: Path | None) -> dict[str, str]:
    more = {
        "TUNE_SPEED_STUDIES": str(folder),
        "TUNE_SPEED_CACHE": str(Path(tempfile.gettempdir()) / "bench_cache"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "bench_pycache"),
    }
    return os.environ | more | ({"PYTHONPATH": str(source.absolute())} if source else {})


def marks_of(folder: Path) -> list[tuple[str, float]]:
    lines = (folder / "marks.jsonl").read_text().splitlines()
    return sorted(((name, at_s) for name, at_s in map(json.loads, lines)), key=lambda m: m[1])


# What is measured.


def first_step(source: Path | None) -> Row:
    """Returns the time to the first training step of the quickstart, and its parts [s]."""
    trials = ["search", "digits_quickstart", "--trials", str(WORKERS)]
    with searched(source, trials) as (began_s, folder):
        firsts = {"command": began_s}
        for name, at_s in marks_of(folder):
            firsts.setdefault(name, at_s)
    row = {"first_step_s": firsts["first training step"] - began_s}
    for earlier, name in pairwise(FIRST_STEP):
        row[f"… {name}"] = firsts[name] - firsts[earlier]
    return row


def hundred_trials(source: Path | None, *, num_trials: int, length: float) -> Row:
    """Returns how long the search took, and where the time went [s a trial]."""
    command = ["search", "speed.yaml", "--trials", str(num_trials)]
    for end, epochs in EPOCHS.items():
        command += ["--set", f"recipe.epochs.{end}={epochs * length:g}"]
    with searched(source, command) as (began_s, folder):
        lines = map(json.loads, (folder / "speed" / "ledger.jsonl").read_text().splitlines())
        records = [line["record"] for line in lines if "record" in line]
        marks = marks_of(folder)
    assert len(records) == num_trials, len(records)
    runs = [record["runs"][-1] for record in records]
    clocks = [run["clocks"] for run in runs]
    began = sorted(seconds(record["started_at"]) for record in records)
    ended = sorted(seconds(record["finished_at"]) for record in records)
    wall_s = dict(marks)["command ended"] - began_s
    isolated_s = sum(clock["train_s"] for clock in clocks)
    passed_s = sum(run["shared_train_s"] for run in runs)
    inside = ("setup_s", "compile_s", "measuring_s", "eval_s", "waiting_s")
    parts = {name: sum(clock[name] for clock in clocks) for name in inside}
    walls_s = sum(clock["wall_s"] for clock in clocks)
    lives_s = sum(ended) - sum(began)
    parts["slowed down by the other"] = passed_s - isolated_s
    parts["rest of the run"] = walls_s - passed_s - sum(parts[name] for name in inside)
    parts["trial beside the run"] = lives_s - walls_s
    parts["between trials"] = sum(began[WORKERS:]) - sum(ended[:-WORKERS])
    parts["before the first trials"] = sum(began[:WORKERS]) - WORKERS * began_s
    parts["after the last trials"] = WORKERS * (began_s + wall_s) - sum(ended[-WORKERS:])
    return {
        "wall_s": wall_s,
        "train_s": isolated_s,
        "shared_train_s": passed_s,
        "ratio_isolated": wall_s * WORKERS / isolated_s,
        "ratio_passed": wall_s * WORKERS / passed_s,
        "most step times of a trial": max(len(run["step_times"]) for run in runs),
        "step times measured": len(
            {t["measured_in"] + t["key"] for r in runs for t in r["step_times"]}
        ),
        **{f"… {name}": value / num_trials for name, value in parts.items()},
    }


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def commands(source: Path | None, *, folder: Path) -> Row:
    """Returns how long `--help`, a leaderboard and bare imports of typer and rich.table take [s].

    `help / imports` is the ratio of one run of each, one after the other.
    """
    code = "import sys; sys.argv[0] = 'tune-speed'; from tune_speed.cli.main import main; main()"
    called = {
        "imports": ["import typer, rich.table"],
        "help": [code, "--help"],
        "leaderboard": [code, "leaderboard"],
    }
    took: Row = {}
    for name, arguments in called.items():
        began_s = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", *arguments],
            env=environment(folder, source),
            cwd=folder,
            check=True,
            capture_output=True,
        )
        took[name] = time.perf_counter() - began_s
    return took | {"help / imports": took["help"] / took["imports"]}


# In turn.


def compare(measure: Callable[[Path | None], Row], against: Path | None, repeats: int) -> None:
    """Prints what is measured, of each checkout in turn, and the medians."""
    sources = {"this": None} | ({str(against): against} if against else {})
    rows: dict[str, list[Row]] = {name: [] for name in sources}
    for repeat in range(repeats):
        for name, source in sources.items():
            rows[name].append(measure(source))
            print(f"{repeat + 1}/{repeats} {name}: {_text(rows[name][-1])}", flush=True)
    medians = {name: median_row(each) for name, each in rows.items()}
    print(
        f"\nmedians of {repeats}" + (f"; the last column: {against}, and ratio" if against else "")
    )
    for key, value in medians["this"].items():
        line = f"  {key:32}{value:10.3f}"
        if against is not None:
            other = medians[str(against)][key]
            line += f"{other:10.3f}" + (f"{value / other:8.2f}" if other else "")
        if key in BARS:
            line += f"   bar {BARS[key]:g}: {'met' if value <= BARS[key] else 'NOT MET'}"
        print(line)


def median_row(rows: Iterable[Row]) -> Row:
    rows = list(rows)
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def _text(row: Row) -> str:
    return "  ".join(f"{key} {value:.2f}" for key, value in row.items() if not key.startswith("…"))


def main() -> None:
    arguments = parse_arguments()
    if arguments.first_step:
        first_step(None)
        compare(first_step, arguments.against, arguments.repeats or 3)
    elif arguments.commands:
        from synthetic_store import fill

        with tempfile.TemporaryDirectory() as name:
            fill(f"sqlite:///{name}/mlflow.db", num_trials=1_000)
            measure = partial(commands, folder=Path(name))
            measure(None)
            compare(measure, arguments.against, arguments.repeats or 11)
    else:
        measure = partial(hundred_trials, num_trials=arguments.trials, length=arguments.length)
        compare(measure, arguments.against, arguments.repeats or 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()

"""What a search costs beside its training: ours against vanilla Ray Tune on the same trainings.

    python tests/benchmarks/bench_search_overhead.py [--repeats 3] [--trials 32]

Both search the same space of trivial digits trainings (one or two epochs of 300 images, well under
a second each), 2 at a time, each in a process of its own with its own local Ray and its own SQLite
MLflow store, in turn (A B A B …). Vanilla is what Ray's documentation shows: a function trainable,
`OptunaSearch`, Ray's `MLflowLoggerCallback`, no actor reuse. It trains with our loop, so that only
the search differs.

Overhead per trial = (wall time − Σ (train_s + eval_s) / 2) / trials, where the wall time is that of
the whole command, imports and Ray's start included; `search only` leaves the time before the first
trial's proposal and after the last one's end out of it. The bar: ours ≤ 1/5 of vanilla's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONCURRENT = 2
STUDY = """
study: overhead
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 0.5}
  split: {validation_frac: 0.2, train_samples: 300, validation_samples: 100}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.02, high: 0.4, log: true}}}
  lr_schedule: {one_cycle: {pct_start: {low: 0.1, high: 0.5}}}
  epochs: {low: 1.0, high: 2.0}
  batch_size: 50
search: {concurrent: 2}
"""


def ours(folder: Path, trials: int) -> None:
    """Runs our search and writes what it took."""
    from tune_speed.api.progress import Progress
    from tune_speed.study.file import load_study
    from tune_speed.tuning import search as studies
    from tune_speed.tuning.admission import Start
    from tune_speed.tuning.driver.controller import SearchController

    (folder / "overhead.yaml").write_text(STUDY)
    study = load_study(folder / "overhead.yaml", overrides=[f"search.trials={trials}"])
    began: list[float] = []

    class Timed(Progress):
        def view(self, controller: SearchController) -> Any:
            began.append(time.time())
            return super().view(controller)

    result = studies.search(study, Start(), Timed(shown=True))
    clocks = [record.runs[-1].clocks for record in result.records]
    _write(folder, [c.train_s + c.eval_s for c in clocks], search_s=time.time() - began[0])


def vanilla(folder: Path, trials: int) -> None:
    """Runs Ray Tune as its documentation shows and writes what it took."""
    import mlflow
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.search.optuna import OptunaSearch

    ray.init(include_dashboard=False, log_to_driver=False)
    (folder / "spent").mkdir()
    uri = f"sqlite:///{folder}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    began = time.time()
    tune.Tuner(
        tune.with_resources(vanilla_trial, {"cpu": 1}),
        param_space={
            "lr": tune.loguniform(0.02, 0.4),
            "pct_start": tune.uniform(0.1, 0.5),
            "epochs": tune.uniform(1.0, 2.0),
            "folder": str(folder),
        },
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(metric="accuracy", mode="max"),
            num_samples=trials,
            max_concurrent_trials=CONCURRENT,
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder / "ray"),
            callbacks=[MLflowLoggerCallback(tracking_uri=uri, experiment_name="overhead")],
            verbose=0,
        ),
    ).fit()
    search_s = time.time() - began
    spent = [float(path.read_text()) for path in (folder / "spent").iterdir()]
    _write(folder, spent, search_s=search_s)


def vanilla_trial(config: dict[str, Any]) -> None:
    """A function trainable around our training loop."""
    import yaml
    from ray import tune

    from tune_speed.core.records import TrialRecord
    from tune_speed.training.objective import finish, run_trial
    from tune_speed.training.recipe import Recipe
    from tune_speed.training.trial import TrialSpec
    from tune_speed.training.workload import Workload

    tree = yaml.safe_load(STUDY)
    recipe = tree["recipe"] | {"epochs": config["epochs"]}
    recipe["optimizer"]["sgd"]["lr"] = config["lr"]
    recipe["lr_schedule"]["one_cycle"]["pct_start"] = config["pct_start"]
    spec = TrialSpec(
        study="overhead",
        trial_id="t0000",
        params={},
        recipe=Recipe.model_validate(recipe),
        workload=Workload.model_validate(tree["workload"]),
        workload_hash="",
        space_hash="",
        seed=0,
    )

    def report(record: TrialRecord) -> None:
        final = record.runs[-1].final
        assert final is not None
        tune.report({k: v for k, v in final.model_dump().items() if v is not None})

    record = finish(run_trial(spec), on_report=report)
    report(record)
    clocks = record.runs[-1].clocks
    path = Path(config["folder"]) / "spent" / tune.get_context().get_trial_id()
    path.write_text(str(clocks.train_s + clocks.eval_s))


def _write(folder: Path, spent_s: list[float], *, search_s: float) -> None:
    (folder / "took.json").write_text(json.dumps({"spent_s": spent_s, "search_s": search_s}))


def measure(side: str, trials: int) -> dict[str, float]:
    """Returns the overheads per trial [s] of one search in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "TUNE_SPEED_STUDIES": name, "OMP_NUM_THREADS": "1"}
        environment["TUNE_SPEED_CACHE"] = str(Path(tempfile.gettempdir()) / "bench_cache")
        environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        command = [sys.executable, __file__, "--side", side, "--trials", str(trials)]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "--folder", name], env=environment, capture_output=True, text=True
        )
        wall_s = time.perf_counter() - started
        if done.returncode:
            sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
        took = json.loads((folder / "took.json").read_text())
    assert len(took["spent_s"]) == trials, took
    training_s = sum(took["spent_s"]) / CONCURRENT
    return {
        "wall_s": wall_s,
        "training_s": training_s,
        "overhead_s": (wall_s - training_s) / trials,
        "search_only_s": (took["search_s"] - training_s) / trials,
    }


def compare(repeats: int, trials: int) -> None:
    """Prints each search's figures and the ratio of the medians."""
    rows: dict[str, list[dict[str, float]]] = {"ours": [], "vanilla": []}
    measure("ours", 2)  # Warms the page cache and the data cache.
    for repeat in range(repeats):
        for side, measured in rows.items():
            measured.append(measure(side, trials))
            figures = "  ".join(f"{name} {value:.3f}" for name, value in measured[-1].items())
            print(f"{repeat + 1}/{repeats} {side:8} {figures}", flush=True)
    for name in ("overhead_s", "search_only_s"):
        medians = {side: statistics.median(row[name] for row in rows[side]) for side in rows}
        ratio = medians["ours"] / medians["vanilla"]
        print(
            f"{name}: median of {repeats}: ours {medians['ours']:.3f} s, vanilla"
            f" {medians['vanilla']:.3f} s a trial; ratio {ratio:.3f} (bar 0.200)"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--side", choices=["ours", "vanilla"])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.side is None:
        compare(arguments.repeats, arguments.trials)
    else:
        {"ours": ours, "vanilla": vanilla}[arguments.side](arguments.folder, arguments.trials)

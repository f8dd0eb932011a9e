"""Hundreds of trials at a time on many nodes: what the driver of a search takes.

    python tests/benchmarks/bench_scale.py ours [--mlflow]   # 1,000 trials, 64 at a time, 8 nodes
    python tests/benchmarks/bench_scale.py resume --policy time_to_target --trials 20000

The nodes are those of Ray's test cluster: each has a raylet of its own, all are on this machine. A
trial trains nothing: it is evaluated 20 times, every 50 ms, in a process without torch, so that 64
of them fit here. Each process holds its first trial until all are there: to start 64 takes minutes
on two cores, and is not what is measured. `--policy time_to_target` has the cost of our own
proposals and of stopping in it, `--mlflow` tracks in SQLite.

| figure       | what it is                                                                       |
|--------------|----------------------------------------------------------------------------------|
| reports/s    | evaluations that trials reported and the driver worked off; at least 200         |
| messages/s   | in how many messages they came: ours puts together what is new                   |
| driver CPU   | seconds of the driver's process from the first report to the last trial's end,   |
|              | all its threads, Ray's included, per trial                                       |
| driver wall  | seconds beyond what 64 workers without any overhead would take, per trial        |
| RSS          | resident memory of the driver's process [MiB], as trials end: flat               |

`resume` writes the ledger of a search of so many of these trials, and then takes it over in a new
process, as `--resume` does before it starts Ray: the ledger is read, and the controller has its
next proposal. The bar: 30 s for 20,000 trials.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from tune_speed.core.records import Clocks, Evaluation, RunResult, Status, TrialRecord
from tune_speed.study.file import load_study
from tune_speed.training.trial import Allotment, TrialSpec, make_record
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.ray.trial_process import TrialProcess

EVALUATIONS, EVERY_S = 20, 0.05
START_S = 900.0
"""Longest time for all processes to start."""
PATIENT = {
    # Ray gives a process 60 s to start, and ends it then: with 64 on two cores none would.
    "RAY_worker_register_timeout_seconds": str(int(START_S)),
    "RAY_worker_maximum_startup_concurrency": "1",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
STUDY = """
study: scale
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}, momentum: {low: 0.5, high: 0.99}}}
  lr_schedule: {one_cycle: {pct_start: {low: 0.1, high: 0.5}}}
  epochs: {low: 4, high: 40}
  batch_size: {choices: [50, 100]}
search: {policy: POLICY, SAMPLER seed: 3}
"""


def wait_for_all() -> None:
    """Returns once as many processes have come here as are to run at once; then at once."""
    gate = Path(os.environ["BENCH_GATE"])
    (gate / str(os.getpid())).touch()
    deadline = time.monotonic() + START_S
    while len(os.listdir(gate)) < int(gate.name):
        assert time.monotonic() < deadline, "not all processes have started"
        time.sleep(0.5)


class Trivial(TrialProcess):
    def _open(self, spec: TrialSpec, config: Any) -> Any:
        return trivial(spec, self._interrupt)


def trivial(spec: TrialSpec, interrupt: Callable[[], bool]) -> Iterator[TrialRecord]:
    wait_for_all()
    evaluations: list[Evaluation] = []
    for step in range(EVALUATIONS):
        time.sleep(EVERY_S)
        evaluations.append(evaluation(step, accuracy_of(spec.params, step)))
        if interrupt() or step == EVALUATIONS - 1:
            break
        yield make_record(
            spec, spec.recipe, result(spec, evaluations, Status.CAPPED), started_at=""
        )
    return ended(spec, evaluations)


def ended(spec: TrialSpec, evaluations: list[Evaluation]) -> TrialRecord:
    status = Status.REACHED if evaluations[-1].accuracy >= 0.9 else Status.MISSED
    return make_record(spec, spec.recipe, result(spec, evaluations, status), started_at="")


def accuracy_of(params: Any, step: int) -> float:
    """Returns an accuracy that is best at a rate of 0.1, and noise-free."""
    off = abs(float(params["optimizer.sgd.lr"]) - 0.1)
    return max(0.1, (0.95 - off) * (1 - 0.8 ** (step + 1)))


def evaluation(step: int, accuracy: float) -> Evaluation:
    return Evaluation(
        step=step * 10,
        samples=step * 1000,
        epoch=step,
        train_s=step * EVERY_S,
        accuracy=accuracy,
        macro_f1=accuracy,
        loss=1.0,
        train_loss=1.0,
    )


def result(spec: TrialSpec, evaluations: list[Evaluation], status: Status) -> RunResult:
    train_s = evaluations[-1].train_s
    return RunResult(
        status=status,
        seed=spec.seed,
        stop_reason="" if status == Status.CAPPED else status.value,
        time_to_target_s=train_s if status == Status.REACHED else None,
        evaluations=tuple(evaluations),
        clocks=Clocks(train_s=train_s),
        steps=evaluations[-1].step,
        samples=evaluations[-1].samples,
    )


class Meter:
    def __init__(self) -> None:
        self.messages = self.reports = self.trials = 0
        self.began_s = self.began_cpu_s = 0.0
        self.rss_mib: list[tuple[int, float, float]] = []
        """(trials, seconds, MiB)."""

    def begin(self) -> None:
        if not self.began_s:
            self.began_s, self.began_cpu_s = time.perf_counter(), cpu_s()

    def ended(self) -> None:
        self.trials += 1
        if self.trials % 50 == 0:
            rss = psutil.Process().memory_info().rss / 2**20
            self.rss_mib.append((self.trials, time.perf_counter() - self.began_s, rss))

    def figures(self, concurrent: int) -> dict[str, Any]:
        wall_s, used_s = time.perf_counter() - self.began_s, cpu_s() - self.began_cpu_s
        trained_s = self.reports * EVERY_S / concurrent
        return {
            "trials": self.trials,
            "wall_s": wall_s,
            "reports_per_s": self.reports / wall_s,
            "messages_per_s": self.messages / wall_s,
            "driver_cpu_s": used_s / self.trials,
            "driver_wall_s": (wall_s - trained_s) / self.trials,
            "rss_mib": self.rss_mib,
        }


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Witness:
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def trial_started(self, **_: Any) -> None:
        pass

    def trial_evaluated(self, **_: Any) -> None:
        self._meter.begin()
        self._meter.reports += 1

    def trial_finished(self, **_: Any) -> None:
        self._meter.ended()

    def trial_interrupted(self, **_: Any) -> None:
        pass


class Anywhere:
    device_type: str | None = None
    is_local = False

    def placement(self) -> dict[str, Any]:
        return {"node_ids": [], "device_type": None}


def scale_study(folder: Path, options: argparse.Namespace, *overrides: str, more: int = 0) -> Any:
    sampler = f"sampler: {options.sampler}," if options.policy == "time_to_target" else ""
    text = STUDY.replace("POLICY", options.policy).replace("SAMPLER", sampler)
    (folder / "scale.yaml").write_text(text)
    trials = f"search.trials={options.trials + more}"
    own = [trials, f"search.concurrent={options.concurrent}"]
    return load_study(folder / "scale.yaml", overrides=[*own, *overrides])


def controller_of(study: Any, ledger: Ledger, *observers: Any) -> SearchController:
    if ledger.header is None:
        ledger.begin({"workload_hash": "w"})
    return SearchController(
        study=study,
        ledger=ledger,
        allotment=Allotment(device="cpu"),
        observers=observers,
    )


def ours(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    from tune_speed.tracking.store.store import Store
    from tune_speed.tracking.writer.tracker import Tracker
    from tune_speed.tuning.ray import tuner

    study = scale_study(folder, options)
    meter = Meter()
    observers: list[Any] = [Witness(meter)]
    if options.mlflow:
        store = Store(f"sqlite:///{folder}/mlflow.db")
        observers.append(Tracker(store, study="scale", study_tags={}))
    counted = tuner.Adapter.reported

    def reported(self: Any, ray_id: str, report: Any) -> bool:
        meter.messages += "record" in report
        return counted(self, ray_id, report)

    tuner.Adapter.reported = reported
    with Ledger(folder / "study") as ledger:
        controller = controller_of(study, ledger, *observers)
        tuner.run_search(controller, Anywhere(), on_tick=lambda: None, process=Trivial)
        figures = meter.figures(options.concurrent)
        assert len(ledger.records) == options.trials
    figures["messages_per_s"] += meter.trials / figures["wall_s"]  # Each trial's last.
    if options.mlflow:
        observers[1].close(timeout_s=60.0)
    return figures


def write_ledger(folder: Path, options: argparse.Namespace) -> None:
    """Writes the ledger of a search that has finished so many trials of random parameters."""
    at_random = argparse.Namespace(**{**vars(options), "policy": "random"})
    with Ledger(folder / "study") as ledger:
        controller = controller_of(scale_study(folder, at_random), ledger)
        while (spec := controller.propose()) is not None:
            done = [evaluation(n, accuracy_of(spec.params, n)) for n in range(EVALUATIONS)]
            controller.finished(ended(spec, done))


def take_over(folder: Path, options: argparse.Namespace) -> None:
    study = scale_study(folder, options, more=1)
    began_s, began_cpu_s = time.perf_counter(), cpu_s()
    with Ledger(folder / "study") as ledger:
        read_s = time.perf_counter() - began_s
        assert controller_of(study, ledger).propose() is not None
    took_s, rss = time.perf_counter() - began_s, psutil.Process().memory_info().rss / 2**20
    print(
        f"{options.trials} trials: {took_s:.1f} s, of which {read_s:.1f} s read the ledger;"
        f" {cpu_s() - began_cpu_s:.1f} s of CPU; {rss:.0f} MiB (bar: 30 s)"
    )


@contextmanager
def nodes(number: int, concurrent: int) -> Iterator[None]:
    own = {"dashboard_agent_listen_port": 0}  # Any: by default all clusters want the same one.
    head = {"num_cpus": 0, "include_dashboard": False, **own}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(number):
            cluster.add_node(num_cpus=-(-concurrent // number), **own)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="CRITICAL")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(options: argparse.Namespace) -> dict[str, Any]:
    from tune_speed.tuning.ray.cluster import quiet_ray

    quiet_ray()
    with tempfile.TemporaryDirectory() as name:
        gate = Path(name) / str(options.concurrent)
        gate.mkdir()
        os.environ.update(PATIENT, BENCH_GATE=str(gate))
        with nodes(options.nodes, options.concurrent):
            return ours(Path(name), options)


FIGURES = ("reports_per_s", "messages_per_s", "driver_cpu_s", "driver_wall_s", "wall_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["ours", "resume", "take_over"])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--policy", default="random")
    parser.add_argument("--sampler", default="gain")
    parser.add_argument("--mlflow", action="store_true")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "resume":
        with tempfile.TemporaryDirectory() as name:
            write_ledger(Path(name), options)
            own = ["--out", name, "--trials", str(options.trials), "--policy", options.policy]
            subprocess.run([sys.executable, __file__, "take_over", *own], check=True)
    elif options.side == "take_over":
        take_over(options.out, options)
    else:
        figures = run(options)
        print("  ".join(f"{name} {figures[name]:.4f}" for name in FIGURES), flush=True)
        for trials, seconds, rss_mib in figures["rss_mib"]:
            print(f"{trials:5} trials {seconds:7.1f} s {rss_mib:8.1f} MiB")


if __name__ == "__main__":
    main()

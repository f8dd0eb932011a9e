import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.processes import command_of, is_alive
from helpers.training.tiny import config_of

from tune_speed.components.models import MODELS
from tune_speed.core.records import Status, TrialRecord
from tune_speed.runtime import heartbeat
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, CheckpointPlan, TrialSpec, make_record
from tune_speed.training.workload import Workload
from tune_speed.tuning.driver.trial_files import read_trial_file
from tune_speed.tuning.ray import trial_process
from tune_speed.tuning.ray.liveness import received
from tune_speed.tuning.ray.trial_process import TrialProcess

IMPORTED = ["tune_speed.tuning.ray.trial_process", "tune_speed.training.objective", "torch._dynamo"]
"""What every process needs, and only one imports."""
SOON_S = 240.0
"""Far more than anything here takes."""
SPLIT = {"validation_frac": 0.2, "train_samples": 100, "validation_samples": 50}


def make_spec(
    trial_id: str = "t0000", *, epochs: int = 2, threads: int = 1, **recipe: Any
) -> TrialSpec:
    workload = {"dataset": {"name": "digits"}, "target": {"value": 1.0}, "split": SPLIT}
    own = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.05}}, "batch_size": 10}
    return TrialSpec(
        study="study",
        trial_id=trial_id,
        params={},
        recipe=Recipe.model_validate({**own, "epochs": epochs, **recipe}),
        workload=Workload.model_validate(workload),
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=0,
        allotment=Allotment(device="cpu", cpu_threads=threads),
    )


class Scripted(TrialProcess):
    def _open(self, spec: TrialSpec, config: dict[str, Any]) -> Any:
        return SCRIPTS[spec.trial_id](spec, self._interrupt)


def steps(spec: TrialSpec, interrupt: Callable[[], bool]) -> Any:
    """Evaluated once, takes steps without end, and says in a file that it does."""
    yield standing(spec)
    place = Path(os.environ["STEPS"])
    try:
        while not interrupt():
            (place / f"{spec.trial_id} steps").touch()
            time.sleep(0.01)
            heartbeat.beat()
    finally:
        (place / f"{spec.trial_id} steps").unlink()
    (place / f"{spec.trial_id}.ckpt").write_bytes(b"saved since")
    raise Interrupted


def hangs(spec: TrialSpec, interrupt: Callable[[], bool]) -> Any:
    yield standing(spec)
    sleeper = subprocess.Popen(["sleep", "600"])
    (Path(os.environ["STEPS"]) / "sleeper").write_text(str(sleeper.pid))
    threading.Event().wait()


def ends(spec: TrialSpec, interrupt: Callable[[], bool]) -> Any:
    yield standing(spec)
    return standing(spec)


SCRIPTS = {"t0000": steps, "t0001": hangs, "t0003": ends}


def standing(spec: TrialSpec) -> TrialRecord:
    from helpers.making import make_run

    return make_record(spec, spec.recipe, make_run(Status.CAPPED), started_at="")


class Remote:
    def __init__(self, kind: type[TrialProcess], config: dict[str, Any]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self._pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(kind, config, other, dict(os.environ)))
        self.process.start()
        other.close()

    def ask(self, method: str, *arguments: Any) -> Any:
        self._pipe.send((method, arguments))
        assert self._pipe.poll(SOON_S), f"no answer to {method}"
        return self._pipe.recv()

    def ask_until(self, key: str) -> dict[str, Any]:
        deadline = time.monotonic() + SOON_S
        while key not in (report := self.ask("train")):
            assert time.monotonic() < deadline
        return dict(report)

    def ends(self) -> bool:
        self.process.join(SOON_S)
        return self.process.exitcode is not None

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def serve(
    kind: type[TrialProcess], config: dict[str, Any], pipe: Connection, variables: dict[str, str]
) -> None:
    from helpers.training.tiny import Tiny

    os.environ.update(variables)
    MODELS["tiny"] = Tiny
    trial_process.END_S = 2.0
    process = kind.__new__(kind)  # Without what Ray's own base makes of a home folder.
    process._iteration = 0
    process.setup(config)
    while True:
        method, arguments = pipe.recv()
        try:
            pipe.send(getattr(process, method)(*arguments))
        except Exception as error:
            pipe.send({"error": f"{type(error).__name__}: {error}"})


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Remote]]:
    monkeypatch.setenv("STEPS", str(tmp_path))
    (tmp_path / "trials").mkdir()
    begun: list[Remote] = []

    def begin(spec: TrialSpec, kind: type[TrialProcess] = Scripted, **config: Any) -> Remote:
        begun.append(Remote(kind, config_of(spec, tmp_path, **config)))
        return begun[-1]

    yield begin
    for remote in begun:
        remote.close()


Begin = Callable[..., Remote]


@pytest.mark.slow
def test_stopped_trial_ends_first_and_leaves_no_checkpoint(begin: Begin, tmp_path: Path) -> None:
    saved = CheckpointPlan(place=str(tmp_path / "t0000.ckpt"))
    remote = begin(make_spec().model_copy(update={"checkpoint": saved}))
    remote.ask_until("record")
    remote.ask("stop_trial")
    report = remote.ask("train")
    assert (report["end"], report["done"]) == ("stopped", True)
    assert not (tmp_path / "t0000 steps").exists()
    assert not (tmp_path / "t0000.ckpt").exists()
    assert read_trial_file(tmp_path, "t0000") is None
    assert remote.ask("reset_config", config_of(make_spec("t0003"), tmp_path))
    record = received(remote.ask_until("end"))
    assert record.trial_id == "t0003"
    assert read_trial_file(tmp_path, "t0003") == record


@pytest.mark.slow
def test_trial_that_hangs_says_where_and_ends_its_process(begin: Begin, tmp_path: Path) -> None:
    remote = begin(make_spec("t0001"), hang_after_s=1.0)
    newest = received(remote.ask_until("record"))
    report = remote.ask_until("end")
    assert (report["end"], report["done"]) == ("hung", False)
    record = received(report, newest)
    assert (record.status, str(record.stop_reason)) == (Status.FAILED, "hung: no step for 1 s")
    assert record.runs[0].evaluations == standing(make_spec("t0001")).runs[0].evaluations
    traceback = record.runs[0].traceback or ""
    assert traceback.startswith("Thread training") and "in hangs" in traceback
    assert read_trial_file(tmp_path, "t0001") == record
    with pytest.raises(EOFError):
        remote.ask("train")
    assert remote.ends()
    sleeper = int((tmp_path / "sleeper").read_text())
    assert not is_alive(sleeper)


@pytest.mark.slow
def test_process_ends_itself_where_a_stopped_trial_does_not(begin: Begin) -> None:
    remote = begin(make_spec("t0001"))
    remote.ask_until("record")
    remote.ask("stop_trial")
    with pytest.raises(EOFError):
        remote.ask("train")
    assert remote.ends()


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [{}, {"loader": {"dataloader": {"workers": 2}}}],
    ids=["resident", "loader processes"],
)
def test_trials_learn_the_same_as_without_the_thread(begin: Begin, recipe: dict[str, Any]) -> None:
    spec = make_spec(epochs=1, threads=1 if recipe else 2, **recipe)
    there = received(begin(spec, TrialProcess).ask_until("end"))
    here = finish(run_trial(spec), on_report=lambda record: None)
    assert there.status == Status.MISSED
    assert there.device == here.device
    losses = [[e.loss for e in record.runs[0].evaluations] for record in (there, here)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_compiled_trial_trains_in_the_thread(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.training.tiny import Tiny

    monkeypatch.setitem(MODELS, "tiny", Tiny)
    spec = make_spec(epochs=1, model="tiny", compile=True)
    record = received(begin(spec, TrialProcess).ask_until("end"))
    assert record.status == Status.MISSED, record.runs[0].traceback


def ranks_of(remote: Remote) -> list[psutil.Process]:
    below = psutil.Process(remote.process.pid).children(recursive=True)
    return [each for each in below if "forkserver" in command_of(each)]


@pytest.mark.slow
def test_ranks_end_with_their_process(begin: Begin, tmp_path: Path) -> None:
    spec = make_spec(epochs=500, devices=2)
    remote = begin(spec, TrialProcess, devices=2)
    record = received(remote.ask_until("record"))
    assert (record.device.count, record.device.threads) == (2, 1)
    ranks = ranks_of(remote)
    assert len(ranks) == 3
    remote.process.kill()
    assert not psutil.wait_procs(ranks, timeout=SOON_S)[1]


@pytest.mark.slow
def test_rank_that_takes_no_step_ends_its_trial(begin: Begin, tmp_path: Path) -> None:
    # A rank that is stopped stands for one that hangs: the first waits for it.
    remote = begin(make_spec(epochs=500, devices=2), TrialProcess, devices=2, hang_after_s=15.0)
    remote.ask_until("record")
    training = sorted(ranks_of(remote), key=lambda rank: rank.create_time())[1:]
    training[-1].suspend()
    record = received(remote.ask_until("end"))
    assert record.status is Status.FAILED and "no step for 15 s" in str(record.stop_reason)
    assert "Thread" in (record.runs[0].traceback or "")
    assert not psutil.wait_procs(training, timeout=SOON_S)[1]

"""Bad input gets a clear message and an exit code: no stack trace, nothing lost, no long wait."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from helpers.command import TINY_STUDY, Done, run_inside
from helpers.making import make_record
from helpers.tracking.stores import store_of

pytestmark = pytest.mark.slow

Call = Callable[..., Done]


def write(folder: Path, text: str = TINY_STUDY) -> str:
    (folder / "tiny.yaml").write_text(text)
    return "tiny.yaml"


def closed_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimizer.lrr=0.1", "no field `optimizer.lrr`; did you mean `optimizer.lr`?"),
        ("workload.target.value=0.05", "Such a target is met before training"),
        ("precision=fp16", "fp16"),
        ("study=../../etc", "study"),
        ("search.resources.gpu=1.5", "whole number"),
    ],
)
def test_wrong_setting_is_refused_with_the_reason(
    tmp_path: Path, call: Call, override: str, said: str
) -> None:
    done = call("search", write(tmp_path), "--set", override, folder=tmp_path)
    assert (done.code, "Traceback" in done.err) == (2, False), done.err
    assert said in done.err


def test_missing_data_folder_is_named(tmp_path: Path, call: Call) -> None:
    done = call("search", "cifar10_resnet20", folder=tmp_path)
    assert done.code == 3
    assert str(tmp_path / "data") in done.err
    assert "--download" in done.err
    assert "Traceback" not in done.err


def test_gpu_fraction_without_a_gpu_is_refused(tmp_path: Path) -> None:
    gpu = "search.resources.gpu=0.25"
    done = run_inside(
        "search", write(tmp_path), "--set", gpu, folder=tmp_path, CUDA_VISIBLE_DEVICES=""
    )
    assert (done.code, "Traceback" in done.err) == (2, False), done.err
    assert "0.25 asked for and 0 there" in done.err
    assert not ray.is_initialized()
    assert not (tmp_path / "tune_speed_studies").exists()


@pytest.mark.parametrize("service", ["mlflow", "ray", "ray client"])
def test_unreachable_service_is_named_within_15_s(tmp_path: Path, service: str) -> None:
    address = f"127.0.0.1:{closed_port()}"
    study, started = write(tmp_path), time.monotonic()
    if service == "mlflow":
        uri = f"http://user:secret@{address}"
        done = run_inside("search", study, folder=tmp_path, MLFLOW_TRACKING_URI=uri)
    else:
        prefix = "ray://" if service == "ray client" else ""
        done = run_inside("search", study, "--address", prefix + address, folder=tmp_path)
    assert time.monotonic() - started < 15 + 10  # Starting Python and Ray on a busy machine.
    assert (done.code, "Traceback" in done.err) == (4, False), done.err
    assert address in done.err
    assert "secret" not in done.err
    assert not ray.is_initialized()


def test_address_that_is_none_is_refused(tmp_path: Path, call: Call) -> None:
    done = call("search", write(tmp_path), "--address", "nowhere", folder=tmp_path)
    assert (done.code, "Traceback" in done.err) == (2, False), done.err
    assert "--address must be" in done.err


def test_resume_of_nothing_is_refused(tmp_path: Path, call: Call) -> None:
    done = call("search", write(tmp_path), "--resume", folder=tmp_path)
    assert (done.code, "Traceback" in done.err) == (2, False), done.err
    assert "--resume needs a study that was begun" in done.err
    assert not (tmp_path / "tune_speed_studies").exists()


def test_unknown_file_run_and_command_are_refused(tmp_path: Path, call: Call) -> None:
    store_of([make_record()], folder=tmp_path)
    for arguments in (("search", "nothere.yaml"), ("show", "no/t0001"), ("serch", "x")):
        done = call(*arguments, folder=tmp_path)
        assert done.code == 2, done.err
        assert "Traceback" not in done.err


def test_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    done = run_inside("search", write(tmp_path), folder=tmp_path, TUNE_SPEED_STUDIES=str(blocked))
    assert (done.code, "Traceback" in done.err) == (5, False), done.err
    assert str(blocked) in done.err

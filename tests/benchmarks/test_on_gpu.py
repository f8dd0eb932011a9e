"""The command that measures on a GPU: without one it says so, part by part, and rehearses."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu_bars import interval_rates
from benchmarks.gpu_parts import PARTS

ON_GPU = Path(__file__).with_name("on_gpu.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs the command in this process; parts that begin get processes of their own."""

    def run(*options: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["on_gpu.py", "--out", "out", *options])
        monkeypatch.setattr(sys, "path", [str(ON_GPU.parent), *sys.path])
        runpy.run_path(str(ON_GPU), run_name="__main__")
        return json.loads(Path("out.json").read_text())

    return run


def states(report: dict[str, Any]) -> dict[str, str]:
    return {part["part"]: part["state"] for part in report["parts"]}


def test_parts_begin_within_nine_minutes() -> None:
    assert sum(part.least_s for part in PARTS.values() if not part.others) <= 9 * 60


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_each_part_is_named_as_not_run(here: Callable[..., dict[str, Any]]) -> None:
    report = here()
    assert states(report) == dict.fromkeys(PARTS, "not run")
    assert {part["reason"] for part in report["parts"]} == {"torch sees no GPU"}
    assert {"device", "driver", "versions", "commit", "date", "settings"} <= set(report)
    table = Path("out.md").read_text()
    assert [name for name in PARTS if f"| {name}: " not in table] == []


@pytest.mark.slow
def test_part_is_rehearsed_on_a_cpu(here: Callable[..., dict[str, Any]]) -> None:
    assert states(here("--device", "cpu", "--only", "memory")) == {"memory": "held"}


@pytest.mark.slow
def test_part_that_fails_stops_no_other(
    here: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The data of `memory` has no place to lie in; `accumulation` makes its own.
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "file" / "cache"))
    report = here("--device", "cpu", "--only", "memory,syncs,accumulation")
    assert states(report) == {"memory": "failed", "syncs": "not run", "accumulation": "held"}
    memory, syncs, accumulation = report["parts"]
    assert memory["reason"].startswith("exit code 1: ")
    assert "Traceback" in memory["log"] and len(memory["log"]) <= 2000
    assert syncs["reason"] == "no rehearsal on a CPU" and report["is_rehearsal"]
    (row,) = accumulation["rows"]
    assert row["bar"] == "≤ 0" and row["held"] is True and row["n"] > 50
    assert "| accumulation | again: largest" in Path("out.md").read_text()


def test_part_for_which_no_time_is_left_is_named(here: Callable[..., dict[str, Any]]) -> None:
    (part,) = here("--device", "cpu", "--only", "memory", "--minutes", "0.1")["parts"]
    assert part["state"] == "not run" and part["reason"].endswith("left of 0.1 minutes")


def test_rates_of_timm_s_script_are_those_between_lines_of_its_log() -> None:
    def line(epoch: int, step: int, so_far: float) -> str:
        return f"Train: {epoch} [{step:>4d}/40 ( 9%)] Time: 0.1s, 7.00/s  (0.2s, {so_far:>7.2f}/s)"

    # 1 step in 1 s and 20 in 0.2 s each; 10 of 0.1 s follow. Batches of 10 images.
    log = [line(0, 0, 10.0), line(0, 20, 42.0), line(0, 30, 310 / 6), line(1, 0, 10.0)]
    assert list(interval_rates("\n".join(log))) == pytest.approx([100.0], rel=1e-3)

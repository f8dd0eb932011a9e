"""What this program opens to the network: nothing, not even on a machine that has an address."""

import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import namespaces
import psutil
import pytest
from helpers.command import TINY_STUDY, TUNE_SPEED, environment, finished, run
from helpers.processes import marked
from ray_nodes import MARK, listening

pytestmark = pytest.mark.slow

NOTES_BINDS = """
import os, sys

def note(event, arguments):
    if event == "socket.bind" and isinstance(arguments[1], tuple):
        with open(os.environ["BINDS"], "a") as file:
            file.write(f"{sys.argv[:1]} {arguments[1]}\\n")

sys.addaudithook(note)
"""


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
def test_search_listens_on_loopback_only(tmp_path: Path) -> None:
    """Ray alone listens on all addresses, if the machine has any beyond loopback."""
    (tmp_path / "tiny.yaml").write_text(TINY_STUDY)
    mark = uuid.uuid4().hex
    command = [TUNE_SPEED, "search", "tiny.yaml", "--trials", "1"]
    with namespaces.machines(1) as [machine], (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [*machine.prefix, *command],
            cwd=tmp_path,
            env={**environment(tmp_path), MARK: mark},
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        )
        seen: set[str] = set()
        try:
            deadline = time.monotonic() + 300
            while process.poll() is None and time.monotonic() < deadline:
                seen |= set(listening(marked(MARK, mark)))
                time.sleep(0.2)
        finally:
            for left in marked(MARK, mark):
                with suppress(psutil.Error):
                    left.kill()
            code = process.wait(60)
    assert code in (0, 1), (tmp_path / "err").read_text()
    assert len(finished(tmp_path)) == 1
    assert {name.split()[0] for name in seen} >= {"gcs_server", "raylet"}
    assert [each for each in seen if "127.0.0.1:" not in each and "::1:" not in each] == []


def test_commands_that_show_results_open_no_port(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOTES_BINDS)
    binds = tmp_path / "binds"
    variables = {"PYTHONPATH": str(tmp_path), "BINDS": str(binds)}
    one = [sys.executable, "-c", "import socket; socket.socket().bind(('127.0.0.1', 0))"]
    subprocess.run(one, env={**os.environ, **variables}, check=True)
    assert len(binds.read_text().splitlines()) == 1
    binds.write_text("")
    for arguments in (["leaderboard"], ["report", "tiny"], ["watch", "tiny"], ["list", "studies"]):
        done = run(*arguments, folder=tmp_path, timeout_s=120, **variables)
        assert "Traceback" not in done.err
    assert binds.read_text() == ""

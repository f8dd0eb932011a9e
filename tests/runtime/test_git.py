"""What git says of a checkout, whoever calls us."""

import os
import subprocess
from pathlib import Path

import pytest

from tune_speed.runtime import git
from tune_speed.runtime.git import run_git


def make_checkout(folder: Path) -> Path:
    command = ["git", "init", "--quiet", "--initial-branch", "main", str(folder)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    subprocess.run(command, check=True, env=environment)
    return folder


def test_git_answers_for_the_folder_and_not_for_a_hook_that_called_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = make_checkout(tmp_path / "mine"), make_checkout(tmp_path / "other")
    (mine / "inner").mkdir()
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_COMMON_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    assert run_git(mine / "inner", "rev-parse", "--show-toplevel") == f"{mine}\n"
    common = run_git(mine, "rev-parse", "--path-format=absolute", "--git-common-dir")
    assert common == f"{mine}/.git\n"
    assert run_git(mine, "rev-parse", "--path-format=absolute", "--git-path", "index") == (
        f"{mine}/.git/index\n"
    )


def test_git_that_fails_or_is_not_there_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert run_git(tmp_path, "rev-parse", "--show-toplevel") is None
    assert run_git(make_checkout(tmp_path / "a"), "no-such-command") is None
    monkeypatch.setenv("PATH", "")
    assert run_git(tmp_path / "a", "status") is None


@pytest.mark.parametrize("stdout", ["ä\udcff", "text"])
def test_git_reads_no_input_takes_no_lock_and_starts_no_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stdout: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    script = f'#!/bin/sh\ncat\nprintf "%s|" "$@" "$GIT_OPTIONAL_LOCKS" "{stdout}"\n'
    (tools / "git").write_bytes(script.encode(errors="surrogateescape"))
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    shown = stdout.replace("\udcff", "\N{REPLACEMENT CHARACTER}")
    expected = f"-C|{tmp_path}|-c|core.fsmonitor=false|status|0|{shown}|"
    assert run_git(tmp_path, "status") == expected


def test_git_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 30\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(git, "TIMEOUT_S", 0.1)
    assert run_git(tmp_path, "status") is None

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tune_speed.core.version import __version__
from tune_speed.runtime import git as runtime_git
from tune_speed.tuning import provenance
from tune_speed.tuning.provenance import code_state, hide_secrets, installed_packages, source_hash


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("a = 1\n")
    git(folder.parent, "init", "--quiet")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "--quiet", "-m", "first")
    return folder


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_clean_checkout_has_its_commit_and_no_difference(package: Path) -> None:
    state = code_state(package)
    assert state.commit == git(package, "rev-parse", "HEAD").strip()
    assert (state.is_dirty, state.diff, state.diff_sha256) == (False, "", sha256(""))


def test_changes_are_kept_staged_or_not_anywhere_in_the_checkout(package: Path) -> None:
    (package / "a.py").write_text("a = 2\n")
    (package.parent / "other.yaml").write_text("b: 3\n")
    git(package.parent, "add", "other.yaml")
    state = code_state(package)
    assert state.is_dirty
    assert state.diff == git(package.parent, "diff", "HEAD")
    assert "+a = 2" in state.diff and "+b: 3" in state.diff


def test_untracked_python_files_are_named_and_ignored_ones_are_not(package: Path) -> None:
    (package.parent / ".git" / "info" / "exclude").write_text("ignored.py\n")
    for name in ("new file.py", "ignored.py", "notes.txt"):
        (package / name).write_text("x = 1\n")
    state = code_state(package)
    assert state.is_dirty and state.diff == "untracked: package/new file.py\n"


def test_long_difference_is_cut(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "a.py").write_text("ä" * 1000)
    monkeypatch.setattr(provenance, "MAX_DIFF_BYTES", 501)
    state = code_state(package)
    whole = git(package.parent, "diff", "HEAD")
    assert state.diff is not None and 499 <= len(state.diff.encode()) <= 501
    assert whole.startswith(state.diff) and state.diff_sha256 == sha256(whole)


def test_no_secret_is_kept(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct horse")
    (package / "a.py").write_text("u = 'postgresql://me:hunter2@host/db'\np = 'correct horse'\n")
    state = code_state(package)
    assert state.diff is not None and "me:***@host" in state.diff and "p = '***'" in state.diff
    assert "hunter2" not in state.diff and "horse" not in state.diff


def test_short_values_and_other_variables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "digits")
    monkeypatch.setenv("SOME_STUDY", "cifar10-resnet20")
    monkeypatch.setenv("PWD", "/home/me/study")
    text = "digits cifar10-resnet20 /home/me/study"
    assert hide_secrets(text) == text


def test_wheel_below_another_projects_checkout_has_no_commit(package: Path) -> None:
    wheel = package.parent / "venv" / "wheel"
    wheel.mkdir(parents=True)
    (wheel / "__init__.py").write_text("")
    state = code_state(wheel)
    assert (state.commit, state.is_dirty, state.diff, state.diff_sha256) == (None,) * 4
    assert state.source_sha256 == source_hash(wheel) is not None


def test_hook_of_another_checkout_does_not_mislead(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = code_state(package).commit
    git(tmp_path, "init", "--quiet", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert code_state(package).commit == commit


def test_source_has_its_hash_without_git(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    state = code_state(package)
    assert state.commit is None and state.source_sha256 is not None


def test_git_that_hangs_is_given_up(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = package.parent / "tools"
    tools.mkdir()
    (tools / "git").write_text("#!/bin/sh\nexec sleep 30\n")
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(runtime_git, "TIMEOUT_S", 0.1)
    assert code_state(package).commit is None


def test_source_hash_sees_names_contents_and_where_files_end(tmp_path: Path) -> None:
    def hash_of(files: dict[str, str]) -> str | None:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        return source_hash(folder)

    first = hash_of({"a.py": "1", "b.py": "2"})
    assert first == hash_of({"b.py": "2", "a.py": "1", "notes.txt": "3"})
    others = [hash_of(files) for files in ({"a.py": "1", "c.py": "2"}, {"a.py": "12", "b.py": ""})]
    assert len({first, *others}) == 3
    assert hash_of({"notes.txt": "3"}) is None


def test_lock_lists_what_is_installed_and_its_hash_is_of_the_file() -> None:
    state = code_state()
    lines = state.lock.splitlines()
    assert lines == sorted(set(lines)) and all(line.count("==") == 1 for line in lines)
    assert {line.partition("==")[0] for line in lines} >= {"torch", "mlflow", "pydantic"}
    assert state.lock_sha256 == sha256(state.lock)


def test_half_removed_package_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"gone": None, "My_Thing": "Name: My_Thing\nVersion: 1.0\n"}.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        if text is not None:
            (folder / "METADATA").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_packages() == "my-thing==1.0\n"


def test_section_of_a_certificate_says_the_same() -> None:
    state = code_state()
    section = state.section(config_hash="c" * 16)
    assert (section.version, section.config_hash) == (__version__, "c" * 16)
    assert section.model_dump(include={"commit", "diff", "lock_sha256"}) == state.model_dump(
        include={"commit", "diff", "lock_sha256"}
    )

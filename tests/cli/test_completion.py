"""What a shell completes, and `--version`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command import TUNE_SPEED, Done, environment, run

from tune_speed import __version__
from tune_speed.cli import common
from tune_speed.study.file import shipped_files

LEDGER = """\
{"event": "study", "study": "mine"}
{"event": "proposed", "trial_id": "t0000", "params": {}}
{"event": "finished", "trial_id": "t0000"}
{"event": "proposed", "trial_id": "t0001", "params": {"note": "t0009"}}
{"event": "proposed", "trial_id": "t0002", "par"""
"""The last line is being written."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three studies, two recipe files and some that are not."""
    for study in ("mine", "mine_too", "other"):
        (tmp_path / "tune_speed_studies" / study).mkdir(parents=True)
    (tmp_path / "tune_speed_studies" / "$(reboot)").mkdir()
    (tmp_path / "tune_speed_studies" / "mine" / "ledger.jsonl").write_text(LEDGER)
    (tmp_path / "recipes").mkdir()
    for name in ("best.yaml", "recipes/a.yml", "recipes/.hidden.yaml", "notes.txt"):
        (tmp_path / name).touch()
    return tmp_path


def completed(line: str, folder: Path) -> list[str]:
    words = line.split(" ")
    script = f"""
eval "$({TUNE_SPEED} --show-completion)"
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
_tune_speed_completion {TUNE_SPEED}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    # Not -c: bash replaces itself by a single command, and would be no parent to be found.
    done = subprocess.run(
        ["bash", "--norc"],
        input=script,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tune-speed sea", ["search"]),
        ("tune-speed list tri", ["trials"]),
        ("tune-speed best --exp", ["--export"]),
        ("tune-speed list trials --format par", ["parquet"]),
        ("tune-speed report mi", ["mine", "mine_too"]),
        ("tune-speed best --study o", ["other"]),
        ("tune-speed show mine/", ["mine/t0000", "mine/t0001", "mine/t0002"]),
        ("tune-speed train recipes/", ["recipes/a.yml"]),
        ("tune-speed train be", ["best.yaml"]),
        ("tune-speed search digits_", ["digits_quickstart"]),
    ],
)
def test_bash_completes_commands_options_studies_trials_and_files(
    line: str, offered: list[str], folder: Path
) -> None:
    assert completed(line, folder) == offered


def test_trials_are_offered_as_soon_as_the_study_is_clear(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TUNE_SPEED_STUDIES", raising=False)
    assert common.trials("mi") == ["mine/", "mine_too/"]
    assert common.trials("ot") == []
    assert common.trials("mine/t0001") == ["mine/t0001"]
    assert common.trials("../x/") == common.trials("none/") == []
    assert common.studies("") == ["mine", "mine_too", "other"]
    assert common.files("") == [
        "best.yaml",
        "recipes/",
        "tune_speed_studies/",
        *shipped_files(),
    ]
    assert common.files("no/such") == []


def test_nothing_is_imported_and_no_plugin_is_loaded_to_complete(folder: Path) -> None:
    """But for pydantic, which typer imports when it parses a line."""
    (folder / "loud.py").write_text("raise SystemExit('loaded')")
    code = (
        "import sys; from tune_speed.cli import main\n"
        "sys.argv = ['tune-speed']\n"
        "try: main.main()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'ray', 'mlflow', 'optuna', 'numpy', 'yaml', 'rich')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    asked = {
        "_TUNE_SPEED_COMPLETE": "complete_bash",
        "COMP_WORDS": "tune-speed train --plugin loud.py be",
        "COMP_CWORD": "4",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**environment(folder), **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.split(), done.stderr.strip()) == (["best.yaml"], "[]")


def test_completion_is_installed_for_the_shell_that_asks(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "--norc"],
        input=f"{TUNE_SPEED} --install-completion; exit $?\n",
        cwd=tmp_path,
        env={**environment(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    installed = tmp_path / ".bash_completions" / "tune-speed.sh"
    assert "_TUNE_SPEED_COMPLETE=complete_bash" in installed.read_text()
    assert str(installed) in (tmp_path / ".bashrc").read_text()


def test_version_is_the_package_s(tmp_path: Path) -> None:
    done = run("--version", folder=tmp_path, TUNE_SPEED_PLUGINS="no_such_plugin.py")
    assert done == Done(0, f"tune-speed {__version__}\n", "")
    assert os.listdir(tmp_path) == []

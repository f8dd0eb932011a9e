"""The store that an earlier version made, unpacked for a test, and what that version said of it.

python tests/artifacts/old_store.py EMPTY_FOLDER writes `expected/` with the version installed. Ends
of intervals are those of 2026-11-26, when times had theirs on the log scale.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
MADE_IN = "/tmp/study-a"
"""Where the artifacts were made: MLflow stores the place of a run's files as an absolute one."""
CERTIFY = ("certify", "tiny", "--top", "2", "--seeds", "3", "--final", "1", "--final-seeds", "3")
LOOP = ("--train", "my_loop.py:climbs")
ABLATE = ("ablate", "small.yaml", "--axes", "accumulation_steps=2,label_smoothing=0.1")
QUESTIONS = {
    "studies": ("list", "studies", "--json"),
    **{
        f"trials_{study}": ("list", "trials", "--study", study, "--format", "json")
        for study in ("tiny", "plugged", "hill", "broken", "small-ablation")
    },
    "leaderboard": ("leaderboard", "--json", "--misses", "--top", "50"),
    "leaderboard_where": ("leaderboard", "--json", "--where", "optimizer=sgd and epochs<=6"),
    "history": ("leaderboard", "--history", "--json"),
    "best": ("best", "--study", "tiny", "--json", "--top", "3"),
    "show_estimate": ("show", "tiny/t0004", "--json"),
    "show_capped": ("show", "tiny/t0000", "--json"),
    "show_certified": ("show", "tiny/t0004@certified", "--json"),
    "show_own": ("show", "hill/t0001", "--json"),
    "show_plugged": ("show", "plugged/t0000", "--json"),
    "compare": ("compare", "tiny/t0004", "tiny/t0003", "tiny/t0000", "--all", "--json"),
    "compare_certified": ("compare", "tiny/t0004@certified", "tiny/t0006@certified", "--json"),
    "report": ("report", "tiny", "--json"),
    "certify": (*CERTIFY, "--json"),
    "certify_own": (
        *("certify", "hill", *LOOP, "--top", "1", "--seeds", "2", "--final", "0", "--json"),
    ),
    "ablate": (*ABLATE, "--seeds", "2", "--json"),
}
"""Commands that print JSON and run nothing, by the file in `expected/` with their answers."""
OF_THE_MOMENT = {"bytes", "folder", "path", "seconds", "tracking_uri", "ui_command", "url"}
"""Fields that say where and how fast a question was answered."""


def unpack(folder: Path) -> Path:
    """Puts the studies, MLflow's store and the files that they were made of into `folder`."""
    shutil.copytree(HERE / "studies", folder / "tune_speed_studies")
    for file in ((HERE / "inputs").iterdir(), (HERE / "exported").iterdir()):
        for each in file:
            shutil.copy(each, folder / each.name.removesuffix(".txt"))
    with tarfile.open(HERE / "mlflow.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    relocate(folder)
    return folder


def relocate(folder: Path) -> None:
    """Tells MLflow's store that its files are in `folder` now, as who moves one has to."""
    columns = {
        "experiments": "artifact_location",
        "runs": "artifact_uri",
        "logged_models": "artifact_location",
    }
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        for table, column in columns.items():
            change = f"UPDATE {table} SET {column} = replace({column}, ?, ?)"
            database.execute(change, (f"file://{MADE_IN}/", f"{folder.as_uri()}/"))


def plain(value: Any) -> Any:
    """Returns an answer without what is of the moment; numbers to nine digits."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in OF_THE_MOMENT}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def known(value: Any, old: Any) -> Any:
    """Returns an answer without fields that the old one lacks: later versions may add some."""
    if isinstance(value, dict) and isinstance(old, dict):
        return {key: known(each, old[key]) for key, each in value.items() if key in old}
    if isinstance(value, list) and isinstance(old, list) and len(value) == len(old):
        return [known(each, before) for each, before in zip(value, old, strict=True)]
    return value


def expected(name: str) -> Any:
    return json.loads((EXPECTED / f"{name}.json").read_text())


def keep(name: str, answer: Any) -> None:
    """Writes an answer for the tests to compare with."""
    EXPECTED.mkdir(exist_ok=True)
    (EXPECTED / f"{name}.json").write_text(json.dumps(plain(answer), indent=1) + "\n")


def main(folder: Path) -> None:
    unpack(folder)
    for name, question in QUESTIONS.items():
        keep(name, answer(question, folder))
    sys.path.append(str(HERE.parent))
    from helpers.training.golden import EVERYWHERE

    keep("train", answer(("train", "best.yaml", "--json"), folder, **EVERYWHERE))


def answer(question: tuple[str, ...], folder: Path, **variables: str) -> Any:
    done = subprocess.run(
        ["tune-speed", *question],
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

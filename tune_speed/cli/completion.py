"""What a shell completes, by this folder's files: no library is imported, MLflow is not asked."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tune_speed.core.folders import shipped_folder, studies_folder

STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PROPOSED = re.compile(rb'\{"event": "proposed", "trial_id": "(t[0-9]{4,})"')
"""How a line of a ledger begins that has a trial's name."""


def studies(incomplete: str) -> list[str]:
    return sorted(name for name in _names(studies_folder()) if name.startswith(incomplete))


def trials(incomplete: str) -> list[str]:
    """Returns the trials, STUDY/TRIAL, that begin so; before the study is clear, the studies."""
    study, slash, _ = incomplete.partition("/")
    found = [study] if slash else studies(incomplete)
    if len(found) != 1:
        return [f"{name}/" for name in found]
    return [name for name in _trials(found[0]) if name.startswith(incomplete)]


def studies_and_trials(incomplete: str) -> list[str]:
    return [*studies(incomplete), *trials(incomplete)]


def files(incomplete: str) -> list[str]:
    shipped = [path.stem for path in sorted(shipped_folder().glob("*.yaml"))]
    return [*_files(incomplete), *(name for name in shipped if name.startswith(incomplete))]


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if STUDY.fullmatch(name)]
    except OSError:
        return []


def _trials(study: str) -> Iterator[str]:
    if not STUDY.fullmatch(study):
        return
    try:
        with open(studies_folder() / study / "ledger.jsonl", "rb") as ledger:
            for line in ledger:
                if begin := PROPOSED.match(line):
                    yield f"{study}/{begin[1].decode()}"
    except OSError:
        return


def _files(incomplete: str) -> Iterator[str]:
    head, name = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(head or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        is_hidden = entry.name.startswith(".") and not name.startswith(".")
        if is_hidden or not entry.name.startswith(name) or not entry.name.isprintable():
            continue
        if entry.is_dir():
            yield f"{os.path.join(head, entry.name)}/"
        elif entry.name.endswith((".yaml", ".yml")):
            yield os.path.join(head, entry.name)

"""Prints where the time of the tests goes, by room and by fixture, from a recorded run.

    python -m pytest -n 2 --record-durations=durations.jsonl    # record (several processes append)
    python tests/durations.py durations.jsonl [--top 20] [--json]

Seconds are those of the processes that run tests, added up: with `-n 2` a run lasts about half.
Processor seconds (`cpu_s`) hold on a busy machine too; those of Ray's processes are not in them.
A fixture's seconds are part of those of the test that needed it first.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """Returns the lines of a recording.

    Raises:
        SystemExit: a line is not one of `--record-durations`.
    """
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path} must be a file of `pytest --record-durations`: {error}") from None


def room_of(test: str) -> str:
    """Returns the folder below `tests/` of a test's node ID, or its file where it has none."""
    parts = test.split("::")[0].removeprefix("tests/").split("/")
    return parts[0]


def file_of(test: str) -> str:
    return test.split("::")[0].removeprefix("tests/")


def by(lines: Iterable[Line], key: Callable[[str], str]) -> list[Line]:
    """Returns tests and seconds, fast and slow, of each group of tests; the longest first."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        if "test" not in line:
            continue
        kind = "slow" if line["slow"] else "fast"
        group = groups[key(line["test"])]
        group[f"{kind}_s"] += line["s"]
        group["cpu_s"] += line["cpu_s"]
        group[f"{kind}_tests"] += line["phase"] == "setup"
    names = ("fast_tests", "fast_s", "slow_tests", "slow_s", "cpu_s")
    rows = [
        {"name": name, **{field: group[field] for field in names}} for name, group in groups.items()
    ]
    return sorted(rows, key=lambda row: -row["fast_s"] - row["slow_s"])


def fixtures(lines: Iterable[Line]) -> list[Line]:
    """Returns how often each fixture was set up, and in how many seconds; the longest first."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if "fixture" in line:
            found[f"{line['fixture'].removeprefix('tests/')} ({line['scope']})"].append(line["s"])
    rows = [{"name": name, "set_up": len(s), "s": sum(s)} for name, s in found.items()]
    return sorted(rows, key=lambda row: -row["s"])


def _print(title: str, rows: list[Line]) -> None:
    columns = list(rows[0]) if rows else []
    print(f"\n{title:<60}" + "".join(f"{column:>12}" for column in columns[1:]))
    for row in rows:
        cells = (
            f"{row[c]:>12.1f}" if c.endswith("s") and isinstance(row[c], float) else f"{row[c]:>12}"
            for c in columns[1:]
        )
        print(f"{row['name']:<60}" + "".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recording", type=Path)
    parser.add_argument("--top", type=int, default=20, help="rows of files, tests and fixtures")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = read(options.recording)
    tables = {
        "rooms": by(lines, room_of),
        "files": by(lines, file_of)[: options.top],
        "tests": by(lines, lambda test: test.removeprefix("tests/"))[: options.top],
        "fixtures": fixtures(lines)[: options.top],
    }
    if options.json:
        print(json.dumps(tables, indent=2))
        return
    for title, rows in tables.items():
        _print(title, rows)


if __name__ == "__main__":
    main()

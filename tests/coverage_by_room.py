"""Prints the share of lines that a recorded run reached, by room; exits 1 where one is below 90 %.

    python -m pytest -n 2 --record-lines=lines && python tests/coverage_by_room.py lines [--json]

Only lines that the processes of tests run themselves are counted, not those of searches' trials.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEAST_PERCENT = 90.0


def by_room(folder: Path) -> dict[str, float]:
    """Returns the percentage of the lines of each room of the package that any process ran.

    Files that no test imported count with all their lines as not run.
    """
    ran, known = defaultdict[Path, set[int]](set), defaultdict[Path, set[int]](set)
    for recorded in folder.glob("*.json"):
        for name, lines in json.loads(recorded.read_text()).items():
            inside = (ROOT / name).relative_to(ROOT / "tune_speed")
            ran[inside] |= set(lines["executed_lines"])
            known[inside] |= {*lines["executed_lines"], *lines["missing_lines"]}
    all_lines, ran_lines = Counter[str](), Counter[str]()
    for file in sorted(file for file in known if len(file.parts) > 1):
        all_lines[file.parts[0]] += len(known[file])
        ran_lines[file.parts[0]] += len(ran[file])
    return {room: 100 * ran_lines[room] / count for room, count in all_lines.items() if count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rooms = by_room(options.folder)
    if not rooms:
        sys.exit(f"{options.folder} must hold what `pytest --record-lines` wrote; there is none")
    if options.json:
        print(json.dumps(rooms, indent=2))
    else:
        print("\n".join(f"{room:<14}{percent:6.1f} % of lines" for room, percent in rooms.items()))
    low = [room for room, percent in rooms.items() if percent < LEAST_PERCENT]
    if low:
        sys.exit(f"at least {LEAST_PERCENT:g} % of the lines of a room must be tested: {low}")


if __name__ == "__main__":
    main()

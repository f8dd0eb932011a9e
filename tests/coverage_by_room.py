"""Prints the share of lines that a recorded run reached, by room; exits 1 where one is below 90 %.

    python -m pytest -n 2 --cov --cov-report= && python tests/coverage_by_room.py [--json]

Processes that tests start are counted too (`patch = ["subprocess"]` in pyproject.toml), if they end
by themselves: one that is killed leaves no record.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).resolve().parents[1]
LEAST_PERCENT = 90.0


def by_room(coverage: Coverage) -> dict[str, float]:
    """Returns the percentage of the statements of each room of the package that were run.

    Files that no test imported count with all their statements as not run.
    """
    statements, missed = Counter[str](), Counter[str]()
    for file in sorted((ROOT / "tune_speed").rglob("*.py")):
        inside = file.relative_to(ROOT / "tune_speed").parts
        room = inside[0] if len(inside) > 1 else "the top"
        _, found, _, missing, _ = coverage.analysis2(str(file))
        statements[room] += len(found)
        missed[room] += len(missing)
    return {room: 100 - 100 * missed[room] / count for room, count in statements.items() if count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    coverage = Coverage(data_file=str(ROOT / ".coverage"))
    coverage.load()
    rooms = by_room(coverage)
    if options.json:
        print(json.dumps(rooms, indent=2))
    else:
        print("\n".join(f"{room:<14}{percent:6.1f} % of lines" for room, percent in rooms.items()))
    low = [room for room, percent in rooms.items() if percent < LEAST_PERCENT]
    if low:
        sys.exit(f"at least {LEAST_PERCENT:g} % of the lines of a room must be tested: {low}")


if __name__ == "__main__":
    main()

"""Searches of a benchmark in processes of their own; what is in its file does not run again."""

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(file: Path | None) -> list[Row]:
    """Returns the rows that are in the file; none where there is no file."""
    return json.loads(file.read_text()) if file is not None and file.exists() else []


def run_all(
    search: Callable[[Any], list[Row]],
    tasks: Sequence[Any],
    rows: list[Row],
    *,
    jobs: int,
    out: Path | None,
) -> None:
    """Adds the rows of each task, and writes all rows to the file after each."""
    with ProcessPoolExecutor(jobs) as pool:
        for number, found in enumerate(pool.map(search, tasks), 1):
            rows += found
            print(f"{number}/{len(tasks)} {found[0]}", file=sys.stderr, flush=True)
            if out is not None:
                out.write_text(json.dumps(rows))

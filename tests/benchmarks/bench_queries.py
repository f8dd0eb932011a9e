"""How long a user waits for a leaderboard of a large store, beside reading it with MLflow alone.

    python tests/benchmarks/bench_queries.py [--runs 10000 100000] [--repeats 5] [--json]

Fills a store with synthetic trials (`synthetic_store`; 10 s per 1,000 of them and 43 MB), then
times whole commands, each in a process of its own: median and range of the wall time, and the
largest resident memory. In turn with them runs `mlflow.search_runs` over all experiments, at most
`--slow-repeats` times. All caches are warm: the first round is not counted. The bar: the
leaderboard under 2 s at 10,000 runs and under 10 s at 100,000, in less than 1 GiB.

`--folder` keeps the store, and takes it as it is where it has been filled. `--uri` takes another
kind of store, such as an empty database postgresql+psycopg2://user@host/name. `--against FOLDER`
times the leaderboard of another checkout as well. `--without-statistics` first drops what SQLite
knows of the store, as it is where searches were killed.
"""

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from synthetic_store import fill

OURS = str(Path(sys.executable).with_name("tune-speed"))
NAIVE = """
import mlflow
runs = mlflow.search_runs(search_all_experiments=True, max_results=1_000_000)
hit = runs[runs["tags.tune_speed.status"] == "reached"]
board = ["tags.tune_speed.workload_hash", "tags.tune_speed.device", "tags.tune_speed.kind"]
print(hit.sort_values("metrics.time_to_target_s").groupby(board).head(20).shape)
"""
OTHER = "import sys; sys.argv[0] = 'tune-speed'; from tune_speed.cli.main import main; main()"
LIMITS_S = {10_000: 2.0, 100_000: 10.0}
LIMIT_GIB = 1.0
LONGEST_S = 1800.0


class Took(NamedTuple):
    wall_s: float
    rss_gib: float
    code: int


class Figure(NamedTuple):
    what: str
    median_s: float
    least_s: float
    most_s: float
    rss_gib: float
    n: int
    code: int


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slow-repeats", type=int, default=1, help="of what takes minutes")
    parser.add_argument("--folder", type=Path, help="keep the store here; for one number of runs")
    parser.add_argument("--uri", help="another store, for one number of runs")
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--without-statistics", action="store_true")
    parser.add_argument("--json", action="store_true", help="figures as JSON, on stdout")
    arguments = parser.parse_args()
    if (arguments.folder or arguments.uri) and len(arguments.runs) > 1:
        parser.error("--folder and --uri take one number of --runs")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    results = {}
    for num_runs in arguments.runs:
        with folder_of(arguments.folder) as folder:
            uri = arguments.uri or f"sqlite:///{folder / 'mlflow.db'}"
            ensure_filled(uri, num_runs, folder)
            if arguments.without_statistics:
                drop_statistics(folder / "mlflow.db")
            results[num_runs] = measure(uri, folder, arguments)
    print_json(results) if arguments.json else print_tables(results)


@contextmanager
def folder_of(folder: Path | None) -> Iterator[Path]:
    """Yields the folder of the store: the one asked for, or one that is gone afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with nullcontext(str(folder)) if folder else tempfile.TemporaryDirectory() as name:
        yield Path(name).absolute()


def ensure_filled(uri: str, num_runs: int, folder: Path) -> None:
    """Fills the store unless it has been filled; a mark says with how many trials."""
    mark = folder / "num_trials"
    if mark.is_file() and int(mark.read_text()) == num_runs:
        return
    took_s = fill(uri, num_trials=num_runs)
    if uri.startswith("sqlite"):
        from tune_speed.tracking.store import sqlite

        sqlite.analyze(folder / "mlflow.db")  # As a search does at its end.
    mark.write_text(str(num_runs))
    print(f"filled {num_runs} runs in {took_s:.0f} s", file=sys.stderr)


def drop_statistics(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE IF EXISTS sqlite_stat1")
        connection.commit()


def measure(uri: str, folder: Path, arguments: argparse.Namespace) -> list[Figure]:
    """Returns what each command takes; the commands take turns, and the first round warms up."""
    took: dict[str, list[Took]] = {}
    slow: dict[str, list[Took]] = {}
    for number in range(arguments.repeats + 1):
        for what, command in commands().items():
            took.setdefault(what, []).append(run(command, uri, folder))
        if not 0 < number <= arguments.slow_repeats:
            continue
        if arguments.against is not None:
            command = [sys.executable, "-c", OTHER, "leaderboard", "--json"]
            one = run(command, uri, folder, source=arguments.against)
            slow.setdefault(f"leaderboard of {arguments.against.name}", []).append(one)
        for what, command in reading_all().items():
            slow.setdefault(what, []).append(run(command, uri, folder))
        one = run([sys.executable, "-c", NAIVE], uri, folder)
        slow.setdefault("mlflow.search_runs", []).append(one)
    warm = {what: each[1:] for what, each in took.items()}
    return [summarised(what, each) for what, each in {**warm, **slow}.items()]


def commands() -> dict[str, list[str]]:
    return {
        "leaderboard": [OURS, "leaderboard", "--json"],
        "leaderboard, a table": [OURS, "leaderboard"],
        "leaderboard of a study": [OURS, "leaderboard", "--json", "--study", "study-0003"],
        "best": [OURS, "best", "--json"],
        "list studies": [OURS, "list", "studies", "--json"],
    }


def reading_all() -> dict[str, list[str]]:
    return {
        "leaderboard --where": [OURS, "leaderboard", "--json", "--where", "batch_size>=64"],
        "leaderboard --misses": [OURS, "leaderboard", "--json", "--misses"],
    }


def run(command: list[str], uri: str, folder: Path, *, source: Path | None = None) -> Took:
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    if source is not None:
        environment["PYTHONPATH"] = str(source.absolute())
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    alarm = threading.Timer(LONGEST_S, process.kill)
    alarm.start()
    errors = process.stderr.read()  # Ends with the process.
    _, status, usage = os.wait4(process.pid, 0)
    alarm.cancel()
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        print(errors.decode(errors="replace")[-2000:], file=sys.stderr)
    print(f"{wall_s:8.2f} s  {' '.join(command)[-60:]!r}", file=sys.stderr)
    return Took(wall_s, usage.ru_maxrss / (1 << 20), process.returncode)


def summarised(what: str, took: list[Took]) -> Figure:
    walls = [each.wall_s for each in took]
    return Figure(
        what=what,
        median_s=statistics.median(walls),
        least_s=min(walls),
        most_s=max(walls),
        rss_gib=max(each.rss_gib for each in took),
        n=len(took),
        code=max(each.code for each in took),
    )


def print_tables(results: dict[int, list[Figure]]) -> None:
    print(", ".join(f"{name} {number}" for name, number in versions().items()))
    for num_runs, figures in results.items():
        print(f"\n{num_runs} runs")
        print(f"{'':28}{'median_s':>10}{'least_s':>10}{'most_s':>10}{'rss_gib':>9}{'n':>4}")
        for each in figures:
            failed = f"  FAILED ({each.code})" if each.code else ""
            print(
                f"{each.what:28}{each.median_s:10.2f}{each.least_s:10.2f}{each.most_s:10.2f}"
                f"{each.rss_gib:9.2f}{each.n:4}{failed}"
            )
        print(verdict(num_runs, figures))


def verdict(num_runs: int, figures: list[Figure]) -> str:
    by_name = {each.what: each for each in figures}
    ours, naive = by_name["leaderboard"], by_name.get("mlflow.search_runs")
    words = []
    if naive is not None:
        words.append(f"mlflow.search_runs / leaderboard: {naive.median_s / ours.median_s:.0f}")
    if num_runs in LIMITS_S:
        holds = ours.median_s < LIMITS_S[num_runs] and ours.rss_gib < LIMIT_GIB
        words.append(
            f"bar {LIMITS_S[num_runs]:g} s and {LIMIT_GIB:g} GiB: {'met' if holds else 'NOT MET'}"
        )
    return "; ".join(words)


def versions() -> dict[str, str]:
    names = ("mlflow", "sqlalchemy", "pydantic", "numpy")
    return {
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in names},
    }


def print_json(results: dict[int, list[Figure]]) -> None:
    rows: dict[str, Any] = {str(n): [each._asdict() for each in fs] for n, fs in results.items()}
    print(json.dumps({"versions": versions(), "runs": rows}, indent=2))


if __name__ == "__main__":
    main()

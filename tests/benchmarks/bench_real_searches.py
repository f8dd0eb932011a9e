"""Whether what real searches recommend meets the target again: searches, then fresh runs of each.

    python tests/benchmarks/bench_real_searches.py digits_quickstart --seeds 5 --runs 20
    python tests/benchmarks/bench_real_searches.py cifar10_cpu --seeds 5 --against ../old \\
        --set workload.split.train_samples=2500 --set search.time_budget=150s

Each search is the command in a process of its own, with stores of its own; `--against FOLDER`
searches with another checkout too, by turns (A B B A …). What `best --export` writes is then
trained by this checkout with fresh seeds, two processes at a time. Printed for each search: what it
said (chance, runs), how many of the fresh runs met the target, and the expected time with restarts
by the search's own isolated clock; for each side, hits in all and the fewest of one search; and
with `--against` the geometric mean of the ratios of expected times over pairs, with a 95 % interval
(Student's t). A search is kept in `--out`; called again, it resumes where it stopped.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

HERE = Path(__file__).parents[2]
FIRST_SEED = 10_000
"""Of the fresh runs: no search draws seeds that high."""
Row = dict[str, Any]


def command(checkout: Path, folder: Path, *words: str, codes: Sequence[int] = (0,)) -> str:
    program = "from tune_speed.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(checkout.resolve()),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in codes:
        said = done.stderr[-4000:]
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{said}")
    return done.stdout


def searched(checkout: Path, study: str, seed: int, settings: Sequence[str], runs: int) -> Row:
    sets = [word for each in (*settings, f"search.seed={seed}") for word in ("--set", each)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # 2: no trial met the target.
        command(checkout, folder, "search", study, *sets, codes=(0, 1, 2))
        said = json.loads(command(checkout, folder, "best", "--json"))
        if not said or not said[0]["rows"]:
            return {"chance": None, "runs": [0, 0], "run_s": math.inf, "hits": 0, "fresh": runs}
        command(checkout, folder, "best", "--export", "recipe.yaml")
        half = partial(fresh_hits, folder, runs=runs // 2)
        with ThreadPoolExecutor(2) as pool:
            hits = sum(pool.map(half, (FIRST_SEED, FIRST_SEED + runs // 2)))
        return {**recommendation(said[0]), "hits": hits, "fresh": runs // 2 * 2}


def recommendation(board: Row) -> Row:
    row = board["rows"][0]
    return {
        "trial": row["trial_id"],
        "chance": row.get("chance"),
        "runs": [row.get("hits"), row.get("n")],
        "run_s": row["time_to_target_s"],
        "params": row["params"],
    }


def fresh_hits(folder: Path, first_seed: int, *, runs: int) -> int:
    settings = ("--set", f"run.seed={first_seed}", "--set", "run.cpu_threads=1")
    found = command(
        HERE,
        folder,
        *("train", "recipe.yaml", "--seeds", str(runs), *settings, "--json"),
        codes=(0, 1, 2, 3),
    )
    return sum(run["time_to_target_s"] is not None for run in json.loads(found)["runs"])


def expected_s(row: Row) -> float:
    return row["run_s"] * row["fresh"] / row["hits"] if row["hits"] else math.inf


def summary(rows: Sequence[Row]) -> Iterator[str]:
    sides = {side: [row for row in rows if row["side"] == side] for side in ("ours", "against")}
    for side, own in sides.items():
        if own:
            hits = [row["hits"] for row in own]
            yield f"{side}: {sum(hits)} of {sum(row['fresh'] for row in own)}, at least {min(hits)}"
    others = {row["seed"]: expected_s(row) for row in sides["against"]}
    both = [row for row in sides["ours"] if row["seed"] in others]
    pairs = [(expected_s(row), others[row["seed"]]) for row in both]
    logs = [math.log(a / b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if len(logs) > 1:
        mean, half = np.mean(logs), np.std(logs, ddof=1) / math.sqrt(len(logs))
        half *= student.ppf(0.975, len(logs) - 1)
        low, high = math.exp(mean - half), math.exp(mean + half)
        yield (
            f"ours / against: {math.exp(mean):.2f} ({low:.2f}–{high:.2f}), {len(logs)} of"
            f" {len(pairs)} pairs in which both met the target again"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=20, help="fresh runs of each recommended")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="PATH=VALUE")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--out", type=Path, default=Path("build/real_searches.jsonl"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    kept = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    rows: list[Row] = [json.loads(line) for line in kept]
    checkouts = {"ours": HERE}
    if arguments.against is not None:
        checkouts["against"] = arguments.against
    for seed in range(arguments.seeds):
        for side in list(checkouts)[:: 1 if seed % 2 == 0 else -1]:
            if any((row["side"], row["seed"]) == (side, seed) for row in rows):
                continue
            found = searched(
                checkouts[side], arguments.study, seed, arguments.settings, arguments.runs
            )
            rows.append({"side": side, "seed": seed, **found})
            with arguments.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(rows[-1], f"expected {expected_s(rows[-1]):.2f} s", flush=True)
    for line in summary(rows):
        print(line)


if __name__ == "__main__":
    main()

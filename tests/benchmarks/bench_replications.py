"""Every replication in a profile: how long each takes, and the published figures beside ours.

    python tests/benchmarks/bench_replications.py --out replications.md       # CPU
    python tests/benchmarks/bench_replications.py --profile gpu --out gpu.md
    python tests/benchmarks/bench_replications.py --quick                     # some minutes

Each is run by `tune-speed replicate NAME`, in a process of its own; those without such a profile
are left out. The seconds are those of the whole command; what an earlier session has finished is
not run again without `--again`. `--only NAME…` runs some; `--quick` the three quickest, with two
runs an arm. `--set` is passed on. Exit code 1 if one of them fails; the others run all the same.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tune_speed.experiments.replication.shipped import replication_listing

COMMAND = (sys.executable, "-c", "from tune_speed.cli.main import main; main()", "replicate")
TWO_RUNS = ("ablate.seeds=2",)
QUICK = {"quick_answers": (), "first_three_experiments": TWO_RUNS, "factorial": TWO_RUNS}
"""Names, with what is set: `quick_answers` has no arms."""


class Done(NamedTuple):
    name: str
    items: str
    took_s: float
    exit_code: int
    tables: str
    """As Markdown; empty where it failed."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", default="cpu", choices=("cpu", "gpu", "full"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of replications")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}, two runs an arm")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--again", action="store_true", help="begins each anew")
    parser.add_argument("--download", action="store_true", help="gets missing data sets")
    parser.add_argument("--out", type=Path, help="file for seconds and tables, as Markdown")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    done: list[Done] = []
    for name, items in chosen(arguments):
        done.append(replicate(name, items, arguments))
        state = "" if done[-1].exit_code == 0 else f", exit code {done[-1].exit_code}"
        print(f"{name}: {done[-1].took_s:.1f} s{state}", flush=True)
        # After each: what was found is not lost if a later one is broken off.
        if arguments.out:
            arguments.out.write_text(report(done, arguments.profile))
    print(f"\n{report(done, arguments.profile)}", end="")
    return 1 if any(each.exit_code for each in done) or not done else 0


def chosen(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yields name and items of what is to be run. Raises: SystemExit for a name there is not."""
    rows = [row for row in replication_listing() if arguments.profile in row["profiles"]]
    wanted = arguments.only or (QUICK if arguments.quick else [row["name"] for row in rows])
    unknown = set(wanted) - {row["name"] for row in rows}
    if unknown:
        raise SystemExit(f"no replication with profile {arguments.profile}: {sorted(unknown)}")
    for row in rows:
        if row["name"] in wanted:
            yield row["name"], " ".join(map(str, row["items"]))


def replicate(name: str, items: str, arguments: argparse.Namespace) -> Done:
    """Runs the command; its messages go to stderr, as they come."""
    began_s = time.monotonic()
    ran = subprocess.run(
        command(name, arguments), stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False
    )
    took_s = time.monotonic() - began_s
    return Done(name, items, took_s, ran.returncode, "" if ran.returncode else ran.stdout.strip())


def command(name: str, arguments: argparse.Namespace) -> list[str]:
    overrides = [*(QUICK.get(name, TWO_RUNS) if arguments.quick else ()), *arguments.set]
    flags = [f"--{flag}" for flag in ("again", "download") if getattr(arguments, flag)]
    form = ["--profile", arguments.profile, "--format", "markdown"]
    return [*COMMAND, name, *form, *flags, *(f"--set={each}" for each in overrides)]


def report(done: Sequence[Done], profile: str) -> str:
    lines = [
        f"| replication, profile {profile} | items | time [s] | exit code |",
        "|---|---|---:|---:|",
        *(f"| {d.name} | {d.items} | {d.took_s:.1f} | {d.exit_code} |" for d in done),
        f"| all {len(done)} | | {sum(d.took_s for d in done):.1f} | |",
    ]
    tables = [d.tables for d in done if d.tables]
    return "\n\n".join(["\n".join(lines), *tables]) + "\n"


if __name__ == "__main__":
    sys.exit(main())

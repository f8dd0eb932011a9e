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
from pathlib import Path

from tune_speed.experiments.replication.shipped import replication_listing

COMMAND = (sys.executable, "-c", "from tune_speed.cli.main import main; main()", "replicate")
TWO_RUNS = ("--set=ablate.seeds=2",)
QUICK = {"quick_answers": (), "first_three_experiments": TWO_RUNS, "factorial": TWO_RUNS}
"""Names, with what is set: `quick_answers` has no arms."""


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
    rows = {r["name"]: r for r in replication_listing() if arguments.profile in r["profiles"]}
    chosen = arguments.only or (QUICK if arguments.quick else rows)
    if unknown := set(chosen) - set(rows):
        raise SystemExit(f"no replication with profile {arguments.profile}: {sorted(unknown)}")
    seconds = [f"| replication, profile {arguments.profile} | items | time [s] | exit code |"]
    seconds.append("|---|---|---:|---:|")
    tables, codes = [], []
    for name in (name for name in rows if name in chosen):
        began_s = time.monotonic()
        # Its messages go to stderr, as they come.
        ran = subprocess.run(command(name, arguments), stdout=subprocess.PIPE, text=True)
        took_s = time.monotonic() - began_s
        codes.append(ran.returncode)
        print(f"{name}: {took_s:.1f} s, exit code {ran.returncode}", flush=True)
        items = " ".join(map(str, rows[name]["items"]))
        seconds.append(f"| {name} | {items} | {took_s:.1f} | {ran.returncode} |")
        tables += [] if ran.returncode else [ran.stdout.strip()]
        # After each: what was found is not lost if a later one is broken off.
        if arguments.out:
            arguments.out.write_text("\n\n".join(["\n".join(seconds), *tables]) + "\n")
    print("\n\n".join(["\n".join(seconds), *tables]))
    return 1 if any(codes) or not codes else 0


def command(name: str, arguments: argparse.Namespace) -> list[str]:
    flags = [f"--{flag}" for flag in ("again", "download") if getattr(arguments, flag)]
    form = ["--profile", arguments.profile, "--format", "markdown"]
    smaller = QUICK.get(name, TWO_RUNS) if arguments.quick else ()
    return [*COMMAND, name, *form, *flags, *smaller, *(f"--set={s}" for s in arguments.set)]


if __name__ == "__main__":
    sys.exit(main())

"""All that must be seen on a GPU, in one command: one JSON file and one Markdown table.

    python tests/benchmarks/on_gpu.py --out on_gpu --data ../shared/data     # under 9 minutes
    python tests/benchmarks/on_gpu.py --only fractions,graphs                # parts by name
    python tests/benchmarks/on_gpu.py --only airbench --data DIR --others DIR  # others' scripts
    python tests/benchmarks/on_gpu.py --device cpu --only memory,profile     # a rehearsal

Each part of `gpu_parts.py` runs in a process of its own, in this order, so that one that fails
stops no other, and keeps the rows that it had. A row has a figure, its bar and whether that held; a
part that could not run says what is missing. The last characters that a part printed are kept, and
shown where it failed or missed a bar. Parts that the time does not suffice for are named as well.
Without a GPU nothing runs but what a rehearsal on `--device cpu` can: parts in miniature, to see
that they work; their figures say nothing of a GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_part import Options, Part
from gpu_parts import PARTS

from tune_speed.runtime.device import resolve_device
from tune_speed.runtime.device_settings import device_settings
from tune_speed.runtime.hardware import describe_system
from tune_speed.training.trial import environment

MINUTES = 9.0
ENDING_S = 10.0
LOG_CHARACTERS = 2000
"""Kept of what a part printed."""
REHEARSING = 5
"""Times as long may a part take on a CPU."""
ROOT = Path(__file__).resolve().parents[2]
STATES = ("held", "missed", "failed", "not run")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10's Parquet files")
    parser.add_argument("--others", type=Path, help="folder of others' scripts, as they are")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts together")
    parser.add_argument("--out", type=Path, default=Path("on_gpu"), help="path without a suffix")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.only.split(",")) - set(PARTS):
        parser.error(f"--only must name parts of {', '.join(PARTS)}, but got {', '.join(unknown)}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    gpu = torch.cuda.is_available()
    device = {"auto": "cuda" if gpu else "cpu"}.get(arguments.device, arguments.device)
    if arguments.part:
        options = Options(device, arguments.data, Path.cwd(), arguments.others)
        rows = []
        for row in PARTS[arguments.part].run(options):
            rows.append(row._asdict())
            arguments.out.write_text(json.dumps(rows))
        return
    is_rehearsal = arguments.device == "cpu"
    ends_s, results = time.monotonic() + 60 * arguments.minutes, []
    for name in arguments.only.split(","):
        part, left_s = PARTS[name], ends_s - time.monotonic()
        reason = missing(part, arguments, has_gpu=device == "cuda", is_rehearsal=is_rehearsal)
        if not reason and left_s < part.least_s:
            reason = f"{left_s:.0f} s were left of {arguments.minutes:g} minutes"
        result = (
            {"reason": reason} if reason else run(name, arguments, device=device, limit_s=left_s)
        )
        results.append({"part": name, "title": part.title, **result, "state": state_of(result)})
        print_part(results[-1])
    report = {**machine(device), "is_rehearsal": is_rehearsal, "parts": results}
    arguments.out.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
    arguments.out.with_suffix(".md").write_text(markdown(report))


def print_part(result: Mapping[str, Any]) -> None:
    print(f"{result['part']}: {result['state']} {result.get('reason', '')}".rstrip(), flush=True)
    if result["state"] in ("failed", "missed"):
        print("".join(f"    {line}\n" for line in result["log"].splitlines()), end="", flush=True)


def missing(part: Part, arguments: argparse.Namespace, *, has_gpu: bool, is_rehearsal: bool) -> str:
    """Returns what the part lacks to run, in words; empty if nothing."""
    if not has_gpu and not (is_rehearsal and part.can_rehearse):
        return "no rehearsal on a CPU" if is_rehearsal else "torch sees no GPU"
    modules = [name for name in part.modules if find_spec(name) is None]
    if modules:
        return f"not installed: {', '.join(modules)}"
    return lacking("--data", arguments.data, part.data) or lacking(
        "--others", arguments.others, part.others
    )


def lacking(option: str, folder: Path | None, files: Sequence[str]) -> str:
    """Returns which files are not in the folder of an option, in words; empty if none."""
    absent = [file for file in files if not (folder and (folder / file).exists())]
    return f"{option} has no {', '.join(absent)}" if absent else ""


def run(name: str, arguments: argparse.Namespace, *, device: str, limit_s: float) -> dict[str, Any]:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows, log = Path(folder) / "rows.json", Path(folder) / "log"
        command = [sys.executable, __file__, "--part", name, "--out", str(rows)]
        command += ["--device", device]
        for option in ("data", "others"):
            if path := getattr(arguments, option):
                command += [f"--{option}", str(path.absolute())]
        with log.open("wb") as output:
            # A session of its own: what a part leaves behind ends with it.
            process = subprocess.Popen(
                command, cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
            slower = 1 if device == "cuda" else REHEARSING
            limit_s = min(limit_s, slower * PARTS[name].limit_s)
            code, why = wait(process, limit_s), f"it took longer than {limit_s:.0f} s"
        # Results are published: where they were taken is nobody's business.
        text = log.read_text(errors="replace").replace(f"{ROOT}/", "").replace(f"{folder}/", "")
        text = text.strip()[-LOG_CHARACTERS:]
        found: dict[str, Any] = {"seconds": round(time.monotonic() - began_s, 1), "log": text}
        if rows.exists():
            found["rows"] = json.loads(rows.read_text())
        if code == 0 and "rows" in found:
            return found
        why, last = why if code is None else f"exit code {code}", text.splitlines()[-3:]
        return {**found, "reason": f"{why}: {' / '.join(last)[-500:]}", "failed": True}


def wait(process: "subprocess.Popen[bytes]", limit_s: float) -> int | None:
    # Interrupted first: so parts stop the clusters and daemons that they have started.
    for sign, patience_s in ((signal.SIGINT, limit_s), (signal.SIGKILL, ENDING_S)):
        try:
            code = process.wait(timeout=patience_s)
            return code if sign == signal.SIGINT else None
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, sign)
    process.wait()
    return None


def state_of(result: Mapping[str, Any]) -> str:
    if result.get("failed") or "rows" not in result:
        return "failed" if result.get("failed") else "not run"
    return "missed" if any(row["held"] is False for row in result["rows"]) else "held"


def machine(name: str) -> dict[str, Any]:
    device = resolve_device(name)
    facts = describe_system(device)
    # Results are published: names of hosts and containers are nobody's business.
    versions = {name: value for name, value in environment().items() if name != "host"}
    return {
        "device": facts.device,
        "driver": facts.gpu.driver,
        "versions": versions,
        "commit": environment()["commit"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": device_settings(device),
        "system": facts.model_dump(
            mode="json", exclude={"device_key", "container_id", "container_digest"}
        ),
    }


def markdown(report: Mapping[str, Any]) -> str:
    versions = report["versions"]
    names = ("torch", "timm", "ray", "tune_speed", "python")
    lines = [
        f"{report['device']}, driver {report['driver'] or 'none'},"
        f" {', '.join(f'{name} {versions[name]}' for name in names if name in versions)},"
        f" commit {report['commit']}, {report['date']}"
        f"{', a rehearsal' if report['is_rehearsal'] else ''}",
        "",
        "| part | figure | value | bar | held | n |",
        "|---|---|---|---|---|---|",
    ]
    return (
        "\n".join([*lines, *(line for part in report["parts"] for line in lines_of(part))]) + "\n"
    )


def lines_of(part: Mapping[str, Any]) -> Sequence[str]:
    """Returns the lines of a part: its rows, and why there are no more."""
    held = {True: "yes", False: "**no**", None: ""}
    lines = [
        f"| {part['part']} | {row['figure']} | {row['value']} | {row['bar']} |"
        f" {held[row['held']]} | {row['n']} |"
        for row in part.get("rows", ())
    ]
    if reason := part.get("reason", "").replace("|", "/").replace("\n", " "):
        lines += [f"| {part['part']}: {part['title']} | {part['state']}: {reason} | | | | |"]
    return lines


if __name__ == "__main__":
    main()

"""Trains two recipes with the same seeds, in turns, and compares them by a paired test."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tune_speed.core.comparability import goodness, target_of
from tune_speed.core.config import flatten
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.records import TrialRecord
from tune_speed.data.cache import prepare
from tune_speed.experiments.margin import Slope, estimate_slope
from tune_speed.experiments.paired_test import Side, Verdict, common_seeds, judge
from tune_speed.experiments.rerun import cpu_threads, merged, show_end, train_once
from tune_speed.experiments.run_summary import WHOLE, runs_dict, runs_text
from tune_speed.runtime.device import resolve_device
from tune_speed.runtime.process import stop_signals
from tune_speed.study.file import RecipeFile
from tune_speed.training.loop import Interrupted


class Duel(NamedTuple):
    """Finished runs of both recipes."""

    a: TrialRecord | None
    """All finished runs of the first recipe; None if there is none."""
    b: TrialRecord | None
    was_stopped: bool
    """Whether Ctrl-C ended it; the run that it interrupted is left out."""


def turns(seeds: Sequence[int]) -> Iterator[tuple[Side, int]]:
    """Yields who trains next, and with which seed: A B, B A, A B ..."""
    # Each second round the other one begins: a machine that drifts meanwhile favours neither.
    for number, seed in enumerate(seeds):
        order: tuple[Side, Side] = ("b", "a") if number % 2 else ("a", "b")
        yield from ((side, seed) for side in order)


def train_both(
    a: RecipeFile,
    b: RecipeFile,
    *,
    seeds: int,
    download: bool,
    on_progress: Callable[[int, int], None],
    on_line: Callable[[str], None],
) -> Duel:
    """Trains both recipes with the same seeds, from the first one's on; Ctrl-C keeps finished runs.

    Raises: ConfigError if the two cannot be compared; DataError.
    """
    _refuse_unequal(a, b)
    records: dict[Side, list[TrialRecord]] = {"a": [], "b": []}
    files: dict[Side, RecipeFile] = {"a": a, "b": b}
    was_stopped = False
    try:
        data_hash = _prepare_both(a, b, download=download, on_progress=on_progress)
        with stop_signals(signal.SIGINT) as is_stopped:
            for side, seed in turns(range(a.run.seed, a.run.seed + seeds)):

                def say(line: str, name: str = side.upper()) -> None:
                    on_line(f"{name}  {line}")

                record = train_once(
                    files[side], data_hash=data_hash, seed=seed, on_line=say, interrupt=is_stopped
                )
                records[side].append(record)
                show_end(record, say)
    except (KeyboardInterrupt, Interrupted):
        was_stopped = True
    return Duel(merged(records["a"]), merged(records["b"]), was_stopped)


def _refuse_unequal(a: RecipeFile, b: RecipeFile) -> None:
    """Raises: ConfigError with all fields that differ and must not."""
    ours, theirs = _common_fields(a), _common_fields(b)
    paths = [path for path in dict.fromkeys([*ours, *theirs]) if ours.get(path) != theirs.get(path)]
    problems = tuple(
        Problem(
            path=path,
            must="must be the same for both recipes",
            given=f"{ours.get(path, 'nothing')} in {a.file} and"
            f" {theirs.get(path, 'nothing')} in {b.file}",
            hint=f"`--set {path}=VALUE` applies to both.",
        )
        for path in paths
    )
    if problems:
        raise ConfigError("Times compare within one workload and device only.", problems=problems)


def _common_fields(file: RecipeFile) -> Mapping[str, Any]:
    """Returns the fields that two recipes must have in common, by path."""
    # Where the data lies may differ: `_prepare_both` compares its hash.
    fields = flatten({"workload": file.workload.model_dump(mode="json")})
    for location in file.workload.dataset.location_fields:
        fields.pop(f"workload.dataset.{location}", None)
    device = resolve_device(file.run.device)
    # `cuda` and `cuda:0` are one device.
    name = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    threads = {"run.cpu_threads": cpu_threads(file)} if device.type == "cpu" else {}
    return {**fields, "run.device": name, **threads}


def _prepare_both(
    a: RecipeFile,
    b: RecipeFile,
    *,
    download: bool,
    on_progress: Callable[[int, int], None],
) -> str:
    """Returns the hash of both recipes' data. Raises: ConfigError if they differ; DataError."""
    hashes = [
        prepare(file.workload.dataset, download=download, on_progress=on_progress).data_hash
        for file in (a, b)
    ]
    if hashes[0] != hashes[1]:
        problem = Problem(
            path="workload.dataset",
            must="must hold the same images and labels for both recipes",
            given=f"data {hashes[0]} in {a.file} and {hashes[1]} in {b.file}",
        )
        raise ConfigError(problems=(problem,))
    return hashes[0]


def slope_of(a: TrialRecord, b: TrialRecord) -> Slope | None:
    """Returns the gain per ln(length), where the recipes differ in nothing but their epochs.

    It is above 0 where the target's metric gets better with length, be it more or less of it.
    """
    recipes = [{k: v for k, v in record.recipe.items() if k != "epochs"} for record in (a, b)]
    if recipes[0] != recipes[1]:
        return None
    target = target_of(a.workload)
    points = [
        (run.final.epoch, goodness(metric, target))
        for run in [*a.runs, *b.runs]
        if run.final is not None and run.status in WHOLE
        if (metric := run.final.value(target.metric)) is not None
    ]
    return estimate_slope(points)


def duel_dict(duel: Duel) -> dict[str, Any]:
    """Returns both records with their statistics, and the verdict; None for what is missing."""
    slope = slope_of(duel.a, duel.b) if duel.a and duel.b else None
    sides = {"a": duel.a, "b": duel.b}
    described = {side: record and runs_dict(record, slope=slope) for side, record in sides.items()}
    verdict = _verdict_of(duel)
    return {**described, "comparison": verdict and verdict.model_dump(mode="json")}


def duel_text(duel: Duel, *, a: str, b: str) -> str:
    """Returns both summaries and the verdict in words; `a` and `b` name the recipes."""
    slope = slope_of(duel.a, duel.b) if duel.a and duel.b else None
    sides = (("A", a, duel.a), ("B", b, duel.b))
    parts = [
        runs_text(record, name=f"{side} = {name}", slope=slope)
        for side, name, record in sides
        if record is not None
    ]
    verdict = _verdict_of(duel)
    if verdict is not None:
        by = "" if verdict.faster is None else f"\n  by {verdict.method}; in turns A B, B A"
        parts.append(f"{verdict.statement}{by}")
    return "\n\n".join(parts)


def _verdict_of(duel: Duel) -> Verdict | None:
    if duel.a is None or duel.b is None or not common_seeds(duel.a, duel.b):
        return None
    return judge(duel.a, duel.b)

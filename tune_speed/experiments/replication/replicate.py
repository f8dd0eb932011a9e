"""An experiment of a source document, run again: its ablations, then the paper's figures."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.redact import redact
from tune_speed.experiments.ablation.ablate import Ablation, run_ablation
from tune_speed.experiments.ablation.design import AND, arms_of, read_axes
from tune_speed.experiments.ablation.plan import AblationPlan, plan_ablation
from tune_speed.experiments.ablation.result import AblationResult
from tune_speed.experiments.replication.agreement import CheckRow, Outcome, agreements, claim_path
from tune_speed.experiments.replication.checks import run_checks
from tune_speed.experiments.replication.figures import paper_figure
from tune_speed.experiments.replication.shipped import FULL, find, plan, scale_of
from tune_speed.runtime.atomic_file import replace_text
from tune_speed.runtime.device import resolve_device
from tune_speed.study.file import RecipeFile, load_recipe
from tune_speed.study.mistake import near_miss
from tune_speed.study.replication import ClaimConfig, ReplicationConfig, ScaleConfig


@dataclass(frozen=True, kw_only=True)
class ReplicationPlan:
    """What a replication runs in a profile."""

    name: str
    profile: str
    replication: ReplicationConfig
    scale: ScaleConfig | None
    file: RecipeFile
    parts: Mapping[str, AblationPlan]
    """Ablations by part; `""` where there are no parts; none where only questions are answered."""
    overrides: tuple[str, ...] = ()


class Replication(NamedTuple):
    """What was run."""

    outcome: Outcome
    ablations: tuple[Ablation, ...]
    was_stopped: bool


def plan_replication(
    name: str, *, profile: str, overrides: Sequence[str], check_data: bool
) -> ReplicationPlan:
    """Takes a replication's name, its experiment's number, or its file.

    Raises: ConfigError with every mistake of the file and of arms.
    """
    path = find(name)
    tree = load_recipe(path, check_data=False).tree
    if tree.get("replication") is None:
        must = "must be given in the file of a replication"
        hint = f"For any other recipe: `tune-speed ablate {path}`."
        raise ConfigError.of("replication", must, hint=hint, file=str(path))
    replication = ReplicationConfig.model_validate(tree["replication"])
    # In the profile `full`, whichever is run: smaller ones leave arms out, and claims then say so.
    check_claims(replication.claims, arms_in_full(path))
    given = [override for override in overrides if override.startswith("ablate.")]
    if given and tree.get("ablate") is None:
        must = "must be left out: this replication trains nothing"
        raise ConfigError.of(given[0], must, file=str(path))
    study = f"study=replication-{path.stem}-{profile}"
    parts = {part.name: [study, *part.overrides, *overrides] for part in plan(tree, profile)}
    first = load_recipe(path, overrides=next(iter(parts.values())), check_data=check_data)
    plans = {
        part: plan_ablation(str(path), overrides=given, check_data=check_data)
        for part, given in parts.items()
        if first.ablate is not None
    }
    scale = scale_of(tree, profile)
    return ReplicationPlan(
        name=path.stem,
        profile=profile,
        replication=replication,
        scale=ScaleConfig.model_validate(scale) if scale else None,
        file=first,
        parts=plans,
        overrides=tuple(overrides),
    )


def arms_in_full(path: Path) -> dict[str, tuple[str, ...]]:
    """Raises: ConfigError with every mistake of the file."""
    found: dict[str, tuple[str, ...]] = {}
    for part in plan(load_recipe(path, check_data=False).tree, FULL):
        ablate = load_recipe(path, overrides=part.overrides, check_data=False).ablate
        arms = arms_of(read_axes(ablate.axes), ablate.design) if ablate else ()
        found[part.name] = tuple(arm.name for arm in arms)
    return found


def check_claims(claims: Sequence[ClaimConfig], arms: Mapping[str, Sequence[str]]) -> None:
    """Raises: ConfigError with every claim that lacks its figure, its part or its arm."""
    problems: list[Problem] = []
    for position, claim in enumerate(claims):
        problems += _place_problems(claim, arms, claim_path(position))
        try:
            paper_figure(claim, path=claim_path(position))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems=tuple(problems))


def _place_problems(
    claim: ClaimConfig, arms: Mapping[str, Sequence[str]], path: str
) -> Iterator[Problem]:
    ours = claim.ours
    # Below, arms are compared as sets of labels: their order is of no account, see `find_arm`.
    if ours.part not in arms:
        must = f"must be one of the parts: {', '.join(arms)}"
        hint = near_miss(ours.part, arms)
        yield Problem(path=f"{path}.ours.part", must=must, given=f"`{ours.part}`", hint=hint)
    elif set(ours.arm.split(AND)) not in [set(arm.split(AND)) for arm in arms[ours.part]]:
        hint = near_miss(ours.arm, arms[ours.part]) or f"There are {', '.join(arms[ours.part])}."
        yield Problem(path=f"{path}.ours.arm", must="must be an arm", given=ours.arm, hint=hint)


def run_replication(
    plan: ReplicationPlan,
    *,
    folder: Path,
    again: bool = False,
    download: bool,
    on_progress: Callable[[int, int], None],
    on_line: Callable[[str], None],
) -> Replication:
    """Raises: ConfigError, DataError, StorageError."""
    checks = run_checks(plan.replication.checks, resolve_device(plan.file.run.device))
    done: dict[str, Ablation] = {}
    for part, ablation_plan in plan.parts.items():
        done[part] = run_ablation(
            ablation_plan,
            folder=folder,
            part=part,
            again=again,
            download=download,
            on_progress=on_progress,
            on_line=on_line,
        )
        if done[part].was_stopped:
            break
    found = outcome(plan, {part: ablation.result for part, ablation in done.items()}, checks)
    was_stopped = any(ablation.was_stopped for ablation in done.values())
    return Replication(found, tuple(done.values()), was_stopped)


def outcome(
    plan: ReplicationPlan, results: Mapping[str, AblationResult], checks: Sequence[CheckRow] = ()
) -> Outcome:
    """Raises: ConfigError for a claim whose published figure cannot be found."""
    found, replication = list(results.values()), plan.replication
    to_come = plan.parts.keys() - results.keys()
    return Outcome(
        name=plan.name,
        items=tuple(replication.items),
        title=replication.title,
        question=replication.question,
        profile=plan.profile,
        about=plan.scale.about if plan.scale else "",
        # The outcome is written to disk, and what the user gave may hold a secret.
        overrides=tuple(map(redact, plan.overrides)),
        devices=tuple(dict.fromkeys(result.device for result in found if result.device)),
        seeds=tuple(sorted({result.seeds for result in found})),
        done_runs=sum(result.done_runs for result in found),
        planned_runs=sum(result.planned_runs for result in found),
        rows=agreements(replication.claims, results, profile=plan.profile, to_come=to_come),
        checks=tuple(checks),
        caveats=tuple(replication.caveats),
    )


def save_outcome(found: Outcome, *, folder: Path, study: str) -> Path:
    path = folder / study / "replication.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(found.model_dump(mode="json"), indent=2, allow_nan=False))
    return path

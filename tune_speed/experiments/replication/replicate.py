"""An experiment of a source document, run again: its ablations, then the paper's figures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.records import Record
from tune_speed.core.redact import redact
from tune_speed.experiments.ablation.design import AND, arms_of, read_axes
from tune_speed.experiments.ablation.plan import AblationPlan, overrides_of, plan_ablation
from tune_speed.experiments.ablation.result import AblationResult
from tune_speed.experiments.replication.agreement import Agreement, agreements
from tune_speed.experiments.replication.checks import CheckRow, run_checks
from tune_speed.experiments.replication.shipped import FULL, Sections, find, sections
from tune_speed.runtime.atomic_file import replace_text
from tune_speed.runtime.device import resolve_device
from tune_speed.study.file import RecipeFile, load_recipe
from tune_speed.study.mistake import near_miss
from tune_speed.study.replication import ReplicationConfig


class Outcome(Record):
    """The published figures of an experiment next to ours."""

    name: str
    items: tuple[int, ...]
    """Numbers of the experiment on the sheet of the source documents."""
    title: str
    question: str
    profile: str
    about: str
    """What is smaller than in the source, in one sentence."""
    overrides: tuple[str, ...] = ()
    devices: tuple[str, ...]
    seeds: tuple[int, ...]
    done_runs: int
    planned_runs: int
    rows: tuple[Agreement, ...]
    checks: tuple[CheckRow, ...]
    caveats: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReplicationPlan:
    """What a replication runs in a profile."""

    name: str
    profile: str
    replication: ReplicationConfig
    about: str
    file: RecipeFile
    parts: Mapping[str, AblationPlan]
    """Ablations by part; `""` where there are no parts; none where only questions are answered."""
    overrides: tuple[str, ...] = ()


def plan_replication(
    name: str, *, profile: str, overrides: Sequence[str], check_data: bool
) -> ReplicationPlan:
    """Takes a replication's name, its experiment's number, or its file.

    Raises: ConfigError with every mistake of the file and of arms.
    """
    path = find(name)
    # For its errors alone, which have their lines.
    load_recipe(path, check_data=False)
    replication, scales = found = sections(path)
    check_claims(path, found)
    study = f"study=replication-{path.stem}-{profile}"
    given = {part: [study, *own, *overrides] for part, own in parts_of(found, profile).items()}
    first = load_recipe(path, overrides=next(iter(given.values())), check_data=check_data)
    plans = {
        part: plan_ablation(str(path), overrides=own, check_data=check_data)
        for part, own in given.items()
        if first.ablate is not None
    }
    return ReplicationPlan(
        name=path.stem,
        profile=profile,
        replication=replication,
        about=scales[profile].about,
        file=first,
        parts=plans,
        overrides=tuple(overrides),
    )


def parts_of(sections: Sections, profile: str) -> dict[str, list[str]]:
    """Returns a profile's ablations by name, and what each changes, as `--set` takes it.

    The profile's own values come first and the part's after them, so that the part's win. The
    profile's parts replace the file's; `""` is the only part of a file without.

    Raises: ConfigError if the file has no such profile.
    """
    replication, scales = sections
    if profile not in scales:
        must = f"must have the profile; there are {', '.join(scales)}"
        raise ConfigError.of("scale", must, given=profile, hint=near_miss(profile, scales))
    scale = scales[profile]
    parts = replication.parts if scale.parts is None else scale.parts
    return {
        name: overrides_of([*scale.set.items(), *values.items()])
        for name, values in (parts or {"": {}}).items()
    }


def check_claims(path: Path, found: Sections) -> None:
    """Raises: ConfigError with every mistake of the file, or claim whose arm is none of its part's.

    In the profile `full`, whichever is run: smaller ones leave arms out, and claims then say so.
    """
    arms: dict[str, tuple[str, ...]] = {}
    for part, overrides in parts_of(found, FULL).items():
        ablate = load_recipe(path, overrides=overrides, check_data=False).ablate
        own = arms_of(read_axes(ablate.axes), ablate.design) if ablate else ()
        arms[part] = tuple(arm.name for arm in own)
    problems: list[Problem] = []
    for position, claim in enumerate(found[0].claims):
        part, arm = claim.ours.part, claim.ours.arm
        # As sets of labels: their order is of no account, see `find_arm`.
        if set(arm.split(AND)) in [set(own.split(AND)) for own in arms.get(part, ())]:
            continue
        place, given = f"replication.claims[{position}].ours", f"{part}: {arm}"
        hint = near_miss(given, [f"{part}: {arm}" for part, own in arms.items() for arm in own])
        must = "must be a part, and an arm of it"
        problems.append(Problem(path=place, must=must, given=f"`{given}`", hint=hint))
    if problems:
        raise ConfigError(problems=tuple(problems))


def outcome(plan: ReplicationPlan, results: Mapping[str, AblationResult]) -> Outcome:
    """Answers the questions, and compares the claims with the ablations' results by part."""
    found, replication = list(results.values()), plan.replication
    return Outcome(
        **replication.model_dump(include={"items", "title", "question", "caveats"}),
        name=plan.name,
        profile=plan.profile,
        about=plan.about,
        # The outcome is written to disk, and what the user gave may hold a secret.
        overrides=tuple(map(redact, plan.overrides)),
        devices=tuple(dict.fromkeys(result.device for result in found if result.device)),
        seeds=tuple(sorted({result.seeds for result in found})),
        done_runs=sum(result.done_runs for result in found),
        planned_runs=sum(result.planned_runs for result in found),
        rows=agreements(replication.claims, results, profile=plan.profile),
        checks=run_checks(replication.checks, resolve_device(plan.file.run.device)),
    )


def save_outcome(found: Outcome, *, folder: Path, study: str) -> Path:
    path = folder / study / "replication.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(found.model_dump(mode="json"), indent=2, allow_nan=False))
    return path

"""Claims checked before anything runs: each must have its figure, its part and its arm."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.experiments.ablation.axes import AND, read_axes
from tune_speed.experiments.ablation.design import arms_of
from tune_speed.experiments.replication.agreement import claim_path
from tune_speed.experiments.replication.plan import FULL, plan
from tune_speed.experiments.replication.published import paper_figure
from tune_speed.study.file import load_recipe
from tune_speed.study.mistake import near_miss
from tune_speed.study.replication import ClaimConfig


def arms_in_full(path: Path) -> dict[str, tuple[str, ...]]:
    """Returns the names of the arms of each part of a replication, in the profile `full`.

    Those that cannot be run on this device are among them; a part that has no ablation has none.

    Raises: ConfigError with every mistake of the file.
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in plan(load_recipe(path, check_data=False).tree, FULL):
        ablate = load_recipe(path, overrides=part.overrides, check_data=False).ablate
        arms = arms_of(read_axes(ablate.axes), ablate.design) if ablate else ()
        found[part.name] = tuple(arm.name for arm in arms)
    return found


def check_claims(claims: Sequence[ClaimConfig], arms: Mapping[str, Sequence[str]]) -> None:
    """Checks that each claim has its figure, its part and its arm.

    Args:
        claims: Of a replication.
        arms: Names of the arms of each part, in the profile `full`.

    Raises: ConfigError with every mistake.
    """
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

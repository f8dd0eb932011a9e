import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tune_speed.experiments.ablation.plan import plan_ablation
from tune_speed.experiments.replication.agreement import agreements
from tune_speed.experiments.replication.replicate import arms_in_full, check_claims
from tune_speed.experiments.replication.shipped import FULL, plan, shipped_replications
from tune_speed.study.file import load_recipe
from tune_speed.study.replication import ReplicationConfig, ScaleConfig

FILES = shipped_replications()
EXPERIMENTS = range(100, 120)
DATA = "../shared/data/"
"""Where the profile `cpu` finds CIFAR-10's JPEG copies: the one place that is not the user's."""
ABSOLUTE = re.compile(r"""(?:^|[\s"'(\[{=:,`])(?:~|[A-Za-z]:\\|/)[\w.-]*/[\w./-]*""", re.M)
SENTENCE = re.compile(r"[^a-z].*[^\s.?][.?]", re.S)


@functools.cache
def tree_of(name: str) -> dict[str, Any]:
    return dict(load_recipe(FILES[name], check_data=False).tree)


def replication_of(name: str) -> ReplicationConfig:
    return ReplicationConfig.model_validate(tree_of(name)["replication"])


def texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from (str(key), *texts(value))
    elif isinstance(tree, list):
        for value in tree:
            yield from texts(value)
    elif isinstance(tree, str):
        yield tree


@pytest.mark.parametrize("name", FILES)
def test_every_part_of_every_profile_has_arms_that_are_recipes(name):
    for profile in (FULL, *tree_of(name)["scale"]):
        for part in plan(tree_of(name), profile):
            arms = arms_of_part(FILES[name], part.overrides)
            assert len(arms) > 1 or not replication_of(name).claims, (profile, part.name)


def arms_of_part(path: Path, overrides: Sequence[str]) -> list[str]:
    """Returns all arms of a part, those that cannot be run here too; none without an ablation."""
    if load_recipe(path, overrides=overrides, check_data=False).ablate is None:
        return []
    planned = plan_ablation(str(path), overrides=overrides, check_data=False)
    return [arm.name for arm in (*planned.arms, *planned.absent)]


@pytest.mark.parametrize("name", FILES)
def test_every_claim_has_its_figure_and_an_arm_in_full(name):
    claims = replication_of(name).claims
    check_claims(claims, arms_in_full(FILES[name]))
    assert all(row.source.strip() for row in agreements(claims, {}, profile=FULL))


@pytest.mark.parametrize("name", FILES)
def test_every_file_runs_on_a_cpu_and_says_what_is_smaller(name):
    scale = ScaleConfig.model_validate(tree_of(name)["scale"]["cpu"])
    assert SENTENCE.fullmatch(scale.about)


@pytest.mark.parametrize("name", FILES)
def test_questions_and_caveats_are_sentences(name):
    replication = replication_of(name)
    assert replication.question.endswith("?")
    said = (replication.title, *replication.caveats)
    assert [text for text in said if not SENTENCE.fullmatch(text)] == []


@pytest.mark.parametrize("name", FILES)
def test_files_name_no_place_of_a_machine(name):
    text = FILES[name].read_text()
    assert ABSOLUTE.findall(text) == []
    above = [each for each in texts(tree_of(name)) if ".." in each and not each.startswith(DATA)]
    assert above == []


@pytest.mark.parametrize("name", FILES)
def test_command_at_the_top_is_the_files_own(name):
    head = FILES[name].read_text().partition("\nstudy:")[0]
    commands = re.findall(r"tune-speed replicate (\S+)", head)
    assert commands and set(commands) == {name}
    assert tree_of(name)["study"] == name


def test_together_they_have_every_experiment():
    items = {item for name in FILES for item in replication_of(name).items}
    assert [item for item in EXPERIMENTS if item not in items] == []


def test_places_of_a_machine_are_told_from_words():
    for text in ("root: /data/x", "# in ~/data", "'/a/b'", "C:\\x/y", "a=/b/c"):
        assert ABSOLUTE.search(text), text
    for text in ("root: data", f"train: {DATA}x.parquet", "1/2", "S0 / S1", "and/or", "a/b/c"):
        assert not ABSOLUTE.search(text), text

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tune_speed.experiments.ablation.plan import plan_ablation
from tune_speed.experiments.published.published import PublishedFigure, published_figures
from tune_speed.experiments.replication.replicate import check_claims, parts_of
from tune_speed.experiments.replication.shipped import (
    Sections,
    replication_listing,
    sections,
    shipped_replications,
)
from tune_speed.study.file import load_recipe
from tune_speed.study.replication import NO_EFFECT, ClaimConfig, ReplicationConfig

FILES = shipped_replications()
EXPERIMENTS = range(100, 120)
DATA = "../shared/data/"
"""Where the profile `cpu` finds CIFAR-10's JPEG copies: the one place that is not the user's."""
ABSOLUTE = re.compile(r"""(?:^|[\s"'(\[{=:,`])(?:~|[A-Za-z]:\\|/)[\w.-]*/[\w./-]*""", re.M)
SENTENCE = re.compile(r"[^a-z].*[^\s.?][.?]", re.S)


@functools.cache
def tree_of(name: str) -> dict[str, Any]:
    return dict(load_recipe(FILES[name], check_data=False).tree)


@functools.cache
def sections_of(name: str) -> Sections:
    return sections(FILES[name])


def replication_of(name: str) -> ReplicationConfig:
    return sections_of(name)[0]


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
    for profile in sections_of(name)[1]:
        for part, overrides in parts_of(sections_of(name), profile).items():
            arms = arms_of_part(FILES[name], overrides)
            assert len(arms) > 1 or not replication_of(name).claims, (profile, part)


def arms_of_part(path: Path, overrides: Sequence[str]) -> list[str]:
    """Returns all arms of a part, those that cannot be run here too; none without an ablation."""
    if load_recipe(path, overrides=overrides, check_data=False).ablate is None:
        return []
    planned = plan_ablation(str(path), overrides=overrides, check_data=False)
    return [arm.name for arm in (*planned.arms, *planned.absent)]


@pytest.mark.parametrize("name", FILES)
def test_every_claim_has_an_arm_in_full(name):
    check_claims(FILES[name], sections_of(name))


def figures_from(rows: Sequence[PublishedFigure], figure: str) -> Iterator[float]:
    """Yields what can be made of a table's rows: one of them, or two of a metric compared."""
    epochs = {
        (row.model, row.dataset, row.setting): row.number for row in rows if row.metric == "epochs"
    }
    for this in rows:
        if this.number is not None:
            yield this.number
        for base in rows if figure in NO_EFFECT else ():
            t, b = this.number, base.number
            if (this.metric, this.dataset) != (base.metric, base.dataset) or not t or not b:
                continue
            passes = [epochs.get((r.model, r.dataset, r.setting)) or 1 for r in (this, base)]
            ratios = [b / t, (b / passes[1]) / (t / passes[0])]
            gains = [t - b, *(100 * (ratio - 1) for ratio in ratios), 100 * (1 - t / b)]
            yield from gains if NO_EFFECT[figure] == 0 else ratios


def is_published(claim: ClaimConfig) -> bool:
    places = {(f.source, f.table) for f in published_figures()}
    return any(claim.source.startswith(", ".join(place)) for place in places)


CLAIMS = [claim for name in FILES for claim in replication_of(name).claims if is_published(claim)]


def test_figures_of_claims_are_those_that_were_published():
    assert len(CLAIMS) >= 103
    for claim in CLAIMS:
        source, table, *_ = claim.source.split(", ")
        rows = [f for f in published_figures() if (f.source, f.table) == (source, table)]
        found = figures_from(rows, claim.ours.figure)
        assert any(claim.paper == pytest.approx(f, rel=3e-5, abs=1e-6) for f in found), claim


@pytest.mark.parametrize("name", FILES)
def test_every_file_runs_on_a_cpu_and_says_what_is_smaller(name):
    assert SENTENCE.fullmatch(sections_of(name)[1]["cpu"].about)


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
    assert sorted(row["name"] for row in replication_listing()) == sorted(FILES)
    items = {item for name in FILES for item in replication_of(name).items}
    assert [item for item in EXPERIMENTS if item not in items] == []

import csv
import io

import pytest
from helpers.experiments.replications import estimate, figure, make_arm, make_claim, make_result
from rich.console import Console

from tune_speed.experiments.replication.agreement import Agreement
from tune_speed.experiments.replication.replicate import ReplicationPlan, outcome
from tune_speed.experiments.replication.table import (
    as_renderables,
    circumstances,
    csv_rows,
    markdown,
)
from tune_speed.reporting.table import Table
from tune_speed.study.file import load_recipe
from tune_speed.study.replication import CheckConfig, ReplicationConfig

CHECK = CheckConfig(question="How many?", expected="64", check="samples_per_step")
RECIPE = """\
workload: digits
recipe: {model: resnet20, optimizer: {sgd: {lr: 0.1}}, epochs: 1, batch_size: 8}
"""


@pytest.fixture
def make_plan(tmp_path):
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    file = load_recipe(tmp_path / "tiny.yaml", check_data=False)

    def make(fields, **changes):
        replication = ReplicationConfig(title="All.", question="Is it so?", **fields)
        given = {"name": "n", "profile": "full", "about": "As is.", "file": file, "parts": {}}
        return ReplicationPlan(replication=replication, **{**given, **changes})

    return make


@pytest.fixture
def make_outcome(make_plan):
    claims = [
        make_claim(defects=["minutes printed as hours"]),
        make_claim("accuracy", paper=93.0, says="As accurate."),
        make_claim(paper=None, source="S0 has none", says="Alone."),
        make_claim(arm="loader.pin_memory=true", says="Pinned memory.", defects=["hours"]),
    ]
    fields = {"items": [105, 100], "claims": claims, "checks": [CHECK], "caveats": ["Once only."]}
    pinned = make_arm("loader.pin_memory=true", not_applicable="there is no GPU")
    arm = make_arm(speed_up=estimate(1.3, 1.2, 1.4), accuracy=figure(0.9))
    results = {"": make_result(arm, pinned, seeds=2, done_runs=8)}
    about = {"name": "s0_factorial", "profile": "cpu", "about": "1,000 images of 8 by 8 pixels."}
    return lambda **changes: outcome(make_plan(fields, **about, **changes), results)


def text_of(found, width=120):
    console = Console(width=width, file=io.StringIO(), record=True)
    for part in as_renderables(found):
        console.print(part)
    return "\n".join(map(str.rstrip, console.export_text().splitlines()))


def widest(found):
    fields = found.rows[0].model_dump() | {
        "source": "Nokhwal et al. 2023, Table I, with techniques", "part": "cifar10",
        "caveats": ("One.", "Two."),
    }  # fmt: skip
    gain = {"unit": "points", "ratio": None, "paper": -0.2, "ours": -1.85, "low": -12.13}
    none = {"agrees": "not applicable here", "ours": None, "low": None, "high": None, "n": 0}
    rows = [
        {"claim": "Accumulation, AMP and pinned memory together take 1.05 hours, not 1.8."},
        {"claim": "It costs.", **gain, "high": 12.13, "n": 20, "agrees": "not decided"},
        {"claim": "Pinned.", **none},
    ]
    made = tuple(Agreement.model_validate({**fields, **row}) for row in rows)
    return found.model_copy(update={"rows": made})


@pytest.mark.parametrize("width", [80, 120])
def test_claims_have_the_room_and_no_figure_is_lost(make_outcome, width, kept_text):
    text = text_of(widest(make_outcome()), width=width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    kept_text(text)


def test_outcome_is_shown_with_what_was_run_and_caveats_by_number(make_outcome, kept_text):
    kept_text(markdown(make_outcome()))


def test_what_the_user_changed_is_said_and_no_password(make_outcome):
    found = make_outcome(overrides=["epochs=1", "tracking.uri=https://me:secret@host/"])
    said = circumstances(found)
    assert "pixels. Changed with --set epochs=1, tracking.uri=https://me:***@host/. 8 of" in said
    assert "--set" not in circumstances(make_outcome())


def test_csv_rows_have_the_same_fields_and_exact_figures(make_outcome):
    rows = csv_rows(make_outcome())
    read = list(csv.DictReader(io.StringIO(Table.of_rows(rows).csv())))
    assert [row["agrees"] for row in read] == [
        "in direction", "another scale", "no figure", "not applicable here", "yes",
    ]  # fmt: skip
    assert read[0]["profile"] == "cpu" and float(read[0]["ratio"]) == 1.3 / 1.87
    assert (read[4]["check"], read[4]["answer"], read[4]["paper"]) == ("samples_per_step", "64", "")


def test_names_of_strangers_neither_mark_up_nor_steer(make_plan):
    plan = make_plan({"claims": [make_claim(says="[red]x[/red] | \x1b[2J")]})
    found = outcome(plan, {"": make_result(make_arm())})
    assert "[red]x[/red]" in text_of(found) and "\x1b" not in text_of(found)
    assert "\\[red\\]x\\[/red\\] \\" in markdown(found)


def test_checks_alone_need_no_ablation(make_plan):
    found = outcome(make_plan({"items": [107], "checks": [CHECK]}), {})
    assert text_of(found).splitlines()[1].strip() == "Profile full: As is."
    assert "How many?" in text_of(found) and "claim" not in text_of(found)

import csv
import io

import pytest
from helpers.experiments.replications import estimate, figure, make_arm, make_claim, make_result
from rich.console import Console

from tune_speed.experiments.replication.agreement import Agreement, CheckRow, Outcome
from tune_speed.experiments.replication.replicate import ReplicationPlan, outcome
from tune_speed.experiments.replication.table import (
    as_renderables,
    circumstances,
    csv_rows,
    markdown,
)
from tune_speed.reporting.table import Table
from tune_speed.study.replication import ReplicationConfig, ScaleConfig

CHECK = CheckRow(
    check="effective_batch", question="How many?", expected="64", ours="64", agrees="yes"
)


def make_outcome(**changes):
    claims = [
        make_claim(defect="minutes printed as hours"),
        make_claim("accuracy", paper=93.0, says="As accurate."),
        make_claim(paper=None, source="S0 has none", says="Alone."),
        make_claim(arm="loader.pin_memory=true", says="Pinned memory.", defect="hours"),
    ]
    fields = {"items": [105, 100], "title": "All three.", "question": "Do they halve the time?"}
    replication = ReplicationConfig(**fields, claims=claims, caveats=["No run was repeated there."])
    pinned = make_arm("loader.pin_memory=true", not_applicable="there is no GPU")
    arm = make_arm(speed_up=estimate(1.3, 1.2, 1.4), accuracy=figure(0.9))
    scale = ScaleConfig(about="1,000 images of 8 by 8 pixels.")
    given = {"name": "s0_factorial", "profile": "cpu", "scale": scale, **changes}
    results = {"": make_result(arm, pinned, seeds=2, done_runs=8)}
    return outcome(make_plan(replication, **given), results, (CHECK,))


def make_plan(replication, **fields):
    given = {"name": "n", "profile": "full", "scale": None, "file": None, "parts": {}}
    return ReplicationPlan(replication=replication, **{**given, **fields})


def text_of(found, width=120):
    console = Console(width=width, file=io.StringIO(), record=True)
    for part in as_renderables(found):
        console.print(part)
    return "\n".join(map(str.rstrip, console.export_text().splitlines()))


def make_row(says, **changes):
    fields = {
        "claim": says, "source": "Nokhwal et al. 2023, Table I, with techniques", "part": "cifar10",
        "arm": "a=1", "figure": "speed_up", "unit": "×", "paper": 1.87, "ours": 1.3, "low": 1.2,
        "high": 1.4, "n": 5, "ratio": 0.7, "agrees": "in direction", "caveats": ("One.", "Two."),
    }  # fmt: skip
    return Agreement.model_validate({**fields, **changes})


def widest_outcome():
    gain = {"figure": "accuracy_gain", "unit": "points", "ratio": None, "agrees": "not decided"}
    score = {"figure": "accuracy", "unit": "%", "agrees": "another scale"}
    rows = (
        make_row("Accumulation, AMP and pinned memory together take 1.05 hours, not 1.8."),
        make_row("It costs.", **gain, paper=-0.2, ours=-1.85, low=-12.13, high=12.13, n=20),
        make_row("So many.", **score, paper=98.0, ours=90.0, low=88.0, high=92.0),
        make_row("Pinned.", agrees="not applicable here", ours=None, low=None, high=None, n=0),
    )
    return make_outcome().model_copy(update={"rows": rows})


@pytest.mark.parametrize("width", [40, 80, 100, 130, 200])
def test_claims_have_the_room_and_no_figure_is_lost(width, kept_text):
    text = text_of(widest_outcome(), width=width)
    assert "…" not in text and (width < 80 or max(map(len, text.splitlines())) <= width)
    kept_text(text)


def test_outcome_is_shown_with_what_was_run_and_caveats_by_number(kept_text):
    kept_text(text_of(make_outcome(), width=140))
    kept_text(markdown(make_outcome()), "markdown")


def test_what_the_user_changed_is_said_and_no_password():
    found = make_outcome(overrides=["epochs=1", "tracking.uri=https://me:secret@host/"])
    said = circumstances(found)
    assert "pixels. Changed with --set epochs=1, tracking.uri=https://me:***@host/. 8 of" in said
    assert "--set" not in circumstances(make_outcome())


def test_csv_rows_have_the_same_fields_and_exact_figures():
    rows = csv_rows(make_outcome())
    read = list(csv.DictReader(io.StringIO(Table.of_rows(rows).csv())))
    assert [row["agrees"] for row in read] == [
        "in direction", "another scale", "no figure", "not applicable here", "yes",
    ]  # fmt: skip
    assert read[0]["profile"] == "cpu" and float(read[0]["ratio"]) == 1.3 / 1.87
    assert (read[4]["check"], read[4]["answer"], read[4]["paper"]) == ("effective_batch", "64", "")


def test_names_of_strangers_neither_mark_up_nor_steer():
    claims = [make_claim(says="[red]x[/red] | \x1b[2J")]
    replication = ReplicationConfig(title="T.", question="Q?", claims=claims)
    found = outcome(make_plan(replication), {"": make_result(make_arm())})
    assert "[red]x[/red]" in text_of(found) and "\x1b" not in text_of(found)
    assert "\\[red\\]x\\[/red\\] \\" in markdown(found)


def test_checks_alone_need_no_ablation():
    replication = ReplicationConfig(items=[107], title="T.", question="Q?", checks=["pinned_copy"])
    found = outcome(make_plan(replication), {}, (CHECK,))
    assert text_of(found).splitlines()[1].strip() == "Profile full."
    assert "How many?" in text_of(found) and "claim" not in text_of(found)


def test_outcome_is_written_and_read_back():
    found = make_outcome()
    assert Outcome.model_validate_json(found.model_dump_json()) == found

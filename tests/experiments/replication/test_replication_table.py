import csv
import io

import pytest
from helpers.experiments.replications import estimate, figure, make_arm, make_claim, make_result
from rich.console import Console

from tune_speed.experiments.replication.agreement import Agreement, CheckRow, Outcome
from tune_speed.experiments.replication.replicate import outcome
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
    given = {
        "name": "s0_factorial",
        "profile": "cpu",
        "scale": ScaleConfig(about="1,000 images of 8 by 8 pixels."),
        "checks": (CHECK,),
    }
    results = {"": make_result(arm, pinned, seeds=2, done_runs=8)}
    return outcome(replication, results, **{**given, **changes})


def text_of(found, width=120):
    console = Console(width=width, file=io.StringIO(), record=True)
    for part in as_renderables(found):
        console.print(part)
    return console.export_text()


def make_row(says, **changes):
    fields = {
        "claim": says, "source": "Nokhwal et al. 2023, Table I, with techniques", "part": "cifar10",
        "arm": "a=1", "figure": "speed_up", "unit": "×", "paper": 1.87, "ours": 1.3, "low": 1.2,
        "high": 1.4, "n": 5, "ratio": 0.7, "agrees": "in direction", "caveats": ("One.", "Two."),
    }  # fmt: skip
    return Agreement.model_validate({**fields, **changes})


def widest_outcome():
    """Returns rows with the longest cells that there are."""
    gain = {"figure": "accuracy_gain", "unit": "points", "ratio": None, "agrees": "not decided"}
    score = {"figure": "accuracy", "unit": "%", "agrees": "another scale"}
    rows = (
        make_row("Accumulation, AMP and pinned memory together take 1.05 hours, not 1.8."),
        make_row("It costs.", **gain, paper=-0.2, ours=-1.85, low=-12.13, high=12.13, n=20),
        make_row("So many.", **score, paper=98.0, ours=90.0, low=88.0, high=92.0),
        make_row("Pinned.", agrees="not applicable here", ours=None, low=None, high=None, n=0),
    )
    return make_outcome().model_copy(update={"rows": rows})


def words_of(lines, start, stop):
    return " ".join(" ".join(line[start:stop] for line in lines).split())


def test_table_has_both_figures_and_says_whether_they_agree():
    lines = [line.split() for line in text_of(make_outcome(), width=140).splitlines()]
    row = next(line for line in lines if "1.87×" in line and "1.30×" in line)
    at = row.index("1.87×")
    assert row[:at][-3:] == ["Table", "I)", "[1]"]
    assert row[at:] == ["1.87×", "1.30×", "(1.20–1.40)", "5", "0.70", "in", "direction"]
    assert any(line[-3:] == ["not", "applicable", "here"] for line in lines)


def test_above_the_table_is_what_was_run():
    lines = text_of(make_outcome()).splitlines()
    assert lines[0].strip() == ("s0_factorial (items 105, 100): All three. Do they halve the time?")
    assert lines[1].strip() == (
        "Profile cpu: 1,000 images of 8 by 8 pixels. 8 of 10 runs on cpu (2 threads, AMD EPYC), 2"
        " runs an arm."
    )


def test_caveats_stand_below_by_number_and_the_experiments_own_last():
    lines = [line.strip() for line in text_of(make_outcome()).splitlines()]
    assert lines.index("[1] Minutes printed as hours.") < lines.index(
        "[2] Profile `cpu` is another scale."
    )
    assert [line for line in lines if line][-1] == "No run was repeated there."


@pytest.mark.parametrize(("width", "least"), [(80, 33), (100, 44), (130, 44), (200, 100)])
def test_claims_have_the_room_and_no_line_is_longer_than_the_terminal(width, least):
    text = text_of(widest_outcome(), width=width)
    lines = text.splitlines()
    assert "…" not in text and max(map(len, lines)) <= width
    first = next(i for i, line in enumerate(lines) if line.startswith("claim"))
    body = lines[first + 2 : next(i for i, line in enumerate(lines) if "[1] One." in line)]
    # The first column ends before the widest of the paper's figures.
    begin = min(line.index(cell) for line in body for cell in ("98.00 %", "-0.20") if cell in line)
    assert begin - 2 >= least
    said = words_of(body, 0, begin)
    for claim in (
        "Accumulation, AMP and pinned memory together take 1.05 hours, not 1.8. (cifar10; Nokhwal"
        " et al. 2023, Table I, with techniques) [1] [2]",
        "Pinned. (cifar10; Nokhwal et al. 2023, Table I, with techniques) [1] [2]",
    ):
        assert claim in said


def test_interval_stands_below_its_figure_where_room_is_scarce():
    lines = [line.split() for line in text_of(widest_outcome(), width=100).splitlines()]
    at = next(i for i, line in enumerate(lines) if "1.30×" in line)
    assert "(1.20–1.40)" in lines[at + 1]
    at = next(i for i, line in enumerate(lines) if "-1.85" in line)
    assert lines[at + 1][-2:] == ["(-12.13", "to"] and lines[at + 2][-1] == "12.13)"


@pytest.mark.parametrize("width", [40, 60])
def test_no_figure_is_lost_in_a_very_narrow_terminal(width):
    text = text_of(widest_outcome(), width=width)
    assert "…" not in text
    for cell in ("1.87×", "1.30×", "-1.85", "0.70"):
        assert cell in text


def test_source_without_a_figure_says_so():
    found = make_outcome()
    assert "no figure" in text_of(found, width=140) and "| no figure |" in markdown(found)


def test_what_the_user_changed_is_said_and_no_password():
    found = make_outcome(overrides=["epochs=1", "tracking.uri=https://me:secret@host/"])
    said = circumstances(found)
    assert "pixels. Changed with --set epochs=1, tracking.uri=https://me:***@host/. 8 of" in said
    assert "--set" not in circumstances(make_outcome())


def test_markdown_has_the_same_tables():
    text = markdown(make_outcome())
    assert "| claim | source | paper | ours (95 %) | n | ratio | agrees? | notes |" in text
    assert "| A claim. | S0, Table I | 1.87× | 1.30× (1.20–1.40) | 5 | 0.70 |" in text
    assert "| How many? | 64 | 64 | yes |" in text
    assert "- No run was repeated there." in text


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
    found = outcome(replication, {"": make_result(make_arm())}, name="n")
    assert "[red]x[/red]" in text_of(found) and "\x1b" not in text_of(found)
    assert "\\[red\\]x\\[/red\\] \\" in markdown(found)


def test_checks_alone_need_no_ablation():
    replication = ReplicationConfig(items=[107], title="T.", question="Q?", checks=["pinned_copy"])
    found = outcome(replication, {}, name="answers", checks=(CHECK,))
    assert text_of(found).splitlines()[1].strip() == "Profile full."
    assert "How many?" in text_of(found) and "claim" not in text_of(found)


def test_outcome_is_written_and_read_back():
    found = make_outcome()
    assert Outcome.model_validate_json(found.model_dump_json()) == found

import pytest
from helpers.reporting.figures import make_part, make_trial, sketched

from tune_speed.reporting.figures import bars, facts
from tune_speed.reporting.figures.bars import IMPORTANCE
from tune_speed.reporting.figures.canvas import LIGHT
from tune_speed.reporting.importance import Importance, ParamImportance
from tune_speed.reporting.study.view import StudyPart


def answer(*values: float, why_none: str | None = None) -> Importance:
    params = tuple(
        ParamImportance(name=f"group.p{i}", value=v, low=v / 2, high=min(1.0, 2 * v))
        for i, v in enumerate(values)
    )
    return Importance(
        question="steps",
        title="Steps to the target",
        n=12,
        why_none=why_none,
        explained=0.5 if values else None,
        params=params,
    )


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> StudyPart:
    monkeypatch.setattr(facts, "_LATEST", [])
    return make_part(make_trial(params={"group.p0": 1, "group.p1": 2}))


def give(monkeypatch: pytest.MonkeyPatch, *answers: Importance) -> None:
    monkeypatch.setattr(facts, "importance", lambda records: answers)


def test_bars_have_the_values_and_lines_the_bands(
    part: StudyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, answer(0.1, 0.4), answer(why_none="too few"))
    sketch = sketched(IMPORTANCE, part)
    panel = sketch.canvas.panels[0]
    assert [bar.get_width() for bar in panel.patches] == pytest.approx([0.4, 0.1])
    assert [label.get_text() for label in panel.get_yticklabels()] == ["p1", "p0"]
    (bands,) = panel.collections
    spans = [tuple(path.vertices[:, 0]) for path in bands.get_paths()]
    assert spans == [pytest.approx((0.2, 0.8)), pytest.approx((0.05, 0.2))]


def test_name_is_told_from_those_that_have_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_LATEST", [])
    give(monkeypatch, answer(0.4))
    part = make_part(make_trial(params={"group.p0": 1, "other.p0": 2}))
    sketch = sketched(IMPORTANCE, part)
    assert [t.get_text() for t in sketch.canvas.panels[0].get_yticklabels()] == ["group.p0"]


def test_question_without_an_answer_says_why(
    part: StudyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, answer(0.4), answer(why_none="it takes 8 trials, and there are 3"))
    sketch = sketched(IMPORTANCE, part)
    texts = " ".join(text.get_text() for text in sketch.canvas.panels[1].texts)
    assert "It takes 8 trials, and there are 3." in texts
    assert "It takes 8 trials, and there are 3." in sketch.alt
    assert "p0 0.4 (0.2–0.8)" in sketch.alt


def test_no_answer_at_all_draws_nothing(part: StudyPart, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, answer(why_none="too few"), answer(why_none="too few"))
    assert bars.draw(part, LIGHT) is None


def test_names_are_as_short_as_they_can_be_told_apart() -> None:
    names = ["optimizer.sgd.lr", "optimizer.adamw.lr", "batch_size", "optimizer.sgd.momentum"]
    short = facts.names_in_width(names, 21)
    assert list(short.values()) == ["sgd.lr", "adamw.lr", "batch_size", "momentum"]
    assert facts.names_in_width(["a.b", "b"], 9) == {"a.b": "a.b", "b": "b"}


def test_forests_are_asked_once_for_a_part(
    part: StudyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(facts, "importance", lambda records: asked.append(1) or ())
    facts.importances_of(part)
    facts.importances_of(part)
    facts.importances_of(make_part(make_trial("t9")))
    assert len(asked) == 2


def test_parameters_come_by_their_weight_over_all_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts, "_LATEST", [])
    give(monkeypatch, answer(0.3, 0.1), answer(0.1, 0.4))
    params = {"group.p0": 1, "other": 2, "group.p1": 3}
    assert facts.names_by_weight(make_part(make_trial(params=params))) == [
        "group.p1",
        "group.p0",
        "other",
    ]

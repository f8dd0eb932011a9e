import json

import pytest
from pydantic import ValidationError

from tune_speed.core.records import RunResult, Status
from tune_speed.core.words import (
    IN_WORDS,
    Device,
    Note,
    NoteKind,
    ProposalKind,
    ProposalReason,
    Said,
    StopKind,
    StopReason,
    joined,
)

STOPS = {
    "": "none",
    "the driver said so": "other",
    "target met: accuracy 0.5100 ≥ 0.5": "target_met",
    "target met: log_loss 0.2500 ≤ 0.3, 0.20 s of training before its end": "target_met",
    "ended in time: accuracy 0.9000": "ended_in_time",
    "the run ended with accuracy 0.1900, target 0.999": "ended_below",
    "the run ended with accuracy 0.4000 not ≥ 0.5": "ended_below",
    "the run ended with accuracy 0.6000 ≥ 0.5, at one evaluation: two in a row must hold it": (
        "ended_below"
    ),
    "the loss is not finite after 1 step": "not_finite",
    "the accuracy is nan after 1,200 steps": "not_a_number",
    "max_train_s = 700 s passed": "time_limit",
    "max_train_s = 4.5 s passed with accuracy 0.2000": "time_limit",
    "max_train_s = 4.5 s passed with accuracy 0.2000 not ≥ 0.3": "time_limit",
    "would take 1,750 s of max_train_s = 650 s": "too_long",
    "out of memory, down to a micro-batch of 1": "out_of_memory",
    "interrupted": "interrupted",
    "its process died: killed\nby a signal": "process_died",
    "its node died, or cannot be reached": "node_died",
    "hung: no step for 8 s": "hung",
    "its process gave no sign of life for 2.5 s": "silent",
    "the search's time budget ended": "budget_over",
    "the search was stopped": "search_stopped",
    "stopped by hand": "by_hand",
    "stopped by hand: request 0a1b2c3d": "by_hand",
    "stopped at 3.0 s: t0001, which is recommended, takes 2.5 s with restarts": "slower",
    "stopped at 3.0 s: it would not end before 9.0 s, and t0001, which is recommended, takes 2.5 s"
    " with restarts": "slower",
    "stopped at 0.3 s: leader t0001 met the target in 0.3 s": "slower",
    "stopped at 4.0 s: the time limit is 3.0 s": "past_limit",
    "stopped at 4.0 s: it would not end before 9.0 s, and the time limit is 8.0 s": "past_limit",
    "stopped at 1.0 s: 5 of 6 trials promised more by 0.9 s": "below_rung",
    "stopped at 4.0 s: below ASHA's cutoff after 1 evaluation": "below_cutoff",
    "stopped at 0.4 s: 2.1% likely to meet the target by 1.1 s": "unlikely",
    "stopped at 1.2 s: it would not end before 1.4 s, leader t0007 met the target in 1.1 s": (
        "slower"
    ),
    "the chance that the rest of the budget finds a recipe better by 5% is 0.9%": "settled",
    "no untried configuration is left": "nothing_left",
    "no untried configuration can beat the leader": "nothing_better",
    "KeyError: 'no such layer'": "error",
}
PROPOSALS = {
    "": "none",
    "arm base, seed 4": "other",
    "a point to evaluate": "point",
    "added by hand: request 0a1b2c3d": "by_hand",
    "the sampler's proposal": "sampler",
    "tpe: the sampler's proposal": "sampler",
    "OptunaSearch's proposal": "optuna_search",
    "proposed in the Optuna study": "observed",
    "start: spread evenly": "start",
    "start: spread evenly, 0.1 s the cheapest of 3": "start",
    "one of the best of study flowers": "related",
    "one of the best of study flowers, which agrees with 6 trials of this one: 0.71": "related",
    "exploration: spread evenly": "exploration",
    "spread evenly: the model sees no chance": "no_chance",
    "spread evenly: tpe has nothing that could win": "nothing_could_win",
    "gain: 7% likely to come nearer the target than any so far": "nearer",
    "gain: 7% likely to meet the target at a cost of 1.2 s, 0.9 s to beat": "gain",
    "gain: 100% likely to meet the target at a cost of 0.1 s, leader 0.1 s": "gain",
    "gain: >99% likely to meet the target at a cost of 0.1 s, 0.1 s to beat": "gain",
    "gain: <1% likely to come nearer the target than any so far": "nearer",
    "gain: 57% likely to end better than any so far at a cost of 1.2 s": "better_end",
    "again: run 2 of t0001's configuration": "again",
    "again: run 3 of t0001's configuration, which met the target in 1 of 2": "again",
}
NOTES = {
    "weights are updated outside of the recorded step": "other",
    "co-tenants cannot be seen or stopped: no locks": "unseen",
    "others came to the device: a/t0001, b/t0002": "others_came",
    "others took its core for 12% of the time": "disturbed",
    "the training function reported its own clock": "reported",
    "re-clocked: 49.2 → 1.2e+03 ms a step, by 1 window": "reclocked",
    "resumed at step 3": "resumed",
    "resumed at step 3 of 8": "resumed",
    "begun anew, as its checkpoint could not be used: it is cut off": "unusable",
    "begun anew: no such place": "begun_again",
    "not saved at step 12: disk full": "not_saved",
    "loader: auto is resident: the pixels take 0.5 GiB, where 40% of the 3 GiB free on the device"
    " may hold them": "loader",
}
EVERY = {StopReason: STOPS, ProposalReason: PROPOSALS, Note: NOTES}
TABLE = [(said, *pair) for said, table in EVERY.items() for pair in table.items()]


@pytest.mark.parametrize(("said", "text", "kind"), TABLE)
def test_sentence_of_an_earlier_version_is_its_kind_and_stays_as_it_was(
    said: type[Said], text: str, kind: str
) -> None:
    read = said.model_validate(text)
    assert (read.kind, str(read)) == (kind, text)
    stored = json.loads(json.dumps(read.model_dump(mode="json")))
    assert stored["kind"] == kind and said.model_validate(stored) == read
    assert read.model_dump(mode="json", context=IN_WORDS) == text


def test_every_kind_is_in_the_tables() -> None:
    for table, kinds in zip(EVERY.values(), (StopKind, ProposalKind, NoteKind), strict=True):
        assert set(table.values()) == set(kinds)


def test_what_may_follow_any_reason_is_figures_of_it() -> None:
    text = "too slow (micro-batch 8 ran out of memory, 4 did not)"
    read = StopReason.model_validate(text)
    assert (read.kind, str(read)) == ("other", text)
    again = StopReason.of(StopKind.NODE_DIED).with_figures(runs_again=1)
    assert str(again) == "its node died, or cannot be reached; it is run again"


def test_request_is_known_by_its_id_whatever_the_sentence() -> None:
    assert ProposalReason.model_validate("added by hand: request 0a1b2c3d").request_id == "0a1b2c3d"
    assert ProposalReason.of(ProposalKind.POINT).request_id is None


def test_error_is_known_by_its_class_and_shown_by_its_first_line() -> None:
    reason = StopReason.of_error(KeyError("no such\nlayer"))
    assert (reason.kind, reason.figures["error"]) == ("error", "KeyError")
    qualified = StopReason.model_validate("torch.cuda.OutOfMemoryError: x")
    assert qualified.figures["error"] == "OutOfMemoryError"


def test_reason_without_a_figure_of_its_sentence_is_none() -> None:
    with pytest.raises(ValidationError, match="quiet_s"):
        StopReason.model_validate({"kind": "hung"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x", 10**400])
def test_figures_of_any_kind_are_shown(value: float) -> None:
    assert str(value) in str(StopReason.of(StopKind.HUNG, quiet_s=value))


def test_notes_that_were_one_text_are_several() -> None:
    text = "; ".join(NOTES)
    run = RunResult.model_validate(
        {"status": "failed", "seed": 0, "stop_reason": "boom", "note": text}
    )
    assert [note.kind for note in run.note] == list(NOTES.values()) and joined(run.note) == text
    assert RunResult.model_validate_json(run.model_dump_json()) == run
    assert run.model_dump(context=IN_WORDS)["note"] == text
    assert RunResult(status=Status.FAILED, seed=0, stop_reason="boom", note="").note == ()


@pytest.mark.parametrize(
    ("name", "fields", "kind"),
    [
        ("cpu (2 threads, Intel(R) Xeon(R))", ("Intel(R) Xeon(R)", 1, 2), "cpu"),
        ("2 x cpu (3 threads, AMD EPYC)", ("AMD EPYC", 2, 3), "cpu"),
        ("cpu", ("cpu", 1, 0), "cpu"),
        ("cpu (EPYC)", ("cpu (EPYC)", 1, 0), "cpu"),
        ("NVIDIA H200", ("NVIDIA H200", 1, None), "cuda"),
        ("4 x NVIDIA H200", ("NVIDIA H200", 4, None), "cuda"),
        ("", ("", 1, None), "cuda"),
    ],
)
def test_device_is_read_from_its_name(
    name: str, fields: tuple[str, int, int | None], kind: str
) -> None:
    device = Device.model_validate(name)
    assert (device.type, device.count, device.threads) == fields
    assert (str(device), device.kind, device.one.count) == (name, kind, 1)
    assert Device.model_validate_json(device.model_dump_json()) == device
    assert device.model_dump(context=IN_WORDS) == name

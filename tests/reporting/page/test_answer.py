from typing import Any

from helpers.making import make_record, make_run
from helpers.reporting.pages import certified, ordinary, trained, viewed

from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.reporting.page.answer import Answer, answer_of


def answer(records: list[TrialRecord], **changes: Any) -> Answer:
    view = viewed(records, **changes)
    (part,) = view.parts
    return answer_of(part, view.boards)


def verified(**verification: object) -> dict[str, Any]:
    return {"certificate": {"verification": {"status": "re-timed", **verification}}}


def test_fastest_estimate_is_the_answer_until_something_is_certified() -> None:
    found = answer(ordinary())
    assert (found.verdict, found.lead, found.figure) == ("estimate", "Fastest known", "0.500 s")
    assert "to accuracy ≥ 0.9 on cpu (1 thread, test)" in found.claim
    assert "12 trials, cost 38 device-seconds" in found.claim  # 2 · 18.85 of ENDS.
    assert "To be sure, certify it" in " ".join(found.sure)
    assert found.winner is not None and found.winner.record.trial_id == "t0000"


def test_certified_winner_is_the_answer_though_an_estimate_is_faster() -> None:
    found = answer([*ordinary(), certified("t0002", 0.7, 0.8, 0.9, misses=1)])
    assert (found.verdict, found.figure) == ("certified", "0.850 s")
    # (0.7 + 0.8 + 0.9 + 3.0) / 3.
    assert "median 0.850 s, 3 of 4 seeds, expected with restarts 1.80 s" in found.claim
    assert "t0000 with 0.500 s, was not certified" in " ".join(found.sure)
    assert found.winner is not None and found.winner.record.kind == "certified"


def test_estimate_that_did_not_hold_is_told() -> None:
    records = [*ordinary(), certified("t0002", 0.7, 0.8), certified("t0000", 0.5, misses=4)]
    assert "did not hold: 1 of 5 fresh seeds" in " ".join(answer(records).sure)


def test_certification_in_which_all_missed_leaves_an_estimate_with_a_warning() -> None:
    found = answer([*ordinary(), certified("t0000", misses=3)])
    assert found.verdict == "estimate"
    assert "none of 1 finalist met the target" in " ".join(found.sure)


def test_winner_that_a_rival_of_another_study_beats_is_not_called_fastest_known() -> None:
    beaten = verified(incumbent="other/t0012", speedup=0.35, p_value=1.0)
    found = answer([certified("t0002", 0.7, 0.8, **beaten)])
    assert found.lead == "Fastest of this study"
    assert "other/t0012 took 35 % of its time" in " ".join(found.sure)


def test_lead_over_a_rival_is_called_chance_unless_its_p_value_is_small() -> None:
    for p_value, words in ((0.2, "which may be chance"), (0.01, "beyond chance")):
        told = verified(incumbent="study/t0001", speedup=1.25, p_value=p_value)
        assert f"1.25 times as fast, {words}" in " ".join(
            answer([certified("t0002", 0.7, 0.8, **told)]).sure
        )


def test_study_that_missed_tells_the_nearest_and_by_how_much() -> None:
    records = [trained(f"t{i:04d}", Status.MISSED, time_s=1.0 + i) for i in range(3)]
    found = answer(records)
    assert (found.verdict, found.figure) == ("missed", "0.8300")
    assert "t0002, 0.0700 below" in found.claim


def test_study_that_only_failed_shows_its_first_traceback() -> None:
    run = RunResult(status=Status.FAILED, seed=0, stop_reason="boom", traceback="Traceback: one")
    records = [make_record(f"t{i:04d}", Status.FAILED, runs=(run,)) for i in range(3)]
    found = answer(records)
    assert (found.verdict, found.traceback) == ("failed", "Traceback: one")
    assert "all 3 trials failed" in found.claim


def test_study_of_certifications_that_missed_has_an_answer_too() -> None:
    found = answer([certified("t0000", misses=2)])
    assert (found.verdict, found.winner) == ("none", None)


def test_target_on_macro_f1_is_judged_by_macro_f1() -> None:
    workload = {**make_record().workload, "target": {"metric": "macro_f1", "value": 0.9}}
    found = answer([trained("t0000", Status.MISSED, time_s=1.0, workload=workload)])
    assert found.figure == f"{0.81 / 2:.4f}"


def test_shared_clock_is_called_an_upper_bound() -> None:
    run = make_run(time_s=0.5)
    assert run.timing.value == "shared"
    assert "upper bound" in " ".join(answer([trained("t0000", runs=(run,))]).sure)

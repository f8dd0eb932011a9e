"""The answer of a part of a study in one sentence, and how far to believe it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tune_speed.core.comparability import fastest, final_goodness, final_metric, sign_of, totals_of
from tune_speed.core.records import CLOCK_WORDS, Recommended, Status
from tune_speed.core.text import chance_text, counted, device_text
from tune_speed.reporting.leaderboard.ranking import Board, Row
from tune_speed.reporting.leaderboard.text import why_not_certified
from tune_speed.reporting.page.words import seconds
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

# A difference with a higher p-value is called chance.
LIKELY = 0.05
BE_SURE = {
    many: f"To be sure, certify it: the {many} again with fresh seeds, alone on the device."
    for many in ("favourites", "fastest run")
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a part of a study found."""

    verdict: str
    """`certified`, `disturbed` (what was certified does not count), `estimate`, `missed`, `failed`
    or `none`."""
    lead: str
    """What the figure is: `Fastest known`."""
    figure: str
    """What is read first, such as `0.812 s`."""
    claim: str
    sure: tuple[str, ...]
    winner: ViewedTrial | None = None
    """Whose recipe to take; where none met the target, who came nearest."""
    traceback: str | None = None
    """Of the first failure, where there is nothing but failures."""


def answer_of(part: StudyPart, boards: Sequence[Board]) -> Answer:
    found = _answer(part, boards)
    found = replace(found, claim=f"{found.claim} – {cost_text(part)}.")
    why_not = why_not_certified(trial.record for trial in part.certified)
    if found.verdict == "certified" or not why_not:
        return found
    sure = [sentence for sentence in found.sure if sentence not in BE_SURE.values()]
    return replace(found, verdict="disturbed", sure=(f"{why_not}.", *sure))


def _answer(part: StudyPart, boards: Sequence[Board]) -> Answer:
    certified, estimate = _first(boards, "certified"), _first(boards, "estimate")
    if part.target.seeks_best and (row := certified or estimate) is not None:
        return _best_in_time(part, row, boards, is_certified=certified is not None)
    if certified is not None:
        return _certified(part, certified, boards)
    if estimate is not None:
        return _estimate(part, estimate, boards)
    with_metric = [trial for trial in part.trials if final_metric(trial.record) is not None]
    if with_metric:
        return _missed(part, max(with_metric, key=lambda t: final_goodness(t.record)))
    return _failed(part) if part.trials else _nothing(part)


def _place(part: StudyPart) -> str:
    return device_text(part.key.device)


def cost_text(part: StudyPart) -> str:
    totals = totals_of(trial.record for trial in (*part.trials, *part.certified))
    found = counted(len(part.trials), "trial")
    again = f" and {counted(len(part.certified), 'certification')}" if part.certified else ""
    return f"{found}{again}, cost {totals.device_s:,.0f} device-seconds"


def _first(boards: Sequence[Board], kind: str) -> Row | None:
    rows = (row for board in boards if board.kind == kind for row in board.rows)
    return next((row for row in rows if row.rank is not None), None)


def _certified(part: StudyPart, row: Row, boards: Sequence[Board]) -> Answer:
    winner = _trial(part.certified, row)
    how = (
        f"certified: median {seconds(row.time_to_target_s)},"
        f" {row.hits} of {counted(row.n, 'seed')}, expected with restarts {seconds(row.expected_s)}"
    )
    rate = f"{chance_text(row.hit_rate_low)} and {chance_text(row.hit_rate_high)}"
    high = "∞" if row.median_high_s is None else seconds(row.median_high_s)
    own = {f"{t.record.study}/{t.record.trial_id}" for t in part.certified}
    is_beaten = row.rival is not None and row.rival not in own and (row.speedup or 1.0) < 1
    sure = (
        f"Certified: trained again with {counted(row.n, 'fresh seed')}, alone on the device, and"
        f" judged on the {winner.record.evaluated_on} part, which the search did not see.",
        f"{row.hits} of {row.n} met the target; the chance to meet it lies between {rate}"
        " (95 % Wilson interval).",
        f"Median {seconds(row.time_to_target_s)}, interval {seconds(row.median_low_s)} to {high};"
        f" with restarts after misses {seconds(row.expected_s)} are to be expected.",
        *_rival(row),
        *_ties(row, boards, "certified"),
        *_luck(part, row, boards),
    )
    return Answer(
        verdict="certified",
        lead="Fastest of this study" if is_beaten else "Fastest known",
        figure=seconds(row.time_to_target_s),
        claim=f"to {part.target.words} on {_place(part)} ({how})",
        sure=sure,
        winner=winner,
    )


def _best_in_time(
    part: StudyPart, row: Row, boards: Sequence[Board], *, is_certified: bool
) -> Answer:
    winner = _trial(part.certified if is_certified else part.trials, row)
    kind = "certified" if is_certified else "estimate"
    metric = row.final_metric if row.mean_metric is None else row.mean_metric
    low, high = row.mean_metric_low, row.mean_metric_high
    ends = "" if low is None or high is None else f" (95 % interval {low:.4f} to {high:.4f})"
    runs = f"{row.hits} of {counted(row.n, 'run')} ended in time, each in"
    how = "certified" if is_certified else "an estimate, not certified"
    sure = (
        f"{runs} {seconds(row.time_to_target_s)} of training, judged on the"
        f" {winner.record.evaluated_on} part{ends}.",
        f"Its time is {CLOCK_WORDS[winner.record.runs[-1].timing]}.",
        *([_gain(row)] if row.metric_gain is not None and row.p_value is not None else []),
        *_ties(row, boards, kind),
        *([] if is_certified else [BE_SURE["favourites"]]),
    )
    return Answer(
        verdict=kind,
        lead="Best known" if is_certified else "Recommended",
        figure=f"{part.target.metric} {metric:.4f}",
        claim=f"within {seconds(part.target.within_s)} of training on {_place(part)} ({how})",
        sure=sure,
        winner=winner,
    )


def _gain(row: Row) -> str:
    shown = "beyond chance" if (row.p_value or 1.0) <= LIKELY else "which may be chance"
    return (
        f"With the same seeds it ended by {row.metric_gain:+.4f} better than {row.rival}, {shown}"
        f" (p = {row.p_value:.2g})."
    )


def _rival(row: Row) -> list[str]:
    if row.rival is None or not row.speedup:
        return []
    if row.speedup < 1:
        share = f"{100 * row.speedup:.0f} % of its time"
        return [
            f"Timed in turns with it, {row.rival} took {share}: this is the fastest of the study,"
            " not of all that is on record."
        ]
    text = f"Timed in turns with {row.rival} it was {row.speedup:.2f} times as fast"
    if row.p_value is None:
        return [f"{text}."]
    shown = "beyond chance" if row.p_value <= LIKELY else "which may be chance"
    return [f"{text}, {shown} (p = {row.p_value:.2g})."]


def _ties(first: Row, boards: Sequence[Board], kind: str) -> list[str]:
    rows = [row for board in boards if board.kind == kind for row in board.rows]
    count = sum(row.rank == first.rank for row in rows) - 1
    if not count:
        return []
    told = f"{count} others share the first rank" if count > 1 else "Another shares the first rank"
    better = "faster" if first.mean_metric is None else "better"
    return [f"{told}: their intervals overlap, so which is {better} is not known."]


def _luck(part: StudyPart, row: Row, boards: Sequence[Board]) -> list[str]:
    estimate = fastest(trial.record for trial in part.trials)
    if estimate is None or estimate.trial_id == row.trial_id:
        return []
    time = seconds(estimate.time_to_target_s)
    told = f"The fastest estimate of the search, {estimate.trial_id} with {time},"
    again = next((t for t in part.confirmed if t.record.trial_id == estimate.trial_id), None)
    if again is None:
        return [f"{told} was not certified."]
    hits, n = sum(run.status is Status.REACHED for run in again.record.runs), len(again.record.runs)
    came_to = "was slower once certified" if 2 * hits > n else "did not hold"
    return [f"{told} {came_to}: {hits} of {n} fresh seeds met the target."]


def _estimate(part: StudyPart, row: Row, boards: Sequence[Board]) -> Answer:
    winner = _trial(part.trials, row)
    best = next((b.recommended for b in boards if b.kind == "estimate" and b.recommended), None)
    told = next((t for t in part.trials if best and t.record.trial_id == best.trial_id), None)
    if best is not None and told is not None:
        return _recommended(part, best, told)
    tried = [
        f"Certification was tried: none of {counted(len(part.confirmed), 'finalist')} met the"
        " target in more than half of its fresh seeds."
    ]
    sure = (
        f"An estimate from the search: one seed, judged on the {winner.record.evaluated_on} part,"
        f" and the best of {counted(len(part.trials), 'trial')}, so luck has a part in it.",
        f"Its time is {CLOCK_WORDS[winner.record.runs[-1].timing]}.",
        *_ties(row, boards, "estimate"),
        *(tried if part.confirmed else []),
        BE_SURE["fastest run"],
    )
    return Answer(
        verdict="estimate",
        lead="Fastest known",
        figure=seconds(row.time_to_target_s),
        claim=f"to {part.target.words} on {_place(part)} (an estimate from one seed, not"
        " certified)",
        sure=sure,
        winner=winner,
    )


def _recommended(part: StudyPart, best: Recommended, winner: ViewedTrial) -> Answer:
    once = fastest(trial.record for trial in part.trials)
    assert once is not None, best
    chance = (
        f"; the chance that another does is {best.chance.text(chance_text)}" if best.chance else ""
    )
    sure = (
        f"{best.hits} of {counted(best.runs, 'run')} of {best.trial_id} met the target on the"
        f" {winner.record.evaluated_on} part{chance}.",
        f"Its time is {CLOCK_WORDS[winner.record.runs[-1].timing]}.",
        f"The fastest single run, {once.trial_id}, took {seconds(once.time_to_target_s)}: of"
        f" {counted(len(part.trials), 'trial')} the best one is lucky.",
        BE_SURE["favourites"],
    )
    return Answer(
        verdict="estimate",
        lead="Recommended",
        figure=seconds(best.expected_s),
        claim=f"expected to {part.target.words} on {_place(part)}, counting runs that miss (an"
        " estimate, not certified)",
        sure=sure,
        winner=winner,
    )


def _missed(part: StudyPart, nearest: ViewedTrial) -> Answer:
    metric, target = final_metric(nearest.record), part.target
    assert metric is not None
    beyond, easier = ("above", "higher") if target.mode == "min" else ("below", "lower")
    gap = sign_of(target) * (target.value - metric)
    how_far = f"{gap:.4f} {beyond}" if gap > 0 else "though it was stopped before its end"
    name = nearest.record.trial_id
    return Answer(
        verdict="missed",
        lead="Target not met",
        figure=f"{metric:.4f}",
        claim=f"is the nearest that a trial came to {part.target.words} on {_place(part)}:"
        f" {name}, {how_far}",
        sure=(
            f"{name}: {nearest.record.stop_reason}.",
            f"A longer limit, a {easier} target or a wider search space may help; the figures below"
            " show where trials ended.",
        ),
        winner=nearest,
    )


def _failed(part: StudyPart) -> Answer:
    first = next((t for t in part.trials if t.record.runs[-1].traceback), part.trials[0])
    ended = "failed" if len(part.trials) == 1 else f"all {len(part.trials)} trials failed"
    return Answer(
        verdict="failed",
        lead="Nothing trained",
        figure=counted(len(part.trials), "failure"),
        claim=f"on {_place(part)}: {ended} before a first evaluation",
        sure=(f"First, {first.record.trial_id}: {first.record.stop_reason}",),
        traceback=first.record.runs[-1].traceback,
    )


def _nothing(part: StudyPart) -> Answer:
    return Answer(
        verdict="none",
        lead="Not confirmed",
        figure="no recipe",
        claim=f"is certified for {part.target.words} on {_place(part)}: none met it undisturbed in"
        " more than half of its fresh seeds",
        sure=("The certified runs are listed below, with what each came to.",),
    )


def _trial(trials: Sequence[ViewedTrial], row: Row) -> ViewedTrial:
    return next(t for t in trials if (t.run_id, t.record.trial_id) == (row.run_id, row.trial_id))

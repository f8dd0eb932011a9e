"""Sentences of earlier versions as kinds and figures: the only place with patterns over them.

Ledgers, records, certificates and MLflow's tags were written in these words. The templates stay as
they are, whatever `words` makes of the kinds today: what is in square brackets may be missing.
"""

import math
import re
from functools import cache

_AT = "stopped at {at_s:n} s: [it would not end before {end_s:n} s, and ]"
_SCORE = "{metric} {value:n}"
_COMPARED = "[ {sign:sign} {target:n}]"
_LATE = "[, {late_s:n} s of training before its end]"
_COST = "[ at a cost of {cost_s:n} s]"
_STOPS = (
    ("none", ""),
    ("target_met", f"target met: {_SCORE}{_COMPARED}{_LATE}"),
    ("ended_in_time", f"ended in time: {_SCORE}{_COMPARED}{_LATE}"),
    (
        "ended_below",
        f"the run ended with {_SCORE}{_COMPARED}[, target {{aim:n}}]{{is_single:single}}{_LATE}",
    ),
    ("not_finite", "the {metric} is not finite after {steps:n} step{:s}"),
    ("not_a_number", "the {metric} is {value:n} after {steps:n} step{:s}"),
    ("time_limit", f"max_train_s = {{limit_s:n}} s passed[ with {_SCORE}]{_COMPARED}"),
    ("too_long", "would take {planned_s:n} s of max_train_s = {limit_s:n} s"),
    ("out_of_memory", "out of memory, down to a micro-batch of {batch_size:n}"),
    ("interrupted", "interrupted"),
    ("process_died", "its process died: {message}"),
    ("node_died", "its node died, or cannot be reached"),
    ("hung", "hung: no step for {quiet_s:n} s"),
    ("silent", "its process gave no sign of life for {quiet_s:n} s"),
    ("budget_over", "the search's time budget ended"),
    ("search_stopped", "the search was stopped"),
    ("by_hand", "stopped by hand{:any}"),
    ("slower", _AT + "{best}, which is recommended, takes {best_s:n} s with restarts"),
    ("slower", "stopped at {at_s:n} s: {:any}leader {best} met the target in {best_s:n} s{:any}"),
    ("past_limit", _AT + "the time limit is {limit_s:n} s"),
    ("below_rung", _AT + "{ahead:n} of {num:n} trials promised more by {by_s:n} s"),
    ("below_cutoff", _AT + "below ASHA's cutoff after {evaluations:n} evaluation{:s}"),
    ("unlikely", "{:any}likely to {:any}"),
    (
        "settled",
        "the chance that the rest of the budget finds a recipe better by {better_by:p} is"
        " {chance:p}",
    ),
    ("nothing_left", "no untried configuration is left"),
    ("nothing_better", "no untried configuration can beat the leader"),
    ("error", "{:dotted}{error:name}:{:any}"),
)
_PROPOSALS = (
    ("none", ""),
    ("point", "a point to evaluate"),
    ("by_hand", "added by hand: request {request_id:id}"),
    ("sampler", "[{sampler}: ]the sampler's proposal"),
    ("optuna_search", "OptunaSearch's proposal"),
    ("observed", "proposed in the Optuna study"),
    ("start", "start: spread evenly[, {cost_s:n} s the cheapest of {num:n}]"),
    ("exploration", "exploration: spread evenly"),
    ("no_chance", "spread evenly: the model sees no chance"),
    ("nothing_could_win", "spread evenly: {sampler} has nothing that could win"),
    ("nearer", "gain: {chance:p} likely to come nearer the target than any so far" + _COST),
    ("gain", f"gain: {{chance:p}} likely to meet the target{_COST}, {{to_beat_s:n}} s to beat"),
    ("gain", f"gain: {{chance:p}} likely to meet the target{_COST}, leader {{to_beat_s:n}} s"),
    ("better_end", "gain: {chance:p} likely to end better than any so far" + _COST),
    (
        "again",
        "again: run {run:n} of {trial_id}'s configuration[, which met the target in {hits:n} of"
        " {runs:n}]",
    ),
)
_NOTES = (
    ("unseen", "co-tenants cannot be seen or stopped: {why}"),
    ("others_came", "others came to the device: {others}"),
    ("disturbed", "others took its core for {share:p} of the time"),
    ("reported", "the training function reported its own clock"),
    ("reclocked", "re-clocked: {was_ms:n} → {now_ms:n} ms a step, by {windows:n} window{:s}"),
    ("resumed", "resumed at step {step:n}[ of {num_steps:n}]"),
    ("unusable", "begun anew, as its checkpoint could not be used: {why}"),
    ("begun_again", "begun anew: {why}"),
    ("not_saved", "not saved at step {step:n}: {why}"),
)
_OLD = {"StopReason": _STOPS, "ProposalReason": _PROPOSALS, "Note": _NOTES}
_FORMS = {
    "": ".+?",
    "any": ".*",
    "n": r"-?(?:[\d.,]+(?:e[+-]?\d+)?|inf|nan)\b",
    "p": r"[\d.]+%",
    "s": "s?",
    "id": "[0-9a-f]+",
    "sign": "(?:not )?[≥≤]",
    "single": "(?:, at one evaluation: two in a row must hold it)?",
    "dotted": r"(?:\w+\.)*",
    "name": r"[A-Za-z_]\w{0,40}",  # Bounded, as what a stranger wrote may be one endless word.
}
_PLACE = re.compile(r"\{(\w*):?(\w*)\}|(\[)|(\])")
_SMALLER = re.compile(
    r"(.*) \(micro-batch (?P<first_batch_size>\d+) ran out of memory,"
    r" (?P<ran_batch_size>\d+) did not\)",
    re.DOTALL,
)
_DEVICE = re.compile(r"(?:(\d+) x )?(?:cpu \((\d+) threads, (.+)\)|(.*))", re.DOTALL)


def read(name: str, text: str) -> tuple[str, dict[str, str | int | float], str]:
    """Returns kind and figures of a sentence, and the sentence without what may follow each.

    `name` is that of the class in `words`. What no version is known to have written is `other`.
    """
    figures: dict[str, str | int | float] = {}
    smaller = _SMALLER.fullmatch(text) if name == "StopReason" else None
    if smaller:
        text = smaller[1]
        figures = {key: int(value) for key, value in smaller.groupdict().items()}
    matches = ((kind, pattern.fullmatch(text)) for kind, pattern in _patterns(name))
    kind, found = next(((kind, match) for kind, match in matches if match), ("other", None))
    known = found.groupdict() if found else {}
    return kind, {**figures, **{n: _figure(n, v) for n, v in known.items() if v}}, text


def split_notes(text: str) -> list[str]:
    """Returns the notes of a run, which were one text."""
    return [note for note in text.split("; ") if note]


def read_device(text: str) -> dict[str, str | int | None]:
    """Returns the fields of a device that was named `2 x NVIDIA H200` or `cpu (2 threads, …)`."""
    count, threads, processor, name = _DEVICE.fullmatch(text).groups()  # type: ignore[union-attr]
    if processor is None and name.startswith("cpu"):
        threads = 0
    return {"type": processor or name, "count": int(count or 1), "threads": threads}


@cache
def _patterns(name: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(_pattern(template), re.DOTALL)) for kind, template in _OLD[name])


def _pattern(template: str) -> str:
    parts, end = list[str](), 0
    for place in _PLACE.finditer(template):
        name, form, opens, closes = place.groups()
        group = f"(?P<{name}>{_FORMS[form or '']})" if name else _FORMS[form or ""]
        parts += [
            re.escape(template[end : place.start()]),
            "(?:" if opens else ")?" if closes else group,
        ]
        end = place.end()
    return "".join([*parts, re.escape(template[end:])])


def _figure(name: str, text: str) -> str | int | float:
    if name == "is_single":
        return 1
    try:
        number = float(text.replace(",", "").removesuffix("%"))
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    is_whole = number.is_integer() and "." not in text and "e" not in text
    return number / 100 if text.endswith("%") else int(number) if is_whole else number

import operator
import random
import re
from typing import Any

import pytest
from helpers.making import make_record, make_run
from helpers.tracking.stores import store_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import Query, Store, find_trials
from tune_speed.tracking.columns import COLUMNS
from tune_speed.tracking.filter.fields import RECIPE_FIELDS
from tune_speed.tracking.filter.where import parse_where
from tune_speed.training.recipe import Recipe

SGD = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
ONE_CYCLE = {"one_cycle": {"pct_start": 0.3}}
HUGE = 2**53 + 1
RECIPES: list[dict[str, Any]] = [
    {"optimizer": {"sgd": SGD}, "batch_size": 512, "lr_schedule": ONE_CYCLE},
    {"optimizer": {"adam": {"lr": 1e-5}}, "batch_size": "auto", "lr_schedule": "constant"},
    {"optimizer": {"sgd": {**SGD, "lr": -3}}, "batch_size": 64, "precision": "bf16"},
    {"optimizer": {"adam": {"lr": HUGE}}, "batch_size": None, "precision": "fp32"},
]
STATUSES = (Status.REACHED, Status.MISSED, Status.OOM)
STUDIES = ("first", "it's `odd` 100%")
DEVICES = ("NVIDIA H200", "cpu (2 threads, \x07é)")
CERTIFIED = 7
"""Number of the trial that was certified; one of its three runs met the target."""
NUMBERS = range(9)


def record_of(number: int) -> TrialRecord:
    status = STATUSES[number % 3]
    runs = (make_run(status, seed=4), make_run(time_s=2.5), make_run(Status.MISSED))
    certified: dict[str, Any] = {"kind": "certified", "runs": runs} if number == CERTIFIED else {}
    record = make_record(
        f"t{number:04d}",
        status,
        time_s=1.0 + number,
        study=STUDIES[number % 2],
        device=DEVICES[number // 2 % 2],
        **certified,
    )
    return record.model_copy(update={"recipe": RECIPES[number % 4], "params": {"lr2": 5}})


def facts_of(number: int) -> dict[str, Any]:
    is_hit, is_certified = number % 3 == 0, number == CERTIFIED
    optimizer = ("sgd", "adam")[number % 2]
    return {
        "status": ("reached", "missed", "oom")[number % 3],
        "study": STUDIES[number % 2],
        "device": DEVICES[number // 2 % 2],
        "kind": "certified" if is_certified else "estimate",
        "time_to_target_s": 1.0 + number if is_hit else None,
        "hits": int(is_hit or is_certified),
        "n": 3 if is_certified else 1,
        "batch_size": (512, "auto", 64, None)[number % 4],
        "optimizer": optimizer,
        "lr_schedule": ("one_cycle", "constant", None, None)[number % 4],
        "precision": (None, None, "bf16", "fp32")[number % 4],
        "lr": (0.1, 1e-5, -3, HUGE)[number % 4],
        f"optimizer.{optimizer}.lr": (0.1, 1e-5, -3, HUGE)[number % 4],
        "pct_start": (0.3, None, None, None)[number % 4],
        "nesterov": True if optimizer == "sgd" else None,
    }


RECORDS, FACTS = [record_of(n) for n in NUMBERS], [facts_of(n) for n in NUMBERS]
SIGNS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

NUMBER_FIELDS = ("time_to_target_s", "hits", "n")
TEXT_FIELDS = ("study", "device")
RECIPE_NAMES = (
    *("batch_size", "optimizer", "lr_schedule", "precision", "lr", "optimizer.sgd.lr"),
    *("optimizer.adam.lr", "pct_start", "nesterov", "lr2", "nowhere.at_all"),
)
NUMBER_VALUES = st.sampled_from([0, 1, 3, -3, 64, 512, 0.1, 1e-5, 2.5, 1e300, HUGE, HUGE - 1])
TEXTS = st.sampled_from(
    [*STUDIES, *DEVICES, "sgd", "adam", "auto", "bf16", "one_cycle", "x y", "and", "'", '"', ""]
)
ORDERS = st.sampled_from(sorted(SIGNS))


def comparisons(fields: Any, values: Any, signs: Any) -> Any:
    lists = st.lists(values, min_size=1, max_size=3)
    return (
        st.tuples(st.just("compare"), fields, signs, values)
        | st.tuples(st.sampled_from(["in", "not in"]), fields, lists)
        | st.tuples(st.sampled_from(["is none", "is not none"]), fields)
    )


LEAVES = (
    comparisons(st.sampled_from(NUMBER_FIELDS), NUMBER_VALUES, ORDERS)
    | comparisons(st.sampled_from(TEXT_FIELDS), TEXTS, ORDERS | st.just("~"))
    | comparisons(st.just("status"), st.sampled_from(["reached", "missed", "oom"]), ORDERS)
    | comparisons(st.just("kind"), st.sampled_from(["estimate", "certified"]), ORDERS)
    | comparisons(st.sampled_from(RECIPE_NAMES), NUMBER_VALUES | TEXTS, ORDERS)
    | st.tuples(st.just("compare"), st.just("nesterov"), st.just("="), st.booleans())
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.just("not"), inner)
        | st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=4))
    ),
    max_leaves=12,
)


def is_same_kind(a: Any, b: Any) -> bool:
    kinds = (bool, str, (int, float))
    return next(isinstance(b, k) for k in kinds if isinstance(a, k)) and (
        isinstance(a, bool) == isinstance(b, bool)
    )


def compares(sign: str, value: Any, wanted: Any) -> bool:
    if sign == "~":
        return isinstance(value, str) and wanted.lower() in value.lower()
    if is_same_kind(value, wanted):
        return bool(SIGNS[sign](value, wanted))
    return sign == "!="


def truth(tree: Any, facts: dict[str, Any]) -> bool:
    """Evaluates a tree on plain facts, as the module's docstring says."""
    if tree[0] == "not":
        return not truth(tree[1], facts)
    if tree[0] in ("and", "or"):
        return {"and": all, "or": any}[tree[0]](truth(part, facts) for part in tree[1])
    value = facts.get(tree[1])
    if tree[0] in ("is none", "is not none"):
        return (value is None) == (tree[0] == "is none")
    if value is None:
        return False
    if tree[0] == "compare":
        return compares(tree[2], value, tree[3])
    is_in = any(compares("=", value, each) for each in tree[2])
    return is_in == (tree[0] == "in")


def written_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    quote = '"' if "'" in value else "'"
    return (
        value
        if value.isalnum() and value != "and"
        else quote + value.replace(quote, quote * 2) + quote
    )


def written(tree: Any, dice: random.Random) -> str:
    """Returns a tree as text, with spaces, capitals and more parentheses than needed by chance."""
    word = dice.choice([tree[0], tree[0].upper()])
    space = " " * dice.choice([1, 1, 3])
    if tree[0] == "not":
        text = f"{word} ({written(tree[1], dice)})"
    elif tree[0] in ("and", "or"):
        text = f"{space}{word}\n".join(f"({written(part, dice)})" for part in tree[1])
    elif tree[0] == "compare":
        gap = dice.choice(["", " "])
        text = f"{tree[1]}{gap}{tree[2]}{gap}{written_value(tree[3])}"
    elif tree[0] in ("in", "not in"):
        text = f"{tree[1]} {word} ({f',{space}'.join(map(written_value, tree[2]))})"
    else:
        text = f"{tree[1]}{space}{word}"
    return f"({text})" if dice.random() < 0.2 else text


@settings(max_examples=200)
@given(TREES, st.randoms(use_true_random=False))
def test_a_filter_holds_where_its_tree_does(tree: Any, dice: random.Random) -> None:
    where = parse_where(written(tree, dice))
    assert [where.matches(r) for r in RECORDS] == [truth(tree, facts) for facts in FACTS]


def matching(text: str) -> list[int]:
    where = parse_where(text)
    return [number for number in NUMBERS if where.matches(RECORDS[number])]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("status=oom or status=missed and n=3", "status=oom or (status=missed and n=3)"),
        ("not status=oom and n=1", "(not status=oom) and n=1"),
        ("not not lr > 0", "lr > 0"),
        ("batch_size == 512", "batch_size = 512.0"),
        ("STATUS_ is none or status=oom", "n >= 0"),
        ("optimizer in (sgd)", 'optimizer = "sgd"'),
        ("device ~ h200", "device = 'NVIDIA H200'"),
        ("study = 'it''s `odd` 100%'", "study != first"),
    ],
)
def test_filters_that_mean_the_same(text: str, same: str) -> None:
    assert matching(text) == matching(same) != []


def test_a_comparison_with_what_is_missing_is_false_and_its_negation_true() -> None:
    assert matching("pct_start != 5") == matching("pct_start = 0.3") == [0, 4, 8]
    assert matching("not pct_start = 5") == list(NUMBERS)


def test_a_number_is_the_recipes_that_ran_not_the_proposed_one() -> None:
    record = RECORDS[0].model_copy(update={"params": {"batch_size": 1024, "lr2": 5}})
    assert parse_where("batch_size = 512").matches(record)
    assert not parse_where("batch_size = 1024 or lr2 = 5").matches(record)


def test_a_last_part_that_is_not_unique_is_refused_with_both_names() -> None:
    recipe = {"optimizer": {"sgd": SGD}, "speedups": {"init": {"kaiming": {"lr": 1}}}}
    record = make_record().model_copy(update={"recipe": recipe})
    with pytest.raises(ConfigError, match=r"optimizer\.sgd\.lr, speedups\.init\.kaiming\.lr"):
        parse_where("lr > 0").matches(record)
    assert parse_where("study = other or optimizer.sgd.lr > 0").matches(record)


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("", 0, "a field"),
        ("optimizer=sgd and", 17, "a field"),
        ("batch_size>=", 12, "a value"),
        ("batch_size 512", 11, "a comparison"),
        ("(n=1", 4, "`)`"),
        ("n=1 n=2", 4, "`and`, `or` or the end"),
        ("n in 1", 5, "`(`"),
        ("n in (1 2)", 8, "`,` or `)`"),
        ("study='first", 6, "a closing quote"),
        ("n ! 1", 2, "`!=`"),
        ("lr = none", 5, "`lr is none`"),
        ("status = reachd", 9, "did you mean `reached`"),
        ("n = many", 4, "a number"),
        ("n ~ 1", 4, "a number"),
        ("nesterov > false", 11, "= and != only"),
        ("lr < 1e999", 5, "below 1.8e308"),
        ("not " * 60 + "n=1", 51 * 4, "at most 50"),
    ],
)
def test_a_mistake_is_shown_with_its_place(text: str, place: int, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_where(text)
    first, shown, caret, example = str(caught.value).split("\n")
    assert expected in first
    assert caret.index("^") - 2 == min(place, 60)
    assert shown[2:] == text[max(0, place - 60) : place + 40]
    assert parse_where(example.removeprefix("Write it like: "))


def test_a_field_that_no_trial_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean `batch_size`"):
        parse_where("batch_sise > 5 and n = 1").check(RECORDS)
    with pytest.raises(ConfigError, match="none of the trials has it") as caught:
        parse_where("zzzz = 1").check(RECORDS)
    assert str(caught.value).endswith("it. `tune-speed list fields` lists them.")
    parse_where("pct_start > 0 and adam.lr is none or lr2 = x").check([])
    parse_where("pct_start > 0 and optimizer.adam.lr > 1 and clip_norm is none").check(RECORDS)


PIECES = (
    *("and", "or", "not", "in", "is", "none", "(", ")", ",", "=", "!=", "<", "~", "'", '"', "!"),
    *("n", "lr", "status", "sgd", "5", "1e5", "true", " ", "\n", "é", "\x00", "9" * 5000),
)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES)).map("".join) | st.text())
def test_any_text_is_a_filter_or_a_mistake_of_the_user(text: str) -> None:
    try:
        where = parse_where(text)
    except ConfigError:
        return
    assert all(where.matches(record) in (True, False) for record in RECORDS)


def test_recipe_fields_are_those_of_a_recipe_and_no_result_field() -> None:
    assert set(RECIPE_FIELDS) == set(Recipe.model_fields)
    assert not set(RECIPE_FIELDS) & set(COLUMNS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return store_of(RECORDS, folder=tmp_path_factory.mktemp("where"))


@settings(max_examples=40)
@given(TREES, st.randoms(use_true_random=False))
def test_a_store_gives_what_the_records_themselves_do(
    store: str, tree: Any, dice: random.Random
) -> None:
    where = parse_where(written(tree, dice))
    try:
        where.check(RECORDS)
    except ConfigError as error:
        with pytest.raises(ConfigError, match=re.escape(str(error))):
            find_trials(Store(store), Query(where=where))
        return
    matches = {record.trial_id for record in RECORDS if where.matches(record)}
    found = find_trials(Store(store), Query(where=where))
    assert {trial.record.trial_id for trial in found} == matches

"""Search spaces for tests: one that has every kind of leaf, and random ones."""

from typing import Any

from hypothesis import strategies as st

TREE: dict[str, Any] = {
    "model": {"resnet20": {}},
    "optimizer": {
        "choices": {
            "sgd": {"lr": {"low": 0.1, "high": 1.0, "log": True}, "nesterov": True},
            "adamw": {"lr": {"low": 1e-4, "high": 1e-2}, "betas": [0.9, 0.99]},
            "plain": None,
        }
    },
    "epochs": {"low": 4, "high": 40, "log": True},
    "width": {"low": 16, "high": 64, "step": 16},
    "smoothing": {"low": 0.0, "high": 0.3, "step": 0.1},
    "batch_size": {"choices": [64, 128, 256]},
    "clip": {"choices": [None, 1.5, "auto", False]},
    "nested": {"loader": {"choices": {"a": {"choices": {"b": {"w": {"low": 0, "high": 2}}}}}}},
}

PARAMS: dict[str, Any] = {
    "optimizer": "sgd",
    "optimizer.sgd.lr": 0.5,
    "epochs": 10,
    "width": 32,
    "smoothing": 0.2,
    "batch_size": 128,
    "clip": None,
    "nested.loader": "a",
    "nested.loader.a": "b",
    "nested.loader.a.b.w": 1,
}


def fits(tree: Any, built: Any) -> bool:
    """Returns whether `built` is a point of `tree`: the definition, without parameters."""
    if isinstance(tree, dict) and "low" in tree:
        is_int = all(isinstance(tree[key], int) for key in ("low", "high", "step") if key in tree)
        in_range = tree["low"] <= built <= tree["high"]
        steps = (built - tree["low"]) / tree.get("step", 1 if is_int else float("inf"))
        on_grid = abs(steps - round(steps)) < 1e-6 or ("step" not in tree and not is_int)
        return type(built) is (int if is_int else float) and in_range and on_grid
    if isinstance(tree, dict) and "choices" in tree:
        if isinstance(tree["choices"], list):
            return any(built is choice or repr(built) == repr(choice) for choice in tree["choices"])
        ((name, subtree),) = built.items()
        branch = tree["choices"][name]
        return fits({} if branch is None else branch, subtree)
    if isinstance(tree, dict):
        return built.keys() == tree.keys() and all(fits(tree[key], built[key]) for key in tree)
    return bool(tree == built)


NAMES = st.text("abcxyz_-é 01", min_size=1, max_size=3)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | TEXTS
POSITIVE = st.floats(1e-6, 1e6)


@st.composite
def int_ranges(draw: st.DrawFn) -> dict[str, Any]:
    low, step, num_steps = (
        draw(st.integers(1, 99)),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 9)),
    )
    form = draw(st.sampled_from(["plain", "log", "step"]))
    extra = {"plain": {}, "log": {"log": True}, "step": {"step": step}}[form]
    return {"low": low, "high": low + step * num_steps, **extra}


@st.composite
def float_ranges(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted([draw(POSITIVE), draw(POSITIVE)])
    if draw(st.booleans()):
        return {"low": low, "high": high, "log": draw(st.booleans())}
    return {"low": 0.5, "high": 0.5 + 0.125 * draw(st.integers(0, 9)), "step": 0.125}


RANGES = int_ranges() | float_ranges()
LISTS = st.lists(SCALARS, min_size=1, max_size=4, unique=True).map(lambda c: {"choices": c})


def branched(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    subtrees = st.dictionaries(NAMES, inner | st.none(), min_size=1, max_size=3)
    return subtrees.map(lambda choices: {"choices": choices})


def mappings(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(NAMES, inner, max_size=3)


NODES = st.recursive(
    SCALARS | RANGES | LISTS, lambda inner: mappings(inner) | branched(inner), max_leaves=8
)
TREES = mappings(NODES)

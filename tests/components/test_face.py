import inspect
import re
import subprocess
import sys
import typing
from types import FunctionType

import pytest

from tune_speed import components
from tune_speed.components.plugins.validation import TABLES


def test_every_name_of_the_face_is_there() -> None:
    for name in components.__all__:
        assert getattr(components, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = components.Nothing


def types_named(base: type) -> set[str]:
    methods = (
        m for name, m in vars(base).items() if isinstance(m, FunctionType) and name[0] != "_"
    )
    texts = (str(each) for m in methods for each in inspect.get_annotations(m).values())
    return {name for text in texts for name in re.findall(r"tune_speed\.[\w.]+\.(\w+)", text)}


def test_bases_and_the_types_of_their_methods_are_on_the_face() -> None:
    bases = [table.base for table in TABLES.values()]
    names = {name for base in bases for name in {base.__name__, *types_named(base)}}
    assert {"Factors", "Shape", "Start", "RecipeView", "DecodedData"} < names
    assert names <= set(components.__all__)
    assert all(getattr(components, base.__name__) is base for base in bases)


def test_slots_are_the_fields_of_a_recipe_s_speedups() -> None:
    from tune_speed.components.speedups.chosen import Speedups

    assert set(typing.get_args(components.Slot)) == set(Speedups.model_fields)


def test_the_face_and_what_all_tables_hold_cost_no_heavy_library() -> None:
    code = (
        "import sys, tune_speed.data.split; from tune_speed.components import *\n"
        "from tune_speed.components.plugins.validation import TABLES\n"
        "from tune_speed.data import LOADERS, ORDERS\n"
        "tables = [LOADERS, ORDERS, *(t.entries for n, t in TABLES.items() if n != 'METRICS')]\n"
        "print(len([kind.model_json_schema() for table in tables for kind in table.values()]))\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number, *loaded = done.stdout.split()
    assert int(number) > 50 and "tune_speed.components.metrics" in loaded
    heavy = {"torch", "timm", "torchvision", "sklearn", "pyarrow", "scipy", "pandas"}
    assert not heavy & set(loaded)

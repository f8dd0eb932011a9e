import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from helpers.components.plugins import MY_NET, write
from helpers.texts import Texts

from tune_speed.components.metrics import METRICS
from tune_speed.components.models import MODELS
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.plugins import registry
from tune_speed.components.plugins.validation import TABLES, form_problems, signature_mistake
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import Slot, SpeedupConfig
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.data import DATASETS


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    yield
    registry.unload()


def problems(folder: Path, text: str, name: str = "own.py") -> list[Problem]:
    file = write(folder, name, text)
    with pytest.raises(ConfigError) as caught:
        registry.load([str(file)])
    assert registry.loaded() == ()
    assert all(problem.file == str(file) for problem in caught.value.problems)
    return list(caught.value.problems)


def only(folder: Path, text: str, *, at: str) -> str:
    (problem,) = problems(folder, text)
    lines = [line.strip() for line in text.splitlines()]
    assert problem.line is not None and lines[problem.line - 1].startswith(at), problem
    return str(problem)


def changed(old: str, new: str, text: str = MY_NET) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize("table", TABLES)
def test_all_of_ours_pass_what_plugins_must(table: str) -> None:
    kinds = {
        "MODELS": MODELS,
        "DATASETS": DATASETS,
        "OPTIMIZERS": OPTIMIZERS,
        "SCHEDULES": SCHEDULES,
        "SPEEDUPS": SPEEDUPS,
        "METRICS": METRICS,
    }
    assert TABLES[table].entries is kinds[table]
    for name, entry in TABLES[table].entries.items():
        assert list(form_problems(name, entry, TABLES[table], (None, None))) == []


TAKES = "(self, *, in_channels: int, num_classes: int, image_size: int)"
ABOUT, WIDTH = '"""Pixels, one hidden layer, classes."""\n', '"""Units of the hidden layer."""\n'
FIELD = "int = Field(default=16, ge=1)"
ENTRY = '"my_net": MyNet'
WRONG = [
    (TAKES, TAKES.replace("num_classes", "classes"), "def network"),
    (TAKES, TAKES.replace(")", ", depth: int)"), "def network"),
    ("def network(", "async def network(", "async def"),
    ("    def network(", "    @staticmethod\n    def network(", ""),
    ("def network(", "def net(", "class MyNet"),
    (f"    {ABOUT}", "", "class MyNet"),
    (f"    {WIDTH}", "", "width: int"),
    ("MyNet(ModelConfig)", "MyNet", "MODELS"),
    (ENTRY, '"resnet20": MyNet', "MODELS"),
    (ENTRY, '"My-Net": MyNet', "MODELS"),
    (ENTRY, "3: MyNet", "MODELS"),
    (ENTRY, '"my_net": MyNet()', "MODELS"),
    (ENTRY, '"my_net": "MyNet"', "MODELS"),
    (f"{{{ENTRY}}}", "[MyNet]", "MODELS"),
    (f"{{{ENTRY}}}", "{}", "MODELS"),
    (ENTRY, '"a": MyNet, "b": MyNet', "MODELS"),
    ("MODELS = ", "MODEL = ", "MODEL"),
    (FIELD, "type = int", "class MyNet"),
    (FIELD, "tuple[int, ...] = (1,)", "width"),
    ("    width: int", '    model_config = {"frozen": False}\n    width: int', "model_config"),
]


def test_each_mistake_is_named_with_its_line(tmp_path: Path, kept_text: Texts) -> None:
    told = []
    for old, new, at in WRONG:
        found = only(tmp_path, changed(old, new), at=at).replace(str(tmp_path), "FOLDER")
        told.append(f"{old!r} is {new!r}: {found}\n")
    kept_text("".join(told))


OTHERS = '''
from typing import ClassVar

from tune_speed.data import DatasetConfig
from tune_speed.components import Metric
from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.base import OptimizerConfig
from tune_speed.components import ScheduleConfig
from tune_speed.components import SpeedupConfig


class Rate(ScheduleConfig):
    """A schedule."""

    def factors(self, progress, losses=()):
        """Nothing."""


class Step(OptimizerConfig):
    """An optimizer."""

    def build(self, model, effective_batch_size, *, fused):
        """Takes what is given by name by place as well, which does no harm."""


class Data(DatasetConfig):
    """A data set."""

    location_fields: ClassVar[frozenset[str]] = frozenset({"rot"})
    root: str = "."
    """Folder."""

    def num_train(self):
        """Nothing."""

    def sources(self):
        """Nothing."""

    def decode(self, download, on_progress):
        """Nothing."""


class Tail(SpeedupConfig):
    """A speed-up."""

    slot: ClassVar[str] = "los"

    def kept(self, shape, num_samples):
        """Nothing."""


SCHEDULES = {"rate": Rate}
OPTIMIZERS = {"step": Step}
DATASETS = {"data": Data}
SPEEDUPS = {"tail": Tail, "off": Tail}
MODELS = {"mine": ResNet20}
METRICS = {
    "good": Metric(about="a", unit="1", source="s", of_run=lambda run: None),
    "bad": Metric(about="a", unit="", source="s", of_run=lambda: None),
    "worse": 3,
}
'''


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    told = [(p.path, p.must.partition(",")[0]) for p in problems(tmp_path, OTHERS)]
    assert sorted(told) == sorted(
        [
            (
                "Rate.factors",
                "must take every call of its base: got an unexpected keyword argument 'step_frac'",
            ),
            ("Data", "must have the method `num_test`"),
            ("Data.location_fields", "must name fields of the class"),
            ("Tail.slot", "must have `slot: ClassVar[Slot]`"),
            ("Tail.kept", "must take `num_samples` where it has `shape`"),
            ("", "SPEEDUPS: a name must be free"),
            ("", "the class of `off` must have one name only"),
            ("", "the class of `mine` must have one name only"),
            ("", "the metric `bad` must have a text as `unit`"),
            ("", "the metric `bad` must have None as `of_run`"),
            ("", "the metric `worse` must be a tune_speed.components.Metric"),
        ]
    )


def test_a_metric_goes_into_its_table(tmp_path: Path) -> None:
    text = OTHERS[: OTHERS.index("class Rate")] + (
        'METRICS = {"good": Metric(about="a", unit="1", source="s", of_run=lambda run: 2.0)}'
    )
    registry.load([str(write(tmp_path, "own.py", text))])
    assert METRICS["good"].of_run is not None
    registry.unload()
    assert "good" not in METRICS


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("import os\nprint(nothing)\n", 2, "NameError: name 'nothing' is not defined"),
        ("x = 1\ndef f(:\n", 2, "SyntaxError"),
        ("import not_installed_at_all\n", 1, "Install what brings `not_installed_at_all`"),
        ("import beside\n", 1, "A plugin is one file, as workers get it"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError"),
        ("def f():\n    raise SystemExit(3)\nf()\n", 2, "SystemExit: 3"),
        ("from tune_speed.components.models import Nothing\n", 1, "cannot import name 'Nothing'"),
    ],
)
def test_a_file_that_does_not_run_is_told_by_its_last_line(tmp_path, text, line, told):
    write(tmp_path, "beside.py", "")
    (problem,) = problems(tmp_path, text)
    assert problem.line == line
    assert problem.must == "must be importable" and told in str(problem)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_bytes(b"x = '\xe9'")
    with pytest.raises(ConfigError, match="must be text in UTF-8"):
        registry.load([str(tmp_path / "own.py")])
    (tmp_path / "folder.py").mkdir()
    for name in (str(tmp_path / "folder.py"), "a\0b.py"):
        with pytest.raises(ConfigError, match="must be a readable Python file"):
            registry.load([name])


def test_names_of_two_plugins_clash(tmp_path: Path) -> None:
    first = write(tmp_path, "first.py")
    with pytest.raises(ConfigError) as caught:
        registry.load([str(first), str(write(tmp_path, "second.py"))])
    assert f"`my_net`, which another plugin, by MyNet of {first}, has" in str(caught.value)
    assert "my_net" not in MODELS


class Base:
    def seam(self, a: int, *, b: int, c: int = 0) -> None: ...


def signature_of(source: str) -> str | None:
    space: dict[str, object] = {}
    exec(f"class Own:\n    def seam({source}): ...", space)
    return signature_mistake(vars(space["Own"])["seam"], Base.seam)


@pytest.mark.parametrize(
    "source",
    [
        *("self, a, *, b, c=0", "self, a, *, b, c=1, d=2", "self, a, b, c=0", "self, *a, **b"),
        *("self, a, **rest", "this, a, *, c=0, b", "self, a, *, b=0, c=0"),
    ],
)
def test_a_method_may_take_more_than_it_is_given(source: str) -> None:
    assert signature_of(source) is None


@pytest.mark.parametrize(
    ("source", "parameter"),
    [
        *(("self, *, a, b, c=0", ""), ("self, x, *, b, c=0", "a"), ("", "")),
        *(("self, a, *, c=0", "b"), ("self, a, b, /, *, c=0", "b"), ("self, a, *, b, c", "c")),
        ("self, a, d, *, b, c=0", "d"),
    ],
)
def test_a_method_must_take_every_call_of_the_base_s(source: str, parameter: str) -> None:
    mistake = signature_of(source)
    assert mistake is not None and mistake.startswith("must take ")
    assert not parameter or re.search(f"['`]{parameter}['`]", mistake)


def test_a_change_of_batches_without_labels_is_refused_with_what_to_write() -> None:
    class Old(SpeedupConfig):
        """As plugins of earlier versions have it."""

        slot: ClassVar[Slot] = "resolution"

        def change_batch(self, images, shape):
            return images

    problems = list(form_problems("old", Old, TABLES["SPEEDUPS"], ("plugin.py", 1)))
    assert [problem.path.rpartition(".")[2] for problem in problems] == ["change_batch"]
    assert "def change_batch(self, images, labels, shape)" in (problems[0].hint or "")

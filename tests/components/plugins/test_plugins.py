import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.components.plugins import MY_NET, RECIPE, write

from tune_speed.components.models import MODELS
from tune_speed.components.plugins import registry
from tune_speed.components.plugins.distributions import missing_plugin
from tune_speed.components.plugins.registry import receive, shipped
from tune_speed.components.plugins.validation import TABLES
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.chosen import Speedups
from tune_speed.core.errors import ConfigError
from tune_speed.reporting.listings import listings
from tune_speed.study.fields import component_of
from tune_speed.study.file import load_recipe, parse_recipe
from tune_speed.study.schema import json_schema
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload

MY_EMA = '''
"""A speed-up and a schedule."""

from collections.abc import Sequence
from typing import ClassVar

from tune_speed.components import Factors, ScheduleConfig
from tune_speed.components import SpeedupConfig
from tune_speed.components.speedups.base import Slot


class Nothing(SpeedupConfig):
    """Averages nothing."""

    slot: ClassVar[Slot] = "averaging"


class Half(ScheduleConfig):
    """Half the rate, always."""

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns a half."""
        return Factors(lr=0.5, momentum=None)


SPEEDUPS = {"nothing": Nothing}
SCHEDULES = {"half": Half}
'''


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    before = dict(MODELS)
    yield
    registry.unload()
    assert before == MODELS


def recipe(**fields: object) -> Recipe:
    own = {"model": "my_net", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, "batch_size": 25}
    return Recipe.model_validate({**own, **fields})


def make_distribution(site: Path, name: str, points: str, **modules: str) -> None:
    for module, text in modules.items():
        write(site, f"{module}.py", text)
    folder = site / f"{name.replace('-', '_')}-1.2.dist-info"
    write(folder, "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    write(folder, "entry_points.txt", points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_an_entry_is_like_ours_once_its_file_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        recipe()
    registry.load([str(write(tmp_path))])
    made = recipe(model={"my_net": {"width": 3}})
    assert made.model_dump(mode="json")["model"] == {"my_net": {"weights_file": None, "width": 3}}
    assert '"my_net"' in str(json_schema()).replace("'", '"')
    assert "Units of the hidden layer." in str(json_schema())
    network = made.model.build(in_channels=1, num_classes=10, image_size=8)
    assert sum(p.numel() for p in network.parameters()) == 64 * 3 + 3 + 3 * 10 + 10


def test_a_file_that_tells_its_own_name_runs_with_the_bytes_that_were_hashed(tmp_path):
    file = write(tmp_path)
    (plugin,) = registry.load([str(file)])
    assert plugin.source_hash == hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    assert (plugin.title, plugin.file) == ("my_nets.py", str(file))
    assert registry.hashes() == {"my_nets.py": plugin.source_hash}
    registry.unload()
    # Same size and time of change, for which Python would take old bytecode.
    times = file.stat()
    file.write_text(MY_NET.replace("default=16", "default=17"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    (changed,) = registry.load([str(file)])
    assert changed.source_hash != plugin.source_hash
    assert recipe().model_dump()["model"]["my_net"]["width"] == 17
    assert not (tmp_path / "__pycache__").exists()


def test_loading_again_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path).parent)
    first = registry.load(["my_nets.py"])
    kind = MODELS["my_net"]
    assert registry.load([str(tmp_path / "my_nets.py"), "my_nets.py"]) == first == registry.loaded()
    assert MODELS["my_net"] is kind


def test_a_file_may_not_change_while_it_is_loaded(tmp_path: Path) -> None:
    file = write(tmp_path)
    registry.load([str(file)])
    file.write_text(f"{MY_NET}\n# another")
    with pytest.raises(ConfigError, match="must not change after it was loaded"):
        registry.load([str(file)])


def test_files_of_one_name_are_not_told_apart_by_records(tmp_path: Path) -> None:
    registry.load([str(write(tmp_path))])
    other = write(tmp_path / "other", text=MY_NET.replace("my_net", "your_net"))
    with pytest.raises(ConfigError, match=r"rename one of them"):
        registry.load([str(other)])


def test_all_plugins_of_a_call_are_loaded_or_none(tmp_path: Path) -> None:
    broken = write(tmp_path, "broken.py", "MODELS = []")
    with pytest.raises(ConfigError) as caught:
        registry.load([str(write(tmp_path)), str(broken), str(tmp_path / "absent.py")])
    assert [p.file for p in caught.value.problems] == [str(broken), None]
    assert registry.loaded() == () and "my_net" not in MODELS
    assert registry.VARIABLE not in os.environ


def test_a_speedup_stands_in_its_slot_and_leaves_it(tmp_path: Path) -> None:
    file = str(write(tmp_path, text=MY_EMA))
    registry.load([file])
    chosen = Speedups.model_validate({"averaging": "nothing"})
    assert list(chosen.named()) == ["nothing"]
    with pytest.raises(ValueError, match="must be one of off"):
        Speedups.model_validate({"views": "nothing"})
    assert recipe(model="resnet20", lr_schedule="half").lr_schedule is not None
    registry.unload()
    assert "nothing" not in SPEEDUPS
    with pytest.raises(ValueError, match="must be one of off"):
        Speedups.model_validate({"averaging": "nothing"})


def test_fields_and_listings_hold_the_tables_that_plugins_add_to() -> None:
    fields = {"MODELS": "model", "OPTIMIZERS": "optimizer", "SCHEDULES": "lr_schedule"}
    for table, name in fields.items():
        component = component_of(Recipe.model_fields[name])
        assert component is not None and component.table is TABLES[table].entries
    data = component_of(Workload.model_fields["dataset"])
    assert data is not None and data.table is TABLES["DATASETS"].entries
    listed = ("models", "optim", "schedules", "datasets")
    assert [listings.TABLES[name][0] for name in listed] == [
        TABLES[table].entries for table in ("MODELS", "OPTIMIZERS", "SCHEDULES", "DATASETS")
    ]


def test_processes_that_are_started_learn_of_plugins(tmp_path: Path) -> None:
    registry.load([str(write(tmp_path)), str(write(tmp_path, "more.py", MY_EMA))])
    code = (
        "from tune_speed.components.plugins import registry\n"
        "registry.load_from_environment(); print(registry.hashes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(registry.hashes())
    registry.unload()
    assert registry.VARIABLE not in os.environ


def test_another_node_gets_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))
    file = write(tmp_path)
    (plugin,) = registry.load([str(file)])
    sent = shipped()
    assert str(tmp_path) not in sent.replace(plugin.name, ""), (
        "the folder is nobody else's business"
    )
    receive(sent)
    assert not (tmp_path / "cache").exists(), "it is loaded here"
    registry.unload()
    file.unlink()
    receive(sent)
    assert registry.hashes() == {"my_nets.py": plugin.source_hash}
    kept = tmp_path / "cache" / "plugins" / plugin.source_hash / "my_nets.py"
    assert kept.read_text() == MY_NET
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert recipe().model_dump()["model"]["my_net"]["width"] == 16


def test_nothing_is_sent_without_plugins() -> None:
    assert shipped() == ""
    receive("")
    assert registry.loaded() == ()


def test_a_distribution_is_loaded_by_its_entry_points(site: Path) -> None:
    points = "[tune_speed.models]\nmy_net = own_nets:MyNet\n[other.group]\nx = nothing:X\n"
    make_distribution(site, "own-nets", points, own_nets=MY_NET)
    (plugin,) = registry.load(["own-nets"])
    assert (plugin.title, plugin.version, plugin.file) == ("own-nets", "1.2", None)
    assert recipe().model_dump()["model"]["my_net"]["width"] == 16
    sent = shipped()
    registry.unload()
    receive(sent)
    assert registry.hashes() == {"own-nets": plugin.source_hash}
    registry.unload()
    write(site, "own_nets.py", MY_NET + "# changed")
    with pytest.raises(ConfigError, match="the plugin own-nets must be the same on all nodes"):
        receive(sent)


def test_a_node_without_the_distribution_refuses(site: Path) -> None:
    make_distribution(site, "own-nets", "[tune_speed.models]\nmy_net = own_nets:MyNet\n")
    write(site, "own_nets.py")
    registry.load(["own-nets"])
    sent = shipped().replace("own-nets", "gone-nets")
    with pytest.raises(ConfigError, match=r"must be an installed distribution.*gone-nets"):
        receive(sent)


def test_names_that_are_nothing_are_refused_with_what_is_near(site, tmp_path, monkeypatch):
    make_distribution(site, "own-nets", "[tune_speed.models]\nmy_net = own_nets:MyNet\n")
    make_distribution(site, "bare", "[other]\nx = y:z\n")
    monkeypatch.chdir(write(tmp_path).parent)
    told = {
        "own_net": r"Did you mean `own-nets`\?",
        "my_nets": r"Did you mean `my_nets.py`\?",
        "bare": r"must have entry points in one of the groups tune_speed\.models, ",
        "my_net.py": r"my_net\.py, which is not there\. In .* are my_nets\.py\.",
        "site.py": r"which is not there",
        "": r"must be an installed distribution",
    }
    for name, text in told.items():
        with pytest.raises(ConfigError, match=text):
            registry.load([name])


def test_a_record_s_plugins_are_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry.expect({}, of="tiny/t0001")
    with pytest.raises(ConfigError, match=r"tiny/t0001 .* Add `--plugin my_nets.py`"):
        registry.expect({"my_nets.py": "0" * 16}, of="tiny/t0001")
    registry.load([str(write(tmp_path))])
    with caplog.at_level(logging.WARNING):
        registry.expect(registry.hashes(), of="tiny/t0001")
        assert not caplog.records
        registry.expect({"my_nets.py": "0" * 16}, of="tiny/t0001")
    assert "has changed since tiny/t0001" in caplog.text


def test_a_recipe_that_names_an_entry_says_which_plugin_is_missing(tmp_path, monkeypatch):
    write(tmp_path, text=f"raise SystemExit('it ran')\n{MY_NET}")
    write(tmp_path, "recipe.yaml", RECIPE)
    monkeypatch.chdir(tmp_path)
    told = r"recipe\.yaml:8: recipe\.model: .* It is in my_nets\.py: add `--plugin my_nets\.py`\."
    with pytest.raises(ConfigError, match=told):
        load_recipe("recipe.yaml")
    for model in ("{my_net: {width: 3}}", "my_net"):
        text = RECIPE.replace("my_net", model)
        with pytest.raises(ConfigError, match=r"add `--plugin my_nets\.py`"):
            parse_recipe(text, file="recipe.yaml")
    with pytest.raises(ConfigError) as caught:
        parse_recipe(RECIPE.replace("my_net", "your_net"), file="recipe.yaml")
    assert "--plugin" not in str(caught.value)


def test_a_hint_reads_tables_alone(site: Path, tmp_path: Path) -> None:
    make_distribution(site, "own-nets", "[tune_speed.optimizers]\nbest = own_nets:Best\n")
    os.mkfifo(tmp_path / "pipe.py")  # Opening it would wait forever.
    write(tmp_path, "binary.py", "MODELS my_net \0")
    (tmp_path / "latin.py").write_bytes(b"MODELS = {'my_net': 1} # \xe9")
    write(tmp_path, "words.py", "my_net = 1\nMODELS = dict(other=2)\n'my_net'")
    folders = [tmp_path, tmp_path / "absent"]
    assert missing_plugin("MODELS", "my_net", folders=folders) is None
    write(tmp_path, "annotated.py", 'MODELS: dict[str, type] = {**x, "my_net": Any, }')
    assert f"{tmp_path}/annotated.py" in str(missing_plugin("MODELS", "my_net", folders=folders))
    assert missing_plugin("OPTIMIZERS", "my_net", folders=folders) is None
    told = missing_plugin("OPTIMIZERS", "best", folders=folders)
    assert told == "The installed own-nets has it: add `--plugin own-nets`."


def test_no_plugin_is_loaded_because_a_recipe_names_it(tmp_path, monkeypatch):
    write(tmp_path, text=f"open('ran', 'w')\n{MY_NET}")
    write(tmp_path, "recipe.yaml", f"plugins: [my_nets.py]\n{RECIPE}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no field `plugins`"):
        load_recipe("recipe.yaml")
    assert registry.loaded() == () and not (tmp_path / "ran").exists()

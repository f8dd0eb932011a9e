"""No text of a stranger is run: the package's source has no such call, and files name no code."""

import ast
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import tune_speed
from tune_speed.components.models.networks.libraries import read_weights
from tune_speed.core.errors import ConfigError, DataError
from tune_speed.study.file import parse_recipe
from tune_speed.training.checkpoint.checkpoints import load
from tune_speed.training.checkpoint.store import BadCheckpoint
from tune_speed.training.saved_model import read_model

PACKAGE = Path(tune_speed.__file__).parent
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
FORBIDDEN = {
    *("os.system", "os.popen", "os.execv", "os.execvp", "os.spawnl", "os.startfile", "pty.spawn"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads"),
    *("dill.load", "dill.loads", "marshal.load", "marshal.loads", "shelve.open", "joblib.load"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.FullLoader"),
    *("yaml.UnsafeLoader", "yaml.Loader", "torch.jit.load", "torch.hub.load", "pd.read_pickle"),
    *("importlib.import_module", "runpy.run_path", "runpy.run_module", "tempfile.mktemp"),
    *("torch.hub.load_state_dict_from_url", "ssl._create_unverified_context", "code.interact"),
    *("mlflow.pyfunc.load_model", "mlflow.pytorch.load_model", "multiprocessing.Manager"),
    *("subprocess.getoutput", "subprocess.getstatusoutput"),
    *("importlib.util.spec_from_loader", "importlib.util.spec_from_file_location"),
    *("importlib.util.find_spec", "importlib.metadata.distribution"),
}
ALLOWED = {
    (
        "data/datasets/builtin.py",
        "pickle.Unpickler",
    ): "the base of one that allows three names of numpy",
    ("custom/shipping.py", "pickle.loads"): "a training function, sent by its own search's"
    " driver; none is ever stored",
    ("tuning/services.py", "importlib.import_module"): "a name that stands in the source",
    ("core/lazy.py", "importlib.import_module"): "faces: names that stand in their source",
    (
        "experiments/ablation/ablate.py",
        "importlib.util.find_spec",
    ): "a name that stands in the source",
    ("components/plugins/source.py", "compile"): "a file that the user has named",
    ("components/plugins/source.py", "exec"): "the same, as it was hashed",
    (
        "components/plugins/distributions.py",
        "importlib.util.find_spec",
    ): "a plugin that the user has named",
    (
        "components/plugins/distributions.py",
        "importlib.metadata.distribution",
    ): "a plugin that the user named",
}
"""Calls that look alike and are none, or are bounded otherwise; each with its reason."""
LOADS = {
    "tune_speed.components.plugins.registry.load",
    "tune_speed.components.plugins.registry.load_from_environment",
    "tune_speed.components.plugins.registry.receive",
    "tune_speed.components.plugins.source.run_file",
}
"""What runs code of a plugin's, or of a training function's file."""
_HERE, _THERE = (
    {"tune_speed.components.plugins.registry.load_from_environment"},
    {"tune_speed.components.plugins.registry.receive"},
)
ALLOWED_LOADS = {
    # What --train names.
    "cli/search.py": {"tune_speed.components.plugins.source.run_file"},
    # What a user's test names.
    "testing/__init__.py": {"tune_speed.components.plugins.source.run_file"},
    **dict.fromkeys(
        ("api/entry.py", "cli/common.py"), {"tune_speed.components.plugins.registry.load"} | _HERE
    ),
    **dict.fromkeys(("training/precheck.py",), _HERE),
    **dict.fromkeys(
        (
            "tuning/best_model.py",
            "training/distributed/local.py",
            "tuning/ray/node_query.py",
            "tuning/ray/trial_process.py",
        ),
        _THERE,
    ),
}
"""Files that run such code, with what."""
ALLOWED_PIPES = {
    "data/boxes.py": "a pipe from the process that started it",
    "data/workers.py": "pipes to processes that this one started",
    "training/distributed/local.py": "pipes to processes that this one spawned",
}
"""Files that receive pickles of our own processes."""


@cache
def sources() -> list[tuple[str, list[ast.AST]]]:
    return [
        (path.relative_to(PACKAGE).as_posix(), list(ast.walk(ast.parse(path.read_text()))))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(nodes: list[ast.AST]) -> dict[str, str]:
    """Returns what the names of a module's imports mean, wherever in it they are made."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {
                n.asname or n.name.split(".")[0]: (n.asname and n.name) or n.name.split(".")[0]
                for n in node.names
            }
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {n.asname or n.name: f"{node.module}.{n.name}" for n in node.names}
    return names


def named(nodes: list[ast.AST]) -> Iterator[str]:
    names = imported(nodes)
    for node in nodes:
        if isinstance(node, ast.Call) and dotted(node.func) in BUILTINS:
            yield dotted(node.func)
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)):
            first, dot, rest = name.partition(".")
            if first not in BUILTINS:
                yield f"{names.get(first, first)}{dot}{rest}"


@cache
def names() -> dict[str, set[str]]:
    return {file: set(named(nodes)) for file, nodes in sources()}


@cache
def all_calls() -> list[tuple[str, ast.Call, str]]:
    return [
        (file, node, dotted(node.func))
        for file, nodes in sources()
        for node in nodes
        if isinstance(node, ast.Call)
    ]


def calls(*ends: str) -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls of the package whose names end so, each after its file."""
    return ((file, call) for file, call, name in all_calls() if name.endswith(ends))


def keyword(call: ast.Call, name: str) -> Any:
    found = [each.value for each in call.keywords if each.arg == name]
    return found[0].value if found and isinstance(found[0], ast.Constant) else None


def test_the_package_runs_no_text_and_no_shell() -> None:
    no_call = FORBIDDEN | BUILTINS
    unsafe = {(file, name) for file, found in names().items() for name in found & no_call}
    assert unsafe - ALLOWED.keys() == set()
    assert ALLOWED.keys() - unsafe == set(), "no longer there"


def test_no_process_is_started_through_a_shell() -> None:
    for file, call in calls("subprocess.run", "Popen", "check_output", "check_call"):
        assert keyword(call, "shell") is None, (file, call.lineno)
        given = call.args[0] if call.args else None
        assert not isinstance(given, ast.Constant | ast.JoinedStr), (file, call.lineno)


def test_torch_and_numpy_unpickle_nothing() -> None:
    num_loads = 0
    for file, call in calls("torch.load"):
        assert keyword(call, "weights_only") is True, (file, call.lineno)
        num_loads += 1
    for file, call in calls("np.load", "numpy.load", "np.save"):
        assert keyword(call, "allow_pickle") is False, (file, call.lineno)
        num_loads += 1
    assert num_loads >= 4


def test_only_yaml_events_are_read() -> None:
    files = {
        file: {name for name in found if name.startswith("yaml.")}
        for file, found in names().items()
    }
    using = {file: names for file, names in files.items() if names}
    assert using.keys() == {"study/yaml.py", "tracking/schema.py", "core/prices.py"}
    # The user's own file, in his own folder.
    assert using["core/prices.py"] == {"yaml.safe_load", "yaml.YAMLError"}
    assert {name for name in using["tracking/schema.py"]} == {"yaml.safe_dump"}
    loaders = {name for name in using["study/yaml.py"] if "oad" in name}
    assert loaders == {"yaml.SafeLoader"}  # Whose events alone are asked for.


def test_pickles_come_from_own_processes_alone() -> None:
    receiving = {file for file, _ in calls(".recv")}
    assert receiving == ALLOWED_PIPES.keys()


def test_plugins_run_only_where_the_user_or_a_process_of_his_names_them() -> None:
    """Who loads any: the command line, the environment, a call, and processes of a search."""
    loading = {
        file: found & LOADS
        for file, found in names().items()
        if not file.startswith("components/plugins/")
    }
    assert {file: names for file, names in loading.items() if names} == ALLOWED_LOADS


class Runs:
    """A pickle that writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "ran")


def test_pickles_that_run_code_are_refused_wherever_weights_are_read(tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", tmp_path / "weights.pt"
    for content in ({"w": Runs(ran)}, Runs(ran), {Runs(ran): torch.zeros(1)}):
        torch.save(content, file)
        with pytest.raises(DataError, match="must hold a state dict of tensors"):
            read_weights(str(file))
        with pytest.raises(ConfigError, match="UnpicklingError"):
            read_model(file)
        with pytest.raises(BadCheckpoint):
            load(file.read_bytes())
        file.write_bytes(pickle.dumps(content))
        with pytest.raises(DataError):
            read_weights(str(file))
        with pytest.raises(BadCheckpoint):
            load(file.read_bytes())
    assert not ran.exists()


def test_a_file_that_is_no_weights_is_named_and_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2:x:0:0\n" * 100)
    with pytest.raises(DataError) as caught:
        read_weights(str(secret))
    assert str(secret) in str(caught.value)
    assert "unter2" not in str(caught.value)
    for special in ("/dev/zero", "/proc/self/mem", str(tmp_path), "a" * 5000, "a\0b"):
        with pytest.raises(DataError):
            read_weights(special)


RECIPE = """
workload: digits
recipe:
  model: {model}
  optimizer: {optimizer}
  epochs: 1
  batch_size: 25
"""


@pytest.mark.parametrize(
    "model",
    [
        "os.system",
        "torch.nn:Module",
        "tune_speed.components.models.cifar",
        "{timm: {name: 'hf-hub:evil/model'}}",
        "{timm: {name: 'hf_hub:evil/model'}}",
        "{timm: {name: 'local-dir:/tmp/model'}}",
        "{timm: {name: 'https://evil.example/model.pth'}}",
        "{timm: {name: '../resnet18'}}",
        "{torchvision: {name: 'raft_large'}}",
        "{torchvision: {name: 'quantized_resnet18'}}",
        "{torchvision: {name: 'https://evil.example/model.pth'}}",
        "{resnet20: {_target_: os.system, command: id}}",
        "{__class__: {}}",
        '{\'__import__("os").system("id")\': {}}',
    ],
)
def test_a_recipe_names_only_what_the_tables_hold(model: str) -> None:
    text = RECIPE.format(model=model, optimizer="{sgd: {lr: 0.1}}")
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text, file="recipe.yaml")
    assert all(p.path.startswith("recipe.model") for p in caught.value.problems), caught.value


def test_an_optimizer_is_no_import_path() -> None:
    for name in ("torch.optim.SGD", "{__builtins__: {}}", "{torch.optim.SGD: {lr: 0.1}}"):
        with pytest.raises(ConfigError, match=r"recipe\.optimizer.*: must be one of"):
            parse_recipe(RECIPE.format(model="resnet20", optimizer=name), file="recipe.yaml")

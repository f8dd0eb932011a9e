import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import tune_speed.testing

MY_NETS = '''
from torch import nn

from tune_speed.components import ModelConfig


class Good(ModelConfig):
    """Two dense layers."""

    width: int
    """Of the layer between them."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        """Returns a fresh network."""
        first = nn.Linear(in_channels * image_size**2, self.width)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(self.width, num_classes))


class Bad(Good):
    """Always ten logits."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        """Returns a fresh network."""
        return super().network(in_channels=in_channels, num_classes=10, image_size=image_size)


MODELS = {"good": Good, "bad": Bad}
'''
TEST_FILE = """
import my_nets
from tune_speed.testing import contract_tests

FIELDS = {"good": {"width": 4}, "bad": {"width": 4}}
test_my_nets = contract_tests(my_nets, fields=FIELDS, image_size=8)
test_its_file = contract_tests("my_nets.py", fields=FIELDS, image_size=8)
"""


@pytest.mark.slow
def test_a_users_pytest_has_a_test_for_each_entry_and_contract(tmp_path: Path) -> None:
    (tmp_path / "my_nets.py").write_text(MY_NETS)
    (tmp_path / "test_my_nets.py").write_text(TEST_FILE)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "test_my_nets.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    claim = "logits_are_one_row_an_image_and_one_column_a_class"
    for name in ("test_my_nets", "test_its_file"):
        assert f"::{name}[MODELS.good.{claim}] PASSED" in done.stdout, done.stdout
        assert f"::{name}[MODELS.bad.{claim}] FAILED" in done.stdout
        assert f"::{name}[my_nets.can_be_loaded_as_a_plugin] PASSED" in done.stdout
    assert "`Bad` (`bad`): must hold: logits are" in done.stdout
    assert "[MODELS.good." in done.stdout and "MODELS.good" not in failures(done.stdout)
    assert done.returncode == 1


def test_contracts_are_imported_without_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_speed, "testing", tune_speed.testing)
    ours = [name for name in sys.modules if name.startswith("tune_speed.testing")]
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytest", None)
    fresh = import_module("tune_speed.testing")
    with pytest.raises(ImportError, match="pytest"):
        fresh.contract_tests(ModuleType("my_nets"))


def failures(out: str) -> str:
    return out.partition("short test summary info")[2]

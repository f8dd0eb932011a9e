"""The contracts of a plugin as one parametrised test of the user's pytest."""

from collections.abc import Callable, Mapping
from os import PathLike
from types import ModuleType

from tune_speed.components.models.base import ModelConfig
from tune_speed.testing.collecting import Check, Fields, contracts


def contract_tests(
    plugin: ModuleType | str | PathLike[str],
    *,
    fields: Mapping[str, Fields] | None = None,
    image_size: int = 32,
    model: ModelConfig | None = None,
) -> Callable[[Check], None]:
    """Returns a test, for a test file of yours to keep under a name that begins with `test_`.

    It is parametrised by every contract of every entry; arguments and errors as of `contracts`.
    """
    import pytest

    found = contracts(plugin, fields=fields, image_size=image_size, model=model)

    @pytest.mark.parametrize("check", [pytest.param(check, id=id_) for id_, check in found])
    def test_contract(check: Check) -> None:
        __tracebackhide__ = True
        check()

    return test_contract

"""The contracts of what a table holds (models, data sets, optimizers, …), for your own pytest.

Each entry of a plugin is checked as the package's own are, by a test file next to it:

    from tune_speed.testing import contract_tests
    import my_nets

    test_my_nets = contract_tests(my_nets)

A contract that does not hold raises `ContractError`: what must hold, what was seen, what to fix.
Importing this package imports no pytest.
"""

from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict, Unpack

from tune_speed.components.metrics.base import Metric
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.plugins.source import read_file, run_file
from tune_speed.components.plugins.validation import TABLES, Fields, problems_of, tables_of
from tune_speed.core.config import Config, did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.testing.datasets import DatasetContracts
from tune_speed.testing.entry import ContractError as ContractError
from tune_speed.testing.entry import Contracts, hold
from tune_speed.testing.metrics import MetricContracts
from tune_speed.testing.models import ModelContracts
from tune_speed.testing.optimizers import OptimizerContracts, ScheduleContracts
from tune_speed.testing.speedups import SpeedupContracts

Check = Callable[[], None]
"""Raises ContractError if a contract does not hold."""

CONTRACTS: dict[str, type[Contracts[Any]]] = {
    **{kind.table: kind for kind in (ModelContracts, DatasetContracts, OptimizerContracts)},
    **{kind.table: kind for kind in (ScheduleContracts, SpeedupContracts, MetricContracts)},
}
"""By the table's name."""


class Options(TypedDict, total=False):
    """What entries are checked with."""

    fields: Mapping[str, Fields] | None
    """By an entry's name, what its configuration is made of beyond defaults."""
    image_size: int
    """Height and width of the images that models and speed-ups get [pixels]; 32."""
    model: ModelConfig | None
    """Network that speed-ups are checked on; None: a small one of ours."""


def contracts(
    plugin: ModuleType | str | PathLike[str], **options: Unpack[Options]
) -> list[tuple[str, Check]]:
    """Returns each contract of each entry, with an id such as `MODELS.my_net.trains_under_bf16`.

    The first, `my_nets.can_be_loaded_as_a_plugin`, is that of the module: what `--plugin` asks of
    it. Entries of which only that can be said, as they derive from no base of ours, have no other.

    Args:
        plugin: a module with tables of its own, or the `.py` file of one.
        options: `fields`, `image_size` and `model`, see `Options`.

    Raises: ConfigError if the file cannot be read, or `fields` names no entry.
    """
    if isinstance(plugin, ModuleType):
        module, title = plugin, plugin.__name__
    else:
        file = read_file(str(plugin), must="must be a module or a `.py` file")
        module = run_file(file, prefix="tune_speed_checked", one_file="A plugin is one file.")
        title = Path(plugin).stem
    found = [
        (table, name, entry)
        for table, entries in tables_of(module).items()
        for name, entry in (entries.items() if isinstance(entries, dict) else ())
        if TABLES[table].fits(entry)
    ]
    fields, known = options.pop("fields", None) or {}, [name for _, name, _ in found]
    for name in fields.keys() - set(known):
        near = did_you_mean(name, known) or "."
        must = f"`fields` must name entries of the plugin ({', '.join(known)})"
        raise ConfigError(f"{must}, but got `{name}`{near}")
    checks: list[tuple[str, Check]] = []
    checks.append((f"{title}.can_be_loaded_as_a_plugin", partial(_can_be_loaded, module)))
    for table, name, entry in found:
        own = _checks(table, name, entry, fields=fields.get(name), **options)
        checks += [(f"{table}.{name}.{id_}", check) for id_, check in own]
    return checks


def _checks(table: str, name: str, entry: Any, **given: Any) -> list[tuple[str, Check]]:
    checked = CONTRACTS[table](name=name, entry=entry, **given)
    return [(contract, partial(hold, checked, contract)) for contract in checked.names()]


def _check(table: str, name: str, entry: type[Config] | Metric, **given: Any) -> None:
    for _, check in _checks(table, name, entry, **given):
        check()


check_model = partial(_check, "MODELS")
"""Holds a model (name, class, fields=…, others as of `Options`) to its contracts.

Raises: ContractError for the first broken one.
"""
check_dataset = partial(_check, "DATASETS")
check_optimizer = partial(_check, "OPTIMIZERS")
check_schedule = partial(_check, "SCHEDULES")
check_speedup = partial(_check, "SPEEDUPS")
check_metric = partial(_check, "METRICS")


def contract_tests(
    plugin: ModuleType | str | PathLike[str], **options: Unpack[Options]
) -> Callable[[Check], None]:
    """Returns a test, to be stored in your test file under a name that begins with `test_`.

    It is parametrised by every contract of every entry; arguments and errors as of `contracts`.
    """
    # Here, as importing this package imports no pytest.
    import pytest

    found = contracts(plugin, **options)

    @pytest.mark.parametrize("check", [pytest.param(check, id=id_) for id_, check in found])
    def test_contract(check: Check) -> None:
        # Pytest then leaves these frames out, so that the report ends with the contract's message.
        __tracebackhide__ = True
        check()

    return test_contract


def _can_be_loaded(module: ModuleType) -> None:
    __tracebackhide__ = True
    if problems := problems_of(module, module.__file__ or ""):
        raise ContractError("\n".join(map(str, problems)))

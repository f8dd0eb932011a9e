"""The contracts of one entry, and of all entries of a plugin."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from tune_speed.components.metrics.base import Metric
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.plugins.source import read_file, run_file
from tune_speed.components.plugins.validation import TABLES, Entries, problems_of, tables_of
from tune_speed.core.config import Config, did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.testing.datasets import DatasetContracts
from tune_speed.testing.entry import ContractError, Contracts, hold
from tune_speed.testing.metrics import MetricContracts
from tune_speed.testing.models import ModelContracts
from tune_speed.testing.optimizers import OptimizerContracts
from tune_speed.testing.schedules import ScheduleContracts
from tune_speed.testing.speedups import SpeedupContracts

Fields = Mapping[str, Any]
Check = Callable[[], None]
"""Raises ContractError if a contract does not hold."""

CONTRACTS: dict[str, type[Contracts[Any]]] = {
    "MODELS": ModelContracts,
    "DATASETS": DatasetContracts,
    "OPTIMIZERS": OptimizerContracts,
    "SCHEDULES": ScheduleContracts,
    "SPEEDUPS": SpeedupContracts,
    "METRICS": MetricContracts,
}
"""By the table's name."""


def contracts(
    plugin: ModuleType | str | PathLike[str],
    *,
    fields: Mapping[str, Fields] | None = None,
    image_size: int = 32,
    model: ModelConfig | None = None,
) -> list[tuple[str, Check]]:
    """Returns each contract of each entry, with an id such as `MODELS.my_net.trains_under_bf16`.

    The first, `my_nets.can_be_loaded_as_a_plugin`, is that of the module: what `--plugin` asks of
    it. Entries of which only that can be said, as they derive from no base of ours, have no other.

    Args:
        plugin: a module with tables of its own, or the `.py` file of one.
        fields: by an entry's name, what its configuration is made of beyond defaults.
        image_size: height and width of the images that models and speed-ups get [pixels].
        model: network that speed-ups are checked on; None: a small one of ours.

    Raises: ConfigError if the file cannot be read, or `fields` names no entry.
    """
    if isinstance(plugin, ModuleType):
        module, title = plugin, plugin.__name__
    else:
        file = read_file(str(plugin), must="must be a module or a `.py` file")
        module = run_file(file, prefix="tune_speed_checked", one_file="A plugin is one file.")
        title = Path(plugin).stem
    tables, given = _sound(tables_of(module)), fields or {}
    known = {name for entries in tables.values() for name in entries}
    for name in given.keys() - known:
        names = ", ".join(sorted(known)) or "none that can be checked"
        near = did_you_mean(name, known) or "."
        must = f"`fields` must name entries of the plugin ({names})"
        raise ConfigError(f"{must}, but got `{name}`{near}")
    checks: list[tuple[str, Check]] = []
    checks.append((f"{title}.can_be_loaded_as_a_plugin", partial(_can_be_loaded, module)))
    for table, entries in tables.items():
        for name, entry in entries.items():
            own = given.get(name)
            found = _checks(table, name, entry, fields=own, image_size=image_size, model=model)
            checks += [(f"{table}.{name}.{id_}", check) for id_, check in found]
    return checks


def _checks(
    table: str, name: str, entry: type[Config] | Metric, **options: Any
) -> Iterator[tuple[str, Check]]:
    given = {key: value for key, value in options.items() if value is not None}
    checked = CONTRACTS[table](name=name, entry=entry, **given)
    yield from ((contract, partial(hold, checked, contract)) for contract in checked.names())


def _check(
    table: str,
    name: str,
    entry: type[Config] | Metric,
    *,
    fields: Fields | None = None,
    image_size: int = 32,
    model: ModelConfig | None = None,
) -> None:
    for _, check in _checks(table, name, entry, fields=fields, image_size=image_size, model=model):
        check()


check_model = partial(_check, "MODELS")
"""Holds a model (name, class) to its contracts. Raises: ContractError for the first broken one."""
check_dataset = partial(_check, "DATASETS")
"""The same of a data set."""
check_optimizer = partial(_check, "OPTIMIZERS")
"""The same of an optimizer."""
check_schedule = partial(_check, "SCHEDULES")
"""The same of a schedule."""
check_speedup = partial(_check, "SPEEDUPS")
"""The same of a speed-up."""
check_metric = partial(_check, "METRICS")
"""The same of a metric: its name and the object."""


def contract_tests(
    plugin: ModuleType | str | PathLike[str],
    *,
    fields: Mapping[str, Fields] | None = None,
    image_size: int = 32,
    model: ModelConfig | None = None,
) -> Callable[[Check], None]:
    """Returns a test, to be stored in your test file under a name that begins with `test_`.

    It is parametrised by every contract of every entry; arguments and errors as of `contracts`.
    """
    # Here, as importing this package imports no pytest.
    import pytest

    found = contracts(plugin, fields=fields, image_size=image_size, model=model)

    @pytest.mark.parametrize("check", [pytest.param(check, id=id_) for id_, check in found])
    def test_contract(check: Check) -> None:
        # Pytest then leaves these frames out, so that the report ends with the contract's message.
        __tracebackhide__ = True
        check()

    return test_contract


def _can_be_loaded(module: ModuleType) -> None:
    __tracebackhide__ = True
    problems = problems_of(module, module.__file__ or "")
    if problems:
        raise ContractError("\n".join(map(str, problems)))


def _sound(tables: Entries) -> Entries:
    """Returns the entries that are of their table's kind."""

    # The others break `can_be_loaded_as_a_plugin`; no further contract could be asked of them.
    def is_of(base: type, entry: Any) -> bool:
        return issubclass(entry, base) if isinstance(entry, type) else isinstance(entry, base)

    return {
        table: {name: entry for name, entry in entries.items() if is_of(TABLES[table].base, entry)}
        for table, entries in tables.items()
        if isinstance(entries, dict)
    }

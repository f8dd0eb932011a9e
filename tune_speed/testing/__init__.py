"""The contracts of what a table holds (models, data sets, optimizers, …), for your own pytest.

Each entry of a plugin is checked as the package's own are, by a test file next to it:

    from tune_speed.testing import contract_tests
    import my_nets

    test_my_nets = contract_tests(my_nets)

A contract that does not hold raises `ContractError`: what must hold, what was seen, what to fix.
Importing this package imports no pytest.
"""

from tune_speed.testing.collecting import (
    check_dataset,
    check_metric,
    check_model,
    check_optimizer,
    check_schedule,
    check_speedup,
    contract_tests,
    contracts,
)
from tune_speed.testing.entry import ContractError

__all__ = [
    "ContractError",
    "check_dataset",
    "check_metric",
    "check_model",
    "check_optimizer",
    "check_schedule",
    "check_speedup",
    "contract_tests",
    "contracts",
]

"""The contracts of what a table holds (models, data sets, optimizers, …), for your own pytest.

Write them beside a plugin, and each of its entries is held to what the package's own are held to:

    from tune_speed.testing import contract_tests
    import my_nets

    test_my_nets = contract_tests(my_nets)

A contract that does not hold raises `ContractError`: what must hold, what was seen, what to mend.
Importing this package imports no pytest.
"""

from tune_speed.testing.claims import ContractError
from tune_speed.testing.collecting import (
    check_dataset,
    check_metric,
    check_model,
    check_optimizer,
    check_schedule,
    check_speedup,
    contracts,
)
from tune_speed.testing.parametrised import contract_tests

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

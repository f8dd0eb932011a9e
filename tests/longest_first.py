"""The files whose tests take longest, in the order in which several processes should begin them.

A file's tests stay together (`--dist loadfile`). xdist would begin with the files of the most
tests, which take seconds: a file of few tests and many minutes would come last, and run alone.
"""

LONGEST = (
    "test_search_command.py",
    "test_readme.py",
    "cluster/test_joining.py",
    "faults/test_stores.py",
    "test_certify.py",
    "test_local_crew.py",
    "faults/test_killed_driver.py",
    "faults/test_full_disk.py",
    "cluster/test_other_devices.py",
    "search/test_ray_ddp.py",
    "cluster/test_node_loss.py",
    "faults/test_hanging_trials.py",
    "faults/test_leaking_memory.py",
    "faults/test_killed_processes.py",
    "test_devices_command.py",
    "examples/test_own_loops.py",
    "test_own_search.py",
    "test_best_model.py",
    "search/test_ray_tuner.py",
    "search/test_trial_process.py",
    "faults/test_stores_login.py",
    "faults/test_clock_jumps.py",
    "cluster/test_loopback.py",
    "search/test_policy_properties.py",
    "tracking/test_server.py",
    "test_ablate_command.py",
    "test_api.py",
    "examples/test_own_cnn.py",
    "testing/test_contracts.py",
    "examples/test_digits_front.py",
    "test_finished_model.py",
    "test_train_command.py",
    "docker/test_compose_runs.py",
    "faults/test_failing_trials.py",
    "test_watch.py",
    "tracking/test_server_login.py",
    "test_batch_tuner.py",
    "test_objective.py",
    "test_simulate_command.py",
    "test_cli.py",
    "test_bad_input.py",
    "tracking/test_server_postgres.py",
    "tracking/test_sqlite.py",
    "test_micro_batch.py",
    "models/test_models_contract.py",
    "search/test_same_decisions.py",
    "test_train.py",
    "test_gradient.py",
    "test_checkpoint.py",
    "test_ranks.py",
)
"""Below `tests/`; those with more than about twenty seconds."""


def rank(file: str) -> int:
    """Returns the place of a file below `tests/` in that order; those not listed share the last."""
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)

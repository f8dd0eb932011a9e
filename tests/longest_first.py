"""The files whose tests take longest, in the order in which several processes should begin them.

A file's tests stay together (`--dist loadfile`). xdist would begin with the files of the most
tests, which take seconds: a file of few tests and many minutes would come last, and run alone.
"""

LONGEST = (
    "test_first_hour.py",
    "test_artifacts.py",
    "cli/test_search_command.py",
    "test_readme.py",
    "cluster/test_joining.py",
    "faults/test_stores.py",
    "cuda_double/test_search.py",
    "cuda_double/test_fractional_trial.py",
    "experiments/certification/test_certify.py",
    "training/distributed/test_local_ranks.py",
    "faults/test_killed_processes.py",
    "faults/test_failing_trials.py",
    "faults/test_full_disk.py",
    "cluster/test_other_devices.py",
    "cluster/test_node_loss.py",
    "cli/test_devices_command.py",
    "examples/test_own_loops.py",
    "custom/test_custom_search.py",
    "tuning/test_best_model.py",
    "tuning/ray/test_ray_tuner.py",
    "tuning/ray/test_trial_process.py",
    "faults/test_many_trials.py",
    "cluster/test_loopback.py",
    "tuning/policy/test_policy_properties.py",
    "tracking/writer/test_server.py",
    "cli/test_ablate_command.py",
    "api/test_api.py",
    "examples/test_own_cnn.py",
    "testing/test_contracts.py",
    "examples/test_digits_front.py",
    "training/test_evaluate.py",
    "cli/test_train_command.py",
    "docker/test_compose_runs.py",
    "reporting/server/test_live_in_browser.py",
    "reporting/watch/test_watch.py",
    "tracking/store/test_server_login.py",
    "training/autotune/test_micro_batch.py",
    "training/test_objective.py",
    "cli/test_simulate_command.py",
    "cli/test_cli.py",
    "cli/test_bad_input.py",
    "tracking/reader/test_server_postgres.py",
    "tracking/store/test_sqlite.py",
    "components/models/test_models_contract.py",
    "components/speedups/test_combined.py",
    "tuning/simulation/test_same_decisions.py",
    "training/test_train.py",
    "training/step/test_stepper.py",
    "training/checkpoint/test_checkpoint.py",
    "training/test_ranks.py",
    "test_wheel.py",
    "cli/test_export_command.py",
    "experiments/exports/test_plain_script.py",
)
"""Below `tests/`; those with more than about twenty seconds."""


def rank(file: str) -> int:
    """Returns the place of a file below `tests/` in that order; those not listed share the last."""
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)

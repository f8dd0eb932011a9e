"""What the sides of the benchmark of noisy searches do with the end of their budget."""

from collections import Counter

from noisy_sides import TIMES, TOP, WithReruns

from tune_speed.core.records import Status
from tune_speed.tuning.policy.base import params_key
from tune_speed.tuning.simulation.simulate import new_policy, run_policy
from tune_speed.tuning.simulation.synthetic import NOISY

WORKERS = 4


def test_five_fastest_run_three_times_more_and_the_best_by_all_its_runs_is_recommended() -> None:
    benchmark = NOISY["noisy-2-fixed_length"].fresh(0)
    budget_s = 60 * benchmark.full_run_s / WORKERS
    policy = WithReruns(new_policy("random", benchmark, seed=1), budget_s=budget_s, workers=WORKERS)
    trace = run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_s)
    again = [trial for trial in trace.trials if trial.reason == "one of the five fastest"]
    assert sorted(Counter(params_key(trial.params) for trial in again).values()) == [TIMES] * TOP
    before = [trial for trial in trace.trials if trial not in again]
    met = sorted(t.train_s for t in before if t.status == Status.REACHED)
    firsts = {params_key(t.params) for t in before if t.status == Status.REACHED}
    assert len(met) >= TOP and {params_key(trial.params) for trial in again} <= firsts
    spent_s, hits = Counter[object](), Counter[object]()
    for trial in trace.trials:
        spent_s[params_key(trial.params)] += trial.train_s
        hits[params_key(trial.params)] += trial.status == Status.REACHED
    best = min({params_key(t.params) for t in again}, key=lambda key: spent_s[key] / hits[key])
    assert trace.recommended is not None and params_key(trace.recommended) == best

import optuna, warnings, os

warnings.simplefilter("ignore")
optuna.logging.set_verbosity(optuna.logging.WARNING)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from tune_speed.optuna import *

nan = float("nan")
for ch in (
    [[64], [64, 64]],
    [(64,), (64, 64), ((1,), 2)],
    [{"a": 1}, {"b": (2,)}],
    [1.0, nan],
    [None, nan, 1],
    [1, True],
    [1, 1.0, True],
    ["1", 1],
    [nan, 1.0, 2.0],
    [{1: 2}, {(1, 2): 3}],
    [1, 1.0, 1],
    [10**400, 1, 2],
):
    for kind in ("mem", "journal", "sqlite"):
        st = {"mem": None, "journal": None, "sqlite": "sqlite:///:memory:"}[kind]
        if kind == "journal":
            if os.path.exists("x.log"):
                os.remove("x.log")
            st = JournalStorage(JournalFileBackend("x.log"))

        def objective(t):
            v = t.suggest_categorical("h", ch)
            seen.append(v)
            lr = t.suggest_float("lr", 0.1, 1)
            if v == ch[0]:
                t.suggest_float("x", 0, 1)
            with timed(t):
                for e in range(3):
                    t.report(0.3 * e, e)
                    if t.should_prune():
                        raise optuna.TrialPruned
            return lr

        seen = []
        try:
            sm = TimeToTargetSampler(0.5, num_trials=20, seed=0)
            s = optuna.create_study(storage=st, sampler=sm, pruner=TimeToTargetPruner())
            s.optimize(objective, n_trials=20)
            print(
                kind,
                ch if kind != "mem" else str(ch)[:30],
                "ok",
                {repr(x)[:30] for x in seen},
                sm.recommended(s).runs,
                len(sm._planned),
            )
        except Exception as e:
            import traceback

            print(kind, str(ch)[:40], type(e), str(e)[:200])

"""Training functions of one's own: `my_train(params, run)`, searched and certified as ours are.

```python
def my_train(params, run):
    model, batches = ...                        # set-up: not on the clock
    with run.timed():                           # the training clock runs
        for step, batch in enumerate(batches, start=1):
            ...                                 # forward, backward, optimizer step
            run.step()                          # optional
            if step % 100 == 0:
                with run.untimed():             # it is stopped
                    accuracy = evaluate(model)
                run.evaluated(step=step, metric=accuracy)

study = tune_speed.search(train=my_train, space={"lr": {"low": 0.01, "high": 1.0}}, target=0.97)
```
"""

from tune_speed.custom.run import OwnRun, StopTraining

__all__ = ["OwnRun", "StopTraining"]

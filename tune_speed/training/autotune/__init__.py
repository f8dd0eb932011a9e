"""What is measured before a run: micro-batch, kind of step, loader workers.

`objective.resolve` calls the `resolved` of each module in turn.
"""

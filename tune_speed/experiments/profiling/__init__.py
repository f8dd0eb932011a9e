"""Where the time of an optimizer step goes, against what the device could do; and what to change.

`phases` takes a step apart, `rates` measures the device, `work` counts what a step computes and
moves, `roofline` sets one against the other, `advice` says what to try; `table` and `picture` show
it. `tune_speed.experiments.profiling.profile` puts them together.
"""

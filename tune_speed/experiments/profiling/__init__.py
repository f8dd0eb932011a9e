"""Where the time of an optimizer step goes, against what the device could do; and what to change.

`torch.profiler` records steps with marks between phases (`phases`), rates are measured (`rates`),
a step's work is counted (`pipeline`), and the roofline compares them (`profile`).
"""

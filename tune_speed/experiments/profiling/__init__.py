"""Where the time of an optimizer step goes, against what the device could do; and what to change.

Steps run with borders between their phases (`phases`), the device's rates are measured (`rates`),
what a step computes and moves is counted (`work`), and the roofline compares them (`profile`).
"""

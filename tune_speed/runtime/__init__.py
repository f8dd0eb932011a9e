"""The machine that a trial runs on.

Device, hardware facts, clocks, the turnstile between trials that share a device, and the
process itself.
"""

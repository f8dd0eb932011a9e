"""The machine that a trial runs on, and the process itself: devices, clocks, turnstile, files."""

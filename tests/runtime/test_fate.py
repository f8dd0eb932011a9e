"""A process and its child, for real: the one is killed, the other is frozen."""

import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from helpers.processes import is_alive

CHILD = "{call}\nprint('ready', flush=True)\nimport time; time.sleep(600)"
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
CALL = "from tune_speed.runtime.process import end_with_parent; end_with_parent()"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
@pytest.mark.parametrize(("call", "outlives"), [(CALL, False), ("", True)])
def test_frozen_process_ends_with_its_parent_if_told_so(call: str, outlives: bool) -> None:
    source = PARENT.format(child=CHILD.format(call=call))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            child.suspend()
            parent.kill()
            parent.wait()
            deadline = time.monotonic() + (1 if outlives else 60)
            while is_alive(child) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert is_alive(child) == outlives
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()

"""Devices by name, memory that is counted, bounded and given back, errors that mean it ran out."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from helpers.training.tiny import CPU

from tune_speed.core.errors import ConfigError
from tune_speed.runtime.device import (
    GIB,
    STEPS_AHEAD,
    _node_memory_bytes,
    describe_device,
    device_memory_gib,
    is_device_failure,
    is_out_of_memory,
    limit_memory,
    memory_limit_gib,
    pacer,
    resolve_device,
    synchronizer,
)

MIB = 1024**2


FORKING = """
import contextlib, io, json, os, sys, traceback, torch
from tune_speed.runtime import device

for line in sys.stdin:
    if os.fork():
        os.wait()
        continue
    printed, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(json.loads(line), {})
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), flush=True)
    os._exit(0)
"""
"""Runs each line as a program in a process of its own, which has torch imported but not set up."""
RunPython = Callable[[str], str]


@pytest.fixture(scope="module")
def run_python() -> Iterator[RunPython]:
    command = [sys.executable, "-c", FORKING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def run(program: str) -> str:
            print(json.dumps(program), file=process.stdin, flush=True)
            printed, error = json.loads(process.stdout.readline())
            assert error is None, error
            return str(printed)

        yield run
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize("count", [0, 2])
def test_auto_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert resolve_device("auto").type == ("cuda" if count else "cpu")
    assert resolve_device("cpu") == CPU


def test_gpu_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    named = {name: str(resolve_device(name)) for name in ("auto", "cuda", "cuda:0", "cuda:1")}
    assert named == {"auto": "cuda:0", "cuda": "cuda:0", "cuda:0": "cuda:0", "cuda:1": "cuda:1"}


@pytest.mark.usefixtures("one_h200")
def test_share_of_a_gpu_is_set_for_a_device_with_and_without_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's own checks run; only the driver is absent, so that no context is known."""
    shares: list[tuple[float, int]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(
        torch._C, "_cuda_setMemoryFraction", lambda *share: shares.append(share), raising=False
    )
    for name, fraction in (("cuda", 0.25), ("cuda:1", 0.5), ("cuda", 1.0)):
        limit_memory(resolve_device(name), gpu_fraction=fraction)
    assert shares == [(pytest.approx(0.225), 0), (pytest.approx(0.45), 1)]


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7", "gpu", "mps", "cpu:1", ""])
def test_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=f"device must .* but got `?{name}"):
        resolve_device(name)


def test_cpu_is_described_with_its_threads_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    cpu_info = Path("/proc/cpuinfo")
    description = describe_device(CPU)
    assert description.startswith("cpu (3 threads, ")
    assert (
        not cpu_info.exists() or description[len("cpu (3 threads, ") : -1] in cpu_info.read_text()
    )


def test_cpu_needs_no_synchronizing() -> None:
    assert synchronizer(CPU)() is None


def test_peak_memory_rises_with_a_tensor_and_falls_with_the_next_run(run_python: RunPython) -> None:
    peaks = run_python(
        "import torch\n"
        "from tune_speed.runtime.device import peak_memory_gib, reset_peak_memory, set_up_process\n"
        "cpu = torch.device('cpu')\n"
        "set_up_process(cpu, cpu_threads=1)\n"
        "for size in (1, 300, 1):\n"
        "    reset_peak_memory(cpu)\n"
        "    tensors = [torch.ones(1 << 18) for _ in range(size)]\n"
        "    keep = torch.ones(1)\n"
        "    print(peak_memory_gib(cpu))\n"
        "    del tensors\n"
    )
    before, raised, after = map(float, peaks.split())
    assert 0 < before < psutil.virtual_memory().total / GIB
    assert raised - before == pytest.approx(300 * MIB / GIB, abs=0.03)
    assert after == pytest.approx(before, abs=0.03)


def test_memory_of_dead_tensors_is_given_back(run_python: RunPython) -> None:
    used = run_python(
        "import torch, psutil\n"
        "from tune_speed.runtime.device import release_memory, set_up_process\n"
        "cpu, process = torch.device('cpu'), psutil.Process()\n"
        "set_up_process(cpu, cpu_threads=1)\n"
        "used = lambda: print(process.memory_info().rss)\n"
        "used()\n"
        "tensors = [torch.ones(1 << 20) for _ in range(100)]\n"
        "keep = tensors[::10]\n"
        "del tensors\n"
        "used()\n"
        "release_memory(cpu)\n"
        "used()\n"
    )
    before, held, released = (int(line) / MIB for line in used.split())
    assert held - before > 390  # kept for the next step
    assert released - before < 60  # but for the 40 MiB that are still in use


def test_step_after_a_step_gets_its_memory_without_page_faults(run_python: RunPython) -> None:
    faults = run_python(
        "import torch, resource\n"
        "from tune_speed.runtime.device import set_up_process\n"
        "def count_faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(5):\n"
        "        torch.ones(40 << 18)\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
        "count_faults()\n"
        "set_up_process(torch.device('cpu'), cpu_threads=1)\n"
        "for _ in range(6):\n"
        "    count_faults()\n"
        "print(torch.get_num_threads())\n"
    )
    by_default, *_, kept, threads = map(int, faults.split())
    pages = 40 * MIB // resource.getpagesize()
    assert by_default > 4 * pages
    assert kept < pages / 10
    assert threads == 1


def test_cpu_share_is_a_share_of_the_nodes_memory() -> None:
    half, whole = (memory_limit_gib(CPU, gpu_fraction=0, cpu_fraction=f) for f in (0.5, 1.0))
    assert half == whole / 2
    assert 0 < whole <= psutil.virtual_memory().total / GIB


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1073741824\n", GIB), ("max\n", None), ("9223372036854771712\n", None), (None, None)],
)
def test_container_with_less_memory_than_the_machine_counts(
    tmp_path: Path, text: str | None, expected: int | None
) -> None:
    file = tmp_path / "memory.max"
    if text is not None:
        file.write_text(text)
    assert _node_memory_bytes((file,)) == (expected or psutil.virtual_memory().total)


def test_process_beyond_its_share_gets_an_error_and_goes_on(run_python: RunPython) -> None:
    outcomes = run_python(
        "import torch\n"
        "from tune_speed.runtime import device\n"
        "cpu = torch.device('cpu')\n"
        "device._node_memory_bytes = lambda: 400 << 20\n"
        "device.limit_memory(cpu, gpu_fraction=0, cpu_fraction=0.5)\n"
        "for mib in (150, 250, 150):\n"
        "    try:\n"
        "        torch.ones(mib << 18)\n"
        "        print('fits')\n"
        "    except Exception as error:\n"
        "        print(device.is_out_of_memory(error))\n"
        "    device.release_memory(cpu)\n"
    )
    assert outcomes.split() == ["fits", "True", "fits"]


def test_errors_that_mean_out_of_memory_are_told_from_others() -> None:
    real = [
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried",
        "std::bad_alloc",
    ]
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA"), *map(RuntimeError, real)):
        assert is_out_of_memory(error)
    others = (RuntimeError("shape mismatch"), ValueError("can't allocate memory"), KeyError())
    assert not any(map(is_out_of_memory, others))


# As pytorch and its libraries word them.
@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "FIND was unable to find an engine to execute this computation",
        "GET was unable to find an engine to execute this computation",
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\nLast error:\n"
        "Cuda failure 2 'out of memory'",
        "Cuda failure 'out of memory'",
    ],
)
def test_what_runs_out_of_memory_on_a_gpu_is_told_from_a_lost_device(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert not is_device_failure(RuntimeError(text))


def test_out_of_memory_counts_where_only_the_handling_of_it_is_raised() -> None:
    def tidy_up() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError:
            raise ValueError("nothing to tidy up")  # noqa: B904

    with pytest.raises(ValueError, match="tidy") as raised:
        tidy_up()
    assert raised.value.__cause__ is None and is_out_of_memory(raised.value)


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("CUDA error: operation not permitted when stream is capturing", False),
        ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", False),
        ("shape mismatch", False),
    ],
)
def test_error_after_which_a_process_has_lost_its_device(text: str, is_lost: bool) -> None:
    kinds: list[type[Exception]] = [RuntimeError, torch.AcceleratorError]
    for error in (kind(text) for kind in kinds):
        assert is_device_failure(error) == is_lost
        wrapped = ValueError("a compiler's")
        wrapped.__cause__ = error
        assert is_device_failure(wrapped) == is_lost


def test_out_of_memory_is_seen_through_what_a_compiler_wraps_round_it() -> None:
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(wrapped)


def test_unknown_failure_of_onednn_counts_only_near_the_limit(run_python: RunPython) -> None:
    outcomes = run_python(
        "import resource\n"
        "from tune_speed.runtime.device import status_bytes\n"
        "from tune_speed.runtime.device import is_out_of_memory\n"
        "error = RuntimeError('could not create a primitive')\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_DATA)\n"
        "for factor in (10, 1.1):\n"
        "    limit = int(factor * status_bytes('VmData'))\n"
        "    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))\n"
        "    print(is_out_of_memory(error))\n"
    )
    assert outcomes.split() == ["False", "True"]


def test_memory_on_the_device_is_what_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * gib, 80 * gib))
    assert device_memory_gib(torch.device("cuda", 0)) == 20.0
    assert device_memory_gib(torch.device("cpu")) is None


class Queue:
    """A device whose steps end when the host waits for them, and not before."""

    num_queued = num_done = 0


class Event:
    """Ends with the steps that were queued when it was recorded."""

    def __init__(self, *, blocking: bool) -> None:
        assert blocking

    def record(self, stream: str) -> None:
        assert stream == "current"
        self.after = Queue.num_queued

    def synchronize(self) -> None:
        Queue.num_done = max(Queue.num_done, self.after)


def test_host_is_few_steps_ahead_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "current")
    keep_pace, ahead = pacer(torch.device("cuda", 0)), []
    for _ in range(50):
        Queue.num_queued += 1
        keep_pace()
        ahead.append(Queue.num_queued - Queue.num_done)
    # Some steps stay queued, so that the device never waits for the host.
    assert 2 <= STEPS_AHEAD <= 4
    assert max(ahead) == ahead[-1] == STEPS_AHEAD


def test_nothing_is_ahead_of_a_cpu() -> None:
    assert pacer(CPU)() is None

"""GPUs that are not there: torch's own Python for CUDA over a driver that computes on the CPU.

What torch calls in C (`torch._C._cuda_*`, streams, events, graphs) is replaced; what torch does in
Python above it, its checks of arguments included, is torch's own. Tensors lie in main memory, and a
table says which of them are "on" which GPU. The driver is strict where a GPU and torch are:

- an operation's tensors are on one device; a GPU's tensor is no NumPy array;
- each thread has a current device, and each device a current stream;
- what one stream wrote, another may use only after it waited for it;
- a capture executes nothing, holds what is launched on its own stream and device, and dies of
  whatever waits for the device; a graph does again what was recorded, with new random numbers;
- memory is counted, with cuBLAS' workspace for each stream, and ends at the process's fraction;
- after an error of a kernel each later call fails, and the first one to wait for it does.

It has no clock of its own: what a GPU would do later is done when it is launched.
"""

import os
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MIB, GIB = 1024**2, 1024**3
WORKSPACE_BYTES = MIB // 4
"""Of cuBLAS for each stream; small, like everything here."""
STAGED_BYTES = 64 * 1024
"""So much of pageable memory CUDA copies to a device without a wait (its programming guide,
"Concurrent execution between host and device")."""
NAME = "NVIDIA Double 1"
ASSERTED = "CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA` to enable"
CAPTURING = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"
aten = torch.ops.aten
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default}
"""Operations whose result the host waits for."""
MULTIPLYING = {
    getattr(aten, name).default
    for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
}
UNSET: Any = object()


class Placed(NamedTuple):
    gpu: int
    num_bytes: int
    written: tuple[int, int]
    """Stream and its tick of the last write."""
    ref: Any
    """Tells when it dies."""


class Gpu:
    def __init__(self, index: int, total: int) -> None:
        self.index, self.total, self.fraction = index, total, 1.0
        self.allocated = self.peak = 0
        self.ticks: Counter[int] = Counter()
        self.seen: dict[int, Counter[int]] = defaultdict(Counter)
        """What each stream has waited for, as ticks of the others."""
        self.host_seen: Counter[int] = Counter()
        """What the host has waited for: nothing that it launches later can overtake that."""
        self.workspaces: set[int] = set()

    def allocate(self, num_bytes: int) -> None:
        if self.allocated + num_bytes > self.fraction * self.total:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {num_bytes / MIB:.2f} MiB. GPU {self.index}"
                f" has a total capacity of {self.total / GIB:.2f} GiB"
            )
        self.allocated += num_bytes
        self.peak = max(self.peak, self.allocated)

    def join(self, waiting: int, seen: Counter[int]) -> None:
        """Lets a stream see what others had done."""
        self.seen[waiting] |= seen

    def done(self, stream: int) -> Counter[int]:
        """Returns all that is done where a stream stands."""
        return self.seen[stream] | Counter({stream: self.ticks[stream]})


class Driver:
    def __init__(self, *, num_gpus: int = 1, memory_gib: float = 1.0) -> None:
        self.gpus = [Gpu(index, int(memory_gib * GIB)) for index in range(num_gpus)]
        self.error: str | None = None
        """What each call fails with, once there is one."""
        self.capture: Graph | None = None
        self.calls: Counter[str] = Counter()
        """Of the driver, by name."""
        self.num_graphs, self.num_nodes = 0, 0
        self.refuses_capture = self.refuses_compiling = False
        """Whether no capture survives, and nothing can be compiled."""
        self.loses_work = False
        """Whether captures are empty, as where the work is on another device or stream."""
        self.out_of_memory = ""
        """What a library says where memory ends, if it is not torch that finds it out."""
        self.flags: set[tuple[bool, bool]] = set()
        """`deterministic` and `benchmark` of cuDNN, as convolutions were launched."""
        self._places: dict[int, Placed] = {}
        self._pinned: dict[int, Any] = {}
        self._local = threading.local()

    def memory_info(self, device: torch.device) -> tuple[int, int]:
        """Returns what is free and what there is [bytes]; contexts and caches take nothing here."""
        self.check()
        gpu = self.gpus[device.index]
        return gpu.total - gpu.allocated, gpu.total

    # --- What belongs to a thread

    def enter_thread(self) -> None:
        """Lets tensors of this thread be on a GPU; once is enough."""
        if getattr(self._local, "modes", None) is not None:
            return
        self._local.modes = stack = ExitStack()
        self._local.device, self._local.target = 0, UNSET
        self._local.streams = defaultdict(int)
        stack.enter_context(_Functions(self))
        stack.enter_context(_Launches(self))

    @property
    def device(self) -> int:
        self.enter_thread()
        return self._local.device

    @device.setter
    def device(self, index: int) -> None:
        self.enter_thread()
        self.check()
        if not 0 <= index < len(self.gpus):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        self._local.device = index

    def stream_of(self, gpu: int) -> int:
        self.enter_thread()
        return self._local.streams[gpu]

    def set_stream(self, gpu: int, stream: int) -> None:
        self.device = gpu
        self._local.streams[gpu] = stream

    @contextmanager
    def placing(self, target: int | None) -> Iterator[None]:
        """Has new tensors of the block on a GPU, or on the CPU."""
        before, self._local.target = self._local.target, target
        try:
            yield
        finally:
            self._local.target = before

    def index_of(self, device: Any) -> int | None:
        """Returns the GPU that a device means; None for the CPU."""
        if isinstance(device, int):
            return device
        device = torch.device(device)
        if device.type != "cuda":
            return None
        index = self.device if device.index is None else device.index
        if index >= len(self.gpus):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        return index

    # --- Where tensors are

    def gpu_of(self, tensor: Tensor) -> int | None:
        placed = self._places.get(tensor.untyped_storage()._cdata)
        return None if placed is None else placed.gpu

    def is_staged(self, tensor: Tensor, is_async: bool) -> bool:
        """Returns whether a copy to the device leaves the host at once; see `STAGED_BYTES`."""
        return self.is_pinned(tensor) or (is_async and tensor.nbytes <= STAGED_BYTES)

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._pinned[key] = weakref.ref(storage, lambda _: self._pinned.pop(key, None))
        return tensor

    def _place(self, tensor: Tensor, gpu: int, stream: int) -> None:
        """Notes where a new storage is, or that an old one was written."""
        storage = tensor.untyped_storage()
        key, tick = storage._cdata, self.gpus[gpu].ticks[stream]
        placed = self._places.get(key)
        if placed is not None:
            self._places[key] = placed._replace(written=(stream, tick))
            return
        self.allocate(gpu, storage.nbytes())
        ref = weakref.ref(storage, lambda _: self._forget(key))
        self._places[key] = Placed(gpu, storage.nbytes(), (stream, tick), ref)

    def _forget(self, key: int) -> None:
        placed = self._places.pop(key, None)
        if placed is not None:
            self.gpus[placed.gpu].allocated -= placed.num_bytes

    def allocate(self, gpu: int, num_bytes: int) -> None:
        try:
            self.gpus[gpu].allocate(num_bytes)
        except torch.OutOfMemoryError:
            if not self.out_of_memory:
                raise
            raise RuntimeError(self.out_of_memory) from None

    # --- What is launched

    def check(self) -> None:
        """Raises: the error of an earlier kernel."""
        if self.error is not None:
            raise torch.AcceleratorError(self.error)

    def wait(self, what: str) -> None:
        """The host waits. Raises: the error of an earlier kernel; in a capture, that it may not."""
        self.calls[what] += 1
        self.check()
        if self.capture is not None and self.capture.thread is threading.current_thread():
            self.capture.is_invalid = True
            raise torch.AcceleratorError(CAPTURING)
        gpu = self.gpus[self.device]
        gpu.host_seen |= gpu.done(self.stream_of(gpu.index))

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Does an operation, on the device of its tensors."""
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        places = {self.gpu_of(each) for each in tensors if each.dim() or self.gpu_of(each)}
        places |= {self.gpu_of(each) for each in tensors} - {None}
        gpus, target = places - {None}, self._local.target
        if func is aten.copy_.default:
            return self._copy(func, args, kwargs)
        if target is UNSET:
            may_mix = func._opname in ("index", "index_put", "index_put_", "_to_copy")
            if len(gpus) > 1 or (gpus and None in places and not may_mix):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices,"
                    f" {' and '.join(map(_name, places))}! (when running {func})"
                )
            target = next(iter(gpus), None)
        if gpus and func in WAITING:
            self.wait(func._opname)
        if target is None:
            return func(*args, **kwargs)
        return self.launch(target, func, args, kwargs, tensors)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        to, source = args[:2]
        here, there = self.gpu_of(to), self.gpu_of(source)
        if here is None and there is None:
            return func(*args, **kwargs)
        is_async = bool(args[2:] and args[2]) or kwargs.get("non_blocking", False)
        if here is None or (
            there is None and source.dim() and not self.is_staged(source, is_async)
        ):
            self.wait("copy")
        return self.launch(there if here is None else here, func, args, kwargs, [to, source])

    def launch(self, gpu: int, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """Does an operation on a GPU's current stream, or records it there."""
        self.check()
        device, stream = self.gpus[gpu], self.stream_of(gpu)
        self._refuse_race(device, stream, tensors)
        if func in MULTIPLYING and stream not in device.workspaces:
            device.workspaces.add(stream)
            self.allocate(gpu, WORKSPACE_BYTES)
        if func is aten.convolution.default:
            self.flags.add((torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark))
        graph = self.capture
        is_recorded = graph is not None and graph.place == (gpu, stream) and not self.loses_work
        if is_recorded and self.refuses_capture:
            self.wait("refused")
        written = _written(func, args, kwargs)
        before = [each.clone() for each in written] if is_recorded else []
        try:
            result = func(*args, **kwargs)
        except IndexError:  # What a kernel asserts.
            self.error = ASSERTED
            raise torch.AcceleratorError(ASSERTED) from None
        device.ticks[stream] += not is_recorded
        new = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        for each in new if is_recorded else (*new, *written):
            if self.gpu_of(each) is not None or not _shares(each, tensors):
                self._place(each, gpu, stream)
        if is_recorded:
            assert graph is not None
            for tensor, value in zip(written, before, strict=True):
                tensor.data.copy_(value)
            fresh = [each for each in new if not _shares(each, tensors)]
            graph.nodes.append((func, args, kwargs, result, fresh))
        return result

    def _refuse_race(self, device: Gpu, stream: int, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            placed = self._places.get(tensor.untyped_storage()._cdata)
            if placed is None or placed.gpu != device.index:
                continue
            writer, tick = placed.written
            seen = max(device.seen[stream][writer], device.host_seen[writer])
            assert writer == stream or seen >= tick, (
                f"stream {stream} uses what stream {writer} wrote, and has not waited for it"
            )

    def leave_thread(self) -> None:
        """Undoes `enter_thread`."""
        self._local.modes.close()
        self._local = threading.local()


def _name(place: int | None) -> str:
    return "cpu" if place is None else f"cuda:{place}"


def _shares(tensor: Tensor, others: list[Tensor]) -> bool:
    key = tensor.untyped_storage()._cdata
    return any(each.untyped_storage()._cdata == key for each in others)


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Returns the arguments that an operation changes, by its schema."""
    values = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    changed = [
        values.get(each.name)
        for each in func._schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
    ]
    return [each for each in tree_leaves(changed) if isinstance(each, Tensor)]


class _Launches(TorchDispatchMode):
    """Gives the driver each operation, those of the backward pass included."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._driver.run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Takes the device out of calls, which torch would look for, and puts tensors there."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver
        self._own: dict[Any, Callable[..., Any]] = {
            torch.Tensor.device.__get__: lambda t: torch.device(_name(driver.gpu_of(t))),
            torch.Tensor.is_cuda.__get__: lambda t: driver.gpu_of(t) is not None,
            torch.Tensor.to: self._to,
            torch.Tensor.cpu: lambda t, **_: self._to(t, "cpu"),
            torch.Tensor.cuda: lambda t, device=None, **_: self._to(t, device or "cuda"),
            torch.Tensor.numpy: self._numpy,
            torch.Tensor.tolist: self._tolist,
            torch.Tensor.pin_memory: lambda t, *_: driver.pin(t.clone()),
            torch.Tensor.is_pinned: lambda t, *_: driver.is_pinned(t),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._own:
            return self._own[func](*args, **kwargs)
        is_pinned = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        if func is torch.as_tensor and device is not None:
            return self._to(func(*args, **{**kwargs, "device": "cpu"}), device)
        if device is not None and func is not torch.Generator:
            kwargs["device"] = "cpu"
            with self._driver.placing(self._driver.index_of(device)):
                return func(*args, **kwargs)
        result = func(*args, **kwargs)
        return self._driver.pin(result) if is_pinned else result

    def _to(self, tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        driver = self._driver
        if args and isinstance(args[0], Tensor):
            kwargs |= {"device": _name(driver.gpu_of(args[0])), "dtype": args[0].dtype}
            args = args[1:]
        device, dtype, is_async, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        here = driver.gpu_of(tensor)
        there = here if device is None else driver.index_of(device)
        options: dict[str, Any] = {"dtype": dtype or tensor.dtype}
        if memory_format is not None:
            options["memory_format"] = memory_format
        if there == here:
            return tensor.to(copy=copy, **options)
        has_values = device is None or device.type != "meta"
        if has_values and (there is None or not (is_async and driver.is_staged(tensor, is_async))):
            driver.wait("copy")
        with driver.placing(there):
            return tensor.to(copy=True, **options)

    def _numpy(self, tensor: Tensor, **kwargs: Any) -> Any:
        if (gpu := self._driver.gpu_of(tensor)) is not None:
            raise TypeError(f"can't convert cuda:{gpu} device type tensor to numpy.")
        return tensor.numpy(**kwargs)

    def _tolist(self, tensor: Tensor) -> Any:
        if self._driver.gpu_of(tensor) is not None:
            self._driver.wait("tolist")
        return tensor.tolist()


# --- What torch.cuda is made of


# Never used again: a process may keep a stream for longer than a test.
_stream_ids = count(1)


class Stream:
    driver: Driver

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = 1,
    ) -> None:
        driver = self.driver
        if stream_id is None:
            driver.check()
            stream_id = next(_stream_ids)
            device_index = driver.device if device is None else driver.index_of(device)
        self.stream_id, self.device_index, self.device_type = stream_id, device_index, device_type
        self.device = torch.device("cuda", device_index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[int | None, int]:
        return self.device_index, self.stream_id

    @property
    def gpu(self) -> Gpu:
        return self.driver.gpus[self.device.index]

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: "Event") -> None:
        self.driver.check()
        event.wait(self)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        self.driver.check()
        return True

    def is_capturing(self) -> bool:
        return self.driver.capture is not None

    def synchronize(self) -> None:
        self.driver.wait("synchronize")


class Event:
    driver: Driver

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self._seen: Counter[int] | None = None
        self._gpu: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.driver.check()
        stream = stream or torch.cuda.current_stream()
        self._gpu, self._seen = stream.device.index, stream.gpu.done(stream.stream_id)

    def wait(self, stream: Stream | None = None) -> None:
        stream = stream or torch.cuda.current_stream()
        if self._seen is not None and stream.device.index == self._gpu:
            stream.gpu.join(stream.stream_id, self._seen)

    def query(self) -> bool:
        self.driver.check()
        return True

    def synchronize(self) -> None:
        if self._seen is not None:
            self.driver.wait("event")


class Graph:
    driver: Driver

    def __init__(self, keep_graph: bool = False) -> None:
        self.nodes: list[tuple[Any, Any, Any, Any, list[Tensor]]] = []
        self.place: tuple[int, int] | None = None
        self.is_invalid = False
        self.thread: threading.Thread | None = None
        self._pool: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        driver = self.driver
        driver.check()
        gpu = driver.device
        stream = driver.stream_of(gpu)
        if stream == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        if driver.capture is not None:
            raise torch.AcceleratorError(CAPTURING)
        driver.num_graphs += 1
        self.place, self._pool = (gpu, stream), pool or (0, driver.num_graphs)
        self.thread, driver.capture = threading.current_thread(), self

    def capture_end(self) -> None:
        driver = self.driver
        driver.capture = None
        driver.check()
        assert self.place == (driver.device, driver.stream_of(driver.device)), "another stream"
        if self.is_invalid:
            self.nodes.clear()
            raise torch.AcceleratorError(INVALIDATED)
        driver.num_nodes += len(self.nodes)
        for *_, fresh in self.nodes:  # Nothing was computed yet.
            for tensor in fresh:
                if tensor.is_floating_point():
                    tensor.data.fill_(float("nan"))

    def replay(self) -> None:
        driver, leave = self.driver, torch.utils._python_dispatch._disable_current_modes
        assert self.place is not None
        gpu, stream = self.place[0], driver.stream_of(self.place[0])
        driver.check()
        driver.calls["replay"] += 1
        with torch._C.DisableTorchFunction(), leave(), torch.no_grad():
            for func, args, kwargs, result, fresh in self.nodes:
                values = tree_leaves(func(*args, **kwargs))
                for old, new in zip(tree_leaves(result), values, strict=True):
                    if any(old is each for each in fresh):
                        old.data.copy_(new)
        driver.gpus[gpu].ticks[stream] += 1
        for func, args, kwargs, _, fresh in self.nodes:
            for tensor in (*fresh, *_written(func, args, kwargs)):
                if driver.gpu_of(tensor) is not None:
                    driver._place(tensor, gpu, stream)

    def pool(self) -> Any:
        return self._pool

    def reset(self) -> None:
        self.nodes.clear()


class _Autocast(ExitStack):
    """Autocast of a GPU, whose operations are computed on the CPU."""

    real = torch.autocast

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, **more: Any):
        super().__init__()
        self._own = [_Autocast.real(device_type, dtype, enabled=enabled, **more)]
        if device_type == "cuda" and enabled:
            self._own.append(_Autocast.real("cpu", dtype, enabled=True))

    def __enter__(self) -> "_Autocast":
        for each in self._own:
            self.enter_context(each)
        return self


def _record_stream(tensor: Tensor, stream: Stream) -> None:
    assert tensor.is_cuda and tensor.device == stream.device


def _compiler(driver: Driver) -> Callable[..., Any]:
    """Returns what stands for `torch.compile`: the model itself, with the traps of its modes."""

    def compiling(model: Any, *, mode: str = "default", **_: Any) -> Any:
        def forward(images: Tensor) -> Tensor:
            if driver.refuses_compiling:
                raise RuntimeError("backend='inductor' raised: no triton for this device")
            if mode in ("reduce-overhead", "max-autotune"):
                if driver.capture is not None:
                    raise torch.AcceleratorError(CAPTURING)
                # As in pytorch 169545.
                if model.training and any(p.grad is not None for p in model.parameters()):
                    raise RuntimeError(
                        "Error: accessing tensor output of CUDAGraphs that has been overwritten by"
                        " a subsequent run."
                    )
            return model(images)

        return forward

    return compiling


def _functions(driver: Driver) -> dict[str, Callable[..., Any]]:
    """Returns the driver's functions by their names in `torch._C`."""

    def exchange(index: int) -> int:
        before = driver.device
        if index >= 0:
            driver.device = index
        return before

    def set_fraction(fraction: float, index: int) -> None:
        driver.gpus[index].fraction = fraction

    def stats(index: int) -> dict[str, Any]:
        gpu = driver.gpus[index]
        use = {"current": gpu.allocated, "peak": gpu.peak}
        return {"allocated_bytes": {"all": use}, "reserved_bytes": {"all": use}}

    def reset_peak(index: int) -> None:
        driver.gpus[index].peak = driver.gpus[index].allocated

    def synchronize() -> None:
        driver.wait("synchronize")
        gpu = driver.gpus[driver.device]
        gpu.host_seen |= gpu.ticks

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            driver.enter_thread()
            driver.calls[name] += 1
            return call(*args, **kwargs)

        return counting

    found: dict[str, Callable[..., Any]] = {
        "getDeviceCount": lambda: len(driver.gpus),
        "getDevice": lambda: driver.device,
        "setDevice": exchange,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "getCurrentStream": lambda index: (driver.stream_of(index), index, 1),
        "getDefaultStream": lambda index: (0, index, 1),
        "setStream": lambda stream_id, device_index, **_: driver.set_stream(
            device_index, stream_id
        ),
        "synchronize": synchronize,
        "memoryStats": stats,
        "resetPeakMemoryStats": reset_peak,
        "setMemoryFraction": set_fraction,
        "getMemoryFraction": lambda index: driver.gpus[index].fraction,
        "emptyCache": driver.check,
        "isInBadFork": lambda: False,
        "isCurrentStreamCapturing": lambda: driver.capture is not None,
        "init": lambda: None,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None,
    }
    return {f"_cuda_{name}": counted(name, call) for name, call in found.items()}


def _properties(index: int) -> Any:
    return SimpleNamespace(
        name=NAME,
        major=9,
        minor=0,
        total_memory=Stream.driver.gpus[index].total,
        multi_processor_count=4,
        L2_cache_size=50 * 2**20,
        uuid=f"00000000-0000-0000-0000-{os.getuid() % 10**8:08d}000{index}",
        pci_domain_id=0,
        pci_bus_id=index,
        pci_device_id=0,
    )


@contextmanager
def installed(*, num_gpus: int = 1, memory_gib: float = 1.0) -> Iterator[Driver]:
    """Gives this process such GPUs, for a test."""
    import pytest

    driver = Driver(num_gpus=num_gpus, memory_gib=memory_gib)
    with pytest.MonkeyPatch.context() as patch:
        install(driver, lambda owner, name, value: patch.setattr(owner, name, value, raising=False))
        driver.enter_thread()
        try:
            yield driver
        finally:
            driver.leave_thread()


def install(driver: Driver, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Puts the driver where torch looks for CUDA."""
    for name, call in _functions(driver).items():
        original = getattr(torch._C, name, None)
        put(torch._C, name, call)
        for module in (torch.cuda, torch.cuda.graphs, torch.cuda.memory):
            for alias, value in list(vars(module).items()):
                if original is not None and value is original:
                    put(module, alias, call)
    Stream.driver = Event.driver = Graph.driver = driver
    put(torch._C, "_host_emptyCache", lambda: None)
    cuda: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "_initialized": True,
        "_cached_device_count": None,
        "_get_device_properties": _properties,
        "default_generators": (torch.default_generator,) * len(driver.gpus),
        "device_count": lambda: torch._C._cuda_getDeviceCount(),
        "is_available": lambda: torch._C._cuda_getDeviceCount() > 0,
        "_exchange_device": lambda index: torch._C._cuda_exchangeDevice(index),
        "_maybe_exchange_device": lambda index: torch._C._cuda_maybeExchangeDevice(index),
        "mem_get_info": driver.memory_info,
    }
    for name, value in cuda.items():
        put(torch.cuda, name, value)
    put(torch.cuda.graph, "default_capture_stream", None)
    # Adam asks the accelerator, whichever it is.
    put(torch.accelerator, "current_stream", lambda: torch.cuda.current_stream())
    put(torch, "autocast", _Autocast)
    # Its arguments are parsed before a mode is asked.
    put(torch.Tensor, "record_stream", _record_stream)
    put(torch, "compile", _compiler(driver))

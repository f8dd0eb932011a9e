"""The GPUs that are not there refuse what a GPU or torch would."""

import threading

import pytest
import torch
from cuda_double.double import installed

GPU = torch.device("cuda:0")


def test_tensors_are_where_they_were_put() -> None:
    with installed(num_gpus=2):
        here, there = torch.ones(3, device=GPU), torch.ones(3).to("cuda:1")
        assert str((here * 2).device) == "cuda:0" and there.is_cuda
        assert str(torch.zeros_like(there).device) == "cuda:1"
        assert str(here.cpu().device) == "cpu"
        with pytest.raises(RuntimeError, match="on the same device"):
            here + there
        with pytest.raises(RuntimeError, match="on the same device"):
            here + torch.ones(3)
        with pytest.raises(TypeError, match="convert cuda:0"):
            here.numpy()
        assert here.tolist() == [1, 1, 1]


def test_device_without_a_number_is_refused_where_torch_refuses_it() -> None:
    with installed():
        with pytest.raises(ValueError, match="index"):
            torch.cuda.set_per_process_memory_fraction(0.5, torch.device("cuda"))
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.set_device(1)


def test_current_device_is_a_threads_own() -> None:
    with installed(num_gpus=2):
        torch.cuda.set_device(1)
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
        thread.start()
        thread.join()
        assert (torch.cuda.current_device(), seen) == (1, [0])


def test_memory_is_counted_and_ends_at_the_fraction() -> None:
    with installed(memory_gib=0.01):
        torch.cuda.set_per_process_memory_fraction(0.5, GPU)
        kept = torch.ones(1 << 20, device=GPU)
        assert torch.cuda.max_memory_allocated(GPU) == 4 << 20
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            kept + 1
        del kept
        assert torch.cuda.memory_allocated(GPU) == 0


def test_stream_must_wait_for_what_another_wrote() -> None:
    with installed():
        stream, written = torch.cuda.Stream(), torch.ones(2, device=GPU) * 2
        with torch.cuda.stream(stream), pytest.raises(AssertionError, match="has not waited"):
            written + 1
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            there = written + 1
        torch.cuda.synchronize()
        assert (there + 1).tolist() == [4, 4]


def test_capture_computes_nothing_and_its_replay_does() -> None:
    with installed() as driver:
        number, total = torch.ones(2, device=GPU), torch.zeros(2, device=GPU)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = number * 2
            total += doubled
        torch.cuda.synchronize()
        assert total.tolist() == [0, 0] and doubled.isnan().all()
        for _ in range(3):
            graph.replay()
            number += 1
        assert total.tolist() == [2 + 4 + 6] * 2 and driver.num_nodes == 2


def test_capture_does_not_survive_what_waits() -> None:
    with installed():
        number = torch.ones(2, device=GPU)
        torch.cuda.synchronize()
        with (
            pytest.raises(RuntimeError, match="previous error during capture"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            float(number.sum())
        assert not torch.cuda.is_current_stream_capturing()
        with pytest.raises(RuntimeError, match="non-default stream"):
            torch.cuda.CUDAGraph().capture_begin()


def test_nothing_works_after_an_error_of_a_kernel() -> None:
    with installed():
        table = torch.ones(2, device=GPU)
        with pytest.raises(RuntimeError, match="device-side assert"):
            table[torch.tensor([5], device=GPU)]
        for call in (torch.cuda.synchronize, torch.cuda.empty_cache, lambda: table + 1):
            with pytest.raises(torch.AcceleratorError, match="device-side assert"):
                call()

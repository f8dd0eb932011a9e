import pytest
import torch

from tune_speed.runtime.device import describe_device, set_up_process
from tune_speed.training.trial import Allotment
from tune_speed.tuning.ray.node_query import here, set_up_device

CPU = Allotment(device="cpu", cpu_threads=1)


def test_cpu_is_named_without_torch_as_records_name_it() -> None:
    set_up_process(torch.device("cpu"), cpu_threads=1)
    answer = here(cpu_threads=1)
    assert answer.device == describe_device(torch.device("cpu"))
    assert answer.torch == torch.__version__.partition("+")[0]


def test_trial_on_the_device_of_its_study_goes_on() -> None:
    set_up_device(CPU, here(cpu_threads=1).device)
    set_up_device(CPU, None)


def test_trial_on_another_device_does_not_begin() -> None:
    with pytest.raises(RuntimeError, match=r"must run on NVIDIA H200, but this node, .*, has cpu"):
        set_up_device(CPU, "NVIDIA H200")

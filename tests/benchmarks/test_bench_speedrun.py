"""The images of the speed-run benchmark: none of its steps is ragged."""

import pytest
from benchmarks import bench_speedrun
from helpers.training.tiny import CPU


@pytest.mark.parametrize("batch_size", [128, 2000])
def test_every_step_has_a_whole_batch(batch_size: int) -> None:
    count = bench_speedrun.num_images(batch_size)
    batches = bench_speedrun.bare_batches(batch_size, CPU)
    sizes = [len(next(batches)[1]) for _ in range(count // batch_size + 1)]
    assert count >= 4096
    assert set(sizes) == {batch_size}

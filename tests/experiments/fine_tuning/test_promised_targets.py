"""A target worth reaching, from made curves whose continuation is known."""

import pytest

from tune_speed.experiments.fine_tuning.targets import MOST_GAIN, Point, below, promised

SAMPLES = (500, 1000, 1500, 2000, 2500, 3000)


@pytest.mark.parametrize(("rest", "fall", "power"), [(0.05, 0.1, 0.5), (0.1, 0.05, 1.0)])
def test_of_a_power_law_it_promises_what_the_law_says(
    rest: float, fall: float, power: float
) -> None:
    def accuracy(samples: float) -> float:
        return 1 - rest - fall * (samples / 3000) ** -power

    curve = [Point(samples, accuracy(samples)) for samples in SAMPLES]
    assert promised(curve) == pytest.approx(accuracy(9000), abs=1e-3)
    assert promised(curve, times=1) == pytest.approx(curve[-1].accuracy, abs=1e-3)


def test_it_never_promises_less_than_was_reached_nor_more_than_the_bound() -> None:
    steep = [Point(n, 1 - 0.9 * (500 / n) ** 1.5) for n in SAMPLES]
    reached = steep[-1].accuracy
    assert promised(steep) == pytest.approx(1 - (1 - MOST_GAIN) * (1 - reached))
    # One-cycle ends lower in error than any law through its beginning.
    kinked = [Point(n, a) for n, a in zip(SAMPLES, (0.5, 0.6, 0.6, 0.62, 0.7, 0.85), strict=True)]
    assert 0.85 <= promised(kinked) <= 0.91


@pytest.mark.parametrize("accuracies", [(0.6, 0.8), (0.8,), (0.8, 0.7, 0.75)])
def test_a_curve_that_says_nothing_promises_what_was_reached(accuracies: tuple[float, ...]) -> None:
    curve = [Point(100 * number, each) for number, each in enumerate(accuracies, start=1)]
    assert promised(curve) == accuracies[-1]


@pytest.mark.parametrize(
    ("reached", "images", "target"), [(0.922, 341, 0.91), (0.62, 5000, 0.61), (1.0, 100, 0.99)]
)
def test_the_target_is_half_a_standard_error_below(
    reached: float, images: int, target: float
) -> None:
    # By hand: 0.922 − 0.0073, 0.62 − 0.0034; of 1 the error is 0.
    assert below(reached, images) == target

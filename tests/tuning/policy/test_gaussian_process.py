import numpy as np
import pytest
import scipy.linalg
from scipy.optimize import approx_fprime
from scipy.spatial.distance import pdist, squareform
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_info

from tune_speed.tuning.policy.gaussian_process import (
    JITTER,
    LENGTH_PRIOR,
    NOISE_PRIOR,
    SIGNAL_PRIOR,
    FloatArray,
    GaussianProcess,
    Scales,
    _loss,
    fit_scales,
    one_thread,
    with_repeats,
)

DIMS = 3
every_seed = pytest.mark.parametrize("seed", range(5))


def observations(
    seed: int, num: int = 25, *, repeats: int = 0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns points, values and variances; with `repeats`, of so many different points."""
    rng = np.random.default_rng(seed)
    points = rng.random((num, DIMS))
    if repeats:
        points[repeats:] = points[rng.integers(repeats, size=num - repeats)]
    values = 3.0 + np.sin(5 * points[:, 0]) + 0.1 * rng.normal(size=num)
    return points, values, rng.uniform(0.0, 0.2, size=num)


def shares_of(seed: int, num: int = 25) -> FloatArray:
    return np.random.default_rng([seed, 1]).uniform(0.05, 1.0, size=num)


def pattern_of(points: FloatArray, shares: FloatArray, own: float = 0.1) -> FloatArray:
    """Returns the noise's covariances over n², written out: equal points have a part in common."""
    return np.array(
        [
            [
                np.sqrt(shares[i] * shares[j]) * (own * (a == b).all() + (1 - own) * (i == j))
                for j, b in enumerate(points)
            ]
            for i, a in enumerate(points)
        ]
    )


def some_scales(seed: int) -> Scales:
    rng = np.random.default_rng(seed)
    return Scales(rng.normal(), rng.uniform(-3, 0), rng.normal(size=DIMS))


def theirs(scales: Scales, alpha: FloatArray | float) -> GaussianProcessRegressor:
    signal, noise = np.exp(2 * scales.log_signal), np.exp(2 * scales.log_noise)
    matern = Matern(np.exp(scales.log_lengths), nu=2.5)
    kernel = ConstantKernel(signal) * matern + WhiteKernel(noise)
    return GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None, normalize_y=True)


@every_seed
@pytest.mark.parametrize("own", [0.0, 1.0], ids=["same noise", "own noise"])
def test_prediction_is_that_of_scikit_learn(seed: int, own: float) -> None:
    points, values, variances = observations(seed)
    scales, new = some_scales(seed), np.random.default_rng(99).random((40, DIMS))
    unit = values.std()
    model = theirs(scales, own * variances / unit**2 + JITTER).fit(points, values)
    mean, sd = model.predict(new, return_std=True)
    # Theirs is the deviation of an observation, ours that of the function.
    of_function = np.sqrt(sd**2 - (1 - scales.own) * unit**2 * np.exp(2 * scales.log_noise))
    our_mean, our_sd = GaussianProcess(points, values, own * variances, scales).predict(new)
    np.testing.assert_allclose(our_mean, mean, atol=1e-6)
    np.testing.assert_allclose(our_sd, of_function, atol=1e-6)


@every_seed
def test_share_of_the_noise_counts_as_noise_of_its_own(seed: int) -> None:
    """Of scikit-learn, whose noise is the same for all, the share is part of `alpha`."""
    points, values, variances = observations(seed)
    scales, new = some_scales(seed), np.random.default_rng(99).random((40, DIMS))
    shares, unit = shares_of(seed), values.std()
    noise = shares * np.exp(2 * scales.log_noise) + variances / unit**2 + JITTER
    signal = np.exp(2 * scales.log_signal)
    kernel = ConstantKernel(signal) * Matern(np.exp(scales.log_lengths), nu=2.5)
    model = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None, normalize_y=True)
    mean, sd = model.fit(points, values).predict(new, return_std=True)
    ours = GaussianProcess(points, values, variances, scales, shares=shares)
    our_mean, our_sd = ours.predict(new)
    np.testing.assert_allclose(our_mean, mean, atol=1e-6)
    # A part of the noise is the function's own; that of a run is told of a whole share.
    own_sd = unit * np.exp(scales.log_noise) * np.sqrt(scales.own)
    np.testing.assert_allclose(our_sd, np.hypot(sd, own_sd), atol=1e-6)
    assert ours.noise_sd == pytest.approx(own_sd * np.sqrt(1 / scales.own - 1))


@every_seed
def test_runs_of_the_same_point_have_a_part_of_the_noise_in_common(seed: int) -> None:
    """The posterior of a normal with covariances written out; the common part is the function's."""
    points, values, variances = observations(seed, repeats=6)
    scales, shares, unit = some_scales(seed)._replace(own=0.3), shares_of(seed), values.std()
    new = np.concatenate([points[:6], np.random.default_rng(99).random((4, DIMS))])
    n2, every = np.exp(2 * scales.log_noise), np.concatenate([points, new])
    lengths = np.exp(scales.log_lengths)
    covariance = np.exp(2 * scales.log_signal) * Matern(lengths, nu=2.5)(every)
    # In units of the observations' own share, what is asked for has a whole one.
    sds = np.sqrt(np.append(shares, np.ones(10)))
    same = (every[:, None] == every[None]).all(axis=2)
    covariance += 0.3 * n2 * same * np.outer(sds, sds)
    seen = covariance[:25, :25] + np.diag(0.7 * n2 * shares + variances / unit**2 + JITTER)
    weights = np.linalg.solve(seen, covariance[:25, 25:])
    mean = values.mean() + weights.T @ (values - values.mean())
    left = np.diag(covariance[25:, 25:] - weights.T @ covariance[:25, 25:])
    ours = GaussianProcess(points, values, variances, scales, shares=shares).predict(new)
    np.testing.assert_allclose(ours[0], mean, atol=1e-6)
    np.testing.assert_allclose(ours[1], unit * np.sqrt(left), atol=1e-5)


def test_noise_of_runs_is_what_repeats_of_points_show() -> None:
    rng = np.random.default_rng(0)
    points = np.repeat(rng.random((400, 1)), 3, axis=0)
    values = np.repeat(rng.normal(size=400), 3) + 0.2 * rng.normal(size=1200)
    ones, begin = np.ones(1200), Scales(0.0, np.log(0.6), np.zeros(1))
    for factor in (1.0, 0.25):  # Far from the target, runs show a share of the noise only.
        shown = np.repeat(values.reshape(-1, 3).mean(axis=1), 3)
        own = shown + np.sqrt(factor) * (values - shown)
        scales = with_repeats(begin, own, points, factor * ones)
        model = GaussianProcess(points, own, 0 * ones, scales, shares=factor * ones)
        assert model.noise_sd == pytest.approx(0.2, rel=0.06)
        assert 0 < scales.own < 1
    # In the model all the noise remains, so far as it is more than that of runs.
    assert scales.log_noise == pytest.approx(begin.log_noise, abs=0.01)


def test_without_repeats_the_noise_stays_as_it_was_fitted() -> None:
    points, values, _ = observations(0)
    scales = some_scales(0)
    assert with_repeats(scales, values, points, np.ones(25)) is scales


def test_few_repeats_count_little_against_the_prior() -> None:
    points, values, _ = observations(0)
    points[1], values[1] = points[0], values[0]
    scales = some_scales(0)
    found = with_repeats(scales, values, points, np.ones(25))
    before, after = (np.exp(2 * s.log_noise) * (1 - s.own) for s in (scales, found))
    assert after / before == pytest.approx(10 / 11)


def loss_of(seed: int, scales: Scales, pattern: FloatArray) -> float:
    points, values, variances = observations(seed)
    squares = (points[:, None] - points[None]).transpose(2, 0, 1) ** 2
    standard, own = (values - values.mean()) / values.std(), variances / values.std() ** 2
    return _loss(np.array([*scales[:2], *scales.log_lengths]), squares, standard, own, pattern)[0]


@every_seed
def test_scales_are_fitted_to_observations_with_their_shares(seed: int) -> None:
    points, values, variances = observations(seed)
    shares, begin = shares_of(seed), some_scales(seed)
    with_shares, without = (
        fit_scales(points, values, variances, start=begin, max_iterations=100, shares=each)
        for each in (shares, 1.0)
    )
    pattern = pattern_of(points, shares)
    assert loss_of(seed, with_shares, pattern) < loss_of(seed, without, pattern)


@every_seed
def test_several_columns_of_values_are_predicted_as_single_ones(seed: int) -> None:
    points, values, variances = observations(seed)
    # The first column's spread is the unit of all.
    columns = np.stack([values, -values, np.roll(values, 1)], axis=1)
    scales, new = some_scales(seed), np.random.default_rng(99).random((7, DIMS))
    means, sd = GaussianProcess(points, columns, variances, scales).predict(new)
    for column, mean in zip(columns.T, means.T, strict=True):
        alone, alone_sd = GaussianProcess(points, column, variances, scales).predict(new)
        np.testing.assert_allclose(mean, alone, atol=1e-9)
        np.testing.assert_allclose(sd, alone_sd, atol=1e-9)


def loss_at(x: FloatArray, seed: int) -> tuple[float, FloatArray]:
    points, values, variances = observations(seed)
    squares = (points[:, None] - points[None]).transpose(2, 0, 1) ** 2
    standard = (values - values.mean()) / values.std()
    return _loss(x, squares, standard, variances, pattern_of(points, shares_of(seed)))


@every_seed
def test_gradient_is_the_slope_of_the_loss(seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=2 + DIMS) - 0.5
    expected = approx_fprime(x, lambda at: loss_at(at, seed)[0], 1e-7)
    np.testing.assert_allclose(loss_at(x, seed)[1], expected, rtol=1e-4, atol=1e-4)


def negative_log_density(x: FloatArray, seed: int) -> float:
    """Returns that of normal observations and normal priors, as scipy has them."""
    points, values, variances = observations(seed)
    r = np.sqrt(5) * squareform(pdist(points / np.exp(x[2:])))
    kernel = np.exp(2 * x[0]) * (1 + r + r**2 / 3) * np.exp(-r)
    kernel += np.exp(2 * x[1]) * pattern_of(points, shares_of(seed))
    kernel += np.diag(variances + JITTER)
    data = multivariate_normal(cov=kernel).logpdf((values - values.mean()) / values.std())
    length = LENGTH_PRIOR[0] + 0.5 * np.log(DIMS)
    priors = [norm(*SIGNAL_PRIOR), norm(*NOISE_PRIOR)] + [norm(length, LENGTH_PRIOR[1])] * DIMS
    return -data - sum(prior.logpdf(at) for prior, at in zip(priors, x, strict=True))


@every_seed
def test_loss_is_the_negative_log_posterior_density_but_for_a_constant(seed: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, 2 + DIMS))
    expected = negative_log_density(x, seed) - negative_log_density(y, seed)
    assert loss_at(x, seed)[0] - loss_at(y, seed)[0] == pytest.approx(expected, rel=1e-8)


@every_seed
def test_fitting_finds_the_coordinate_that_matters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.random((40, 6))
    values = np.cos(6 * points[:, 4]) + 0.02 * rng.normal(size=40)
    scales = fit_scales(points, values, np.zeros(40))
    assert np.argmin(scales.log_lengths) == 4
    assert np.partition(scales.log_lengths, 1)[1] - scales.log_lengths[4] > np.log(3)


@every_seed
def test_fitted_scales_have_a_larger_density_than_where_they_began(seed: int) -> None:
    points, values, variances = observations(seed)
    begin = some_scales(seed)
    scales = fit_scales(points, values, variances, start=begin, max_iterations=100)
    found = loss_of(seed, scales, np.eye(len(points)))
    assert found <= loss_of(seed, begin, np.eye(len(points)))
    for step in 0.05 * np.concatenate([np.eye(2 + DIMS), -np.eye(2 + DIMS)]):
        lengths = scales.log_lengths + step[2:]
        beside = Scales(scales.log_signal + step[0], scales.log_noise + step[1], lengths)
        assert found <= loss_of(seed, beside, np.eye(len(points))) + 1e-3


def test_equal_values_are_predicted_as_they_are() -> None:
    points = np.random.default_rng(0).random((5, 2))
    scales = fit_scales(points, np.full(5, 0.3), np.zeros(5))
    mean, sd = GaussianProcess(points, np.full(5, 0.3), np.zeros(5), scales).predict(points)
    np.testing.assert_allclose(mean, 0.3)
    assert np.isfinite(sd).all()


def test_units_of_the_values_do_not_matter() -> None:
    points, values, variances = observations(0)
    scales = fit_scales(points, values, variances)
    scaled = fit_scales(points, 100 * values - 7, 100**2 * variances)
    np.testing.assert_allclose(scaled.log_lengths, scales.log_lengths, atol=1e-3)


def log_prior(x: FloatArray, num_dims: int) -> float:
    """Returns the priors' log density, with the figures of the model's description."""
    length = norm(np.log(0.5 * np.sqrt(num_dims)), 0.8)
    return float(norm(0, 1).logpdf(x[0]) + norm(np.log(0.3), 0.7).logpdf(x[1])) + float(
        length.logpdf(x[2:]).sum()
    )


@pytest.mark.parametrize("num_dims", [1, 4])
def test_priors_have_the_figures_that_they_are_given(num_dims: int) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 2 + num_dims))
    # Of a single value that is the mean, data say of the scales no more than their sum.
    squares, value = np.zeros((num_dims, 1, 1)), np.zeros(1)

    def loss(at: FloatArray) -> float:
        spread = np.exp(2 * at[0]) + np.exp(2 * at[1])
        return _loss(at, squares, value, np.zeros(1), np.eye(1))[0] - 0.5 * float(np.log(spread))

    difference = log_prior(y, num_dims) - log_prior(x, num_dims)
    assert loss(x) - loss(y) == pytest.approx(difference, abs=1e-5)


def test_where_all_is_noise_the_scales_are_the_priors_means() -> None:
    points = np.random.default_rng(0).random((4, 2))
    begin = fit_scales(points, np.full(4, 0.3), np.full(4, 1e12), max_iterations=50)
    expected = [0.0, np.log(0.3), *np.log([0.5 * np.sqrt(2)] * 2)]
    assert np.array([*begin[:2], *begin.log_lengths]) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_many_neighbours_that_agree_do_not_outvote_what_a_configuration_did_itself(
    seed: int,
) -> None:
    """All are at 0.4, runs differ by 0.1, and one configuration was at 0 twice."""
    rng, here = np.random.default_rng(seed), [[0.5, 0.5, 0.5]]
    around = rng.random((300, 3))
    points = np.concatenate([around, around[:60], here, here])
    values = 0.4 + 0.1 * rng.normal(size=len(points))
    values[-2:] = 0.0
    fitted = Scales(0.0, np.log(0.09 / values.std()), np.log([0.7, 0.7, 0.7]))
    scales = with_repeats(fitted, values, points, np.ones(len(points)))
    process = GaussianProcess(points, values, np.zeros(len(points)), scales)
    mean, _ = process.predict(np.array([*here, [0.52, 0.52, 0.52]]))
    assert mean[1] - mean[0] > 0.05


def blas_threads() -> set[int]:
    scipy.linalg.solve(np.eye(2), np.ones(2))
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_linear_algebra_runs_on_one_thread_within_and_on_as_many_as_before_after() -> None:
    before = blas_threads()
    with one_thread():
        assert blas_threads() == {1}
    assert blas_threads() == before


def test_a_decorated_function_runs_on_one_thread_each_time() -> None:
    threads = one_thread()(blas_threads)
    assert (threads(), threads()) == ({1}, {1})

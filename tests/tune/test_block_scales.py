"""Block scales against an independent optimiser, planted factors, and held-out data."""

import numpy as np
import pytest
from scipy import optimize, stats

from deltavariance import metrics, tune


def planted(seed, n, factors, alpha=0.1, quantities=()):
    rng = np.random.default_rng(seed)
    parts = {f"layer{i}/w": rng.gamma(1.0, size=(n, *quantities)) for i in range(len(factors))}
    s = alpha + sum(f * p for f, p in zip(factors, parts.values(), strict=True))
    return parts, rng.laplace(size=s.shape) * np.sqrt(s / 2)


def test_equals_scipy_on_the_same_objective(x64):
    """Maximum a posteriori by Nelder and Mead on the documented penalty."""
    parts, e = planted(0, 120, [0.1, 4.0])
    p = np.stack(list(parts.values()), axis=1)

    def objective(x):
        common, relative, alpha = x[0], x[1:3], x[3] ** 2
        s = alpha + p @ np.exp(common + relative)
        penalty = np.sum(np.sqrt(1 + np.array([common, *relative]) ** 2) - 1)
        return -stats.laplace.logpdf(e, scale=np.sqrt(s / 2)).mean() + 2.5 / 120 * penalty

    best = min(
        (
            optimize.minimize(
                objective, start, method="Nelder-Mead", options={"maxiter": 20_000, "fatol": 1e-14}
            )
            for start in (np.zeros(4), np.array([0.0, -2.0, 1.0, 0.3]))
        ),
        key=lambda result: result.fun,
    )
    ours = tune.block_scales(parts, e, regularisation=2.5)
    expected = np.exp(best.x[0] + best.x[1:3])
    np.testing.assert_allclose([float(f) for f in ours.values()], expected, rtol=0.01)


@pytest.mark.parametrize("family", ["laplace", "gaussian"])
def test_planted_factors_are_found(family):
    rng = np.random.default_rng(1)
    factors = [0.0, 5.0, 0.3]
    parts, _ = planted(1, 20_000, factors)
    s = 0.1 + sum(f * p for f, p in zip(factors, parts.values(), strict=True))
    e = (
        rng.laplace(size=s.shape) / np.sqrt(2) if family == "laplace" else rng.normal(size=s.shape)
    ) * np.sqrt(s)
    scales = tune.block_scales(parts, e, family=family)
    found = [float(f) for f in scales.values()]
    assert found[0] < 0.12
    assert found[1] == pytest.approx(5.0, rel=0.08)
    assert found[2] == pytest.approx(0.3, abs=0.12)
    np.testing.assert_allclose(
        scales.variance(parts), sum(f * p for f, p in zip(found, parts.values(), strict=True)), rtol=1e-5
    )
    # α was fitted beside the factors; the noise model on top has nothing left to correct.
    assert float(scales.noise.beta) == pytest.approx(1.0, abs=0.02)


def test_correlation_rises_to_that_of_the_truth():
    factors = [0.0, 5.0, 0.3, 0.0]
    parts, e = planted(2, 5000, factors)
    scales = tune.block_scales(parts, e, score="correlation")
    fresh, fresh_e = planted(3, 5000, factors)
    tuned = float(metrics.correlation(fresh_e, scales.variance(fresh)))
    untuned = float(metrics.correlation(fresh_e, sum(fresh.values())))
    truth = float(
        metrics.correlation(fresh_e, sum(f * p for f, p in zip(factors, fresh.values(), strict=True)))
    )
    assert tuned > untuned + 0.02
    assert tuned > truth - 0.01


def test_strong_regularisation_gives_ones_and_order_of_blocks_is_kept():
    parts, e = planted(4, 100, [0.0, 5.0, 0.3])
    scales = tune.block_scales(parts, e, regularisation=1e7)
    assert list(scales) == list(parts)
    np.testing.assert_allclose([float(f) for f in scales.values()], 1.0, atol=1e-3)


def test_a_few_dozen_cases_do_no_harm():
    """40 cases, 12 blocks: on fresh data the tuned Σ must not lose where there is nothing to be won, on average."""
    gains = []
    for seed in range(8):
        parts, e = planted(10 + seed, 40, [1.0] * 12)
        fresh, fresh_e = planted(50 + seed, 4000, [1.0] * 12)
        scales = tune.block_scales(parts, e)
        both = [
            metrics.log_likelihood(fresh_e, v, tune.noise(fresh_e, v))
            for v in (scales.variance(fresh), sum(fresh.values()))
        ]
        gains.append(float(both[0] - both[1]))
    assert np.mean(gains) > -0.01


def test_a_few_dozen_cases_win_where_something_is_to_be_won():
    factors = [20.0] + [0.02] * 11
    gains = []
    for seed in range(8):
        parts, e = planted(10 + seed, 40, factors)
        fresh, fresh_e = planted(50 + seed, 4000, factors)
        scales = tune.block_scales(parts, e)
        both = [metrics.correlation(fresh_e, v) for v in (scales.variance(fresh), sum(fresh.values()))]
        gains.append(float(both[0] - both[1]))
    assert np.mean(gains) > 0.1


def test_a_scale_that_is_wrong_for_all_blocks_is_one_parameter():
    """Σ ten thousand times too large, as from a loss without its noise scale: fifty cases suffice."""
    parts, e = planted(5, 50, [1.0] * 10)
    wrong = {name: 1e4 * p for name, p in parts.items()}
    total = tune.block_scales(wrong, e).variance(wrong).mean()
    assert float(total) == pytest.approx(sum(p for p in parts.values()).mean(), rel=0.6)


def test_quantities_share_factors_or_have_their_own():
    rng = np.random.default_rng(6)
    parts = {name: rng.gamma(1.0, size=(3000, 2)) for name in "ab"}
    truth = np.array([[4.0, 0.1], [0.1, 4.0]])  # block by quantity
    units = np.array([1.0, 1e3])
    parts = {name: p * units**2 for name, p in parts.items()}
    s = parts["a"] * truth[0] + parts["b"] * truth[1] + 0.1 * units**2
    e = rng.laplace(size=s.shape) * np.sqrt(s / 2)
    own = tune.block_scales(parts, e, per_quantity=True, cross_validate=2)
    np.testing.assert_allclose(np.stack([own["a"], own["b"]]), truth, atol=0.6)
    assert own.noise.alpha.shape == (2,)
    assert own.cross_validation is not None
    assert own.cross_validation.tuned.shape == (2, 2)
    shared = tune.block_scales(parts, e)
    assert np.ndim(shared["a"]) == 0
    assert float(shared["a"]) == pytest.approx(float(shared["b"]), rel=0.3)


def test_groups_have_one_factor():
    factors = {"enc/w": 5.0, "enc/b": 5.0, "dec/w": 0.1}
    rng = np.random.default_rng(7)
    parts = {name: rng.gamma(1.0, size=4000) for name in factors}
    s = 0.1 + sum(f * parts[name] for name, f in factors.items())
    e = rng.laplace(size=4000) * np.sqrt(s / 2)
    by_function = tune.block_scales(parts, e, groups=lambda name: name.partition("/")[0])
    assert float(by_function["enc/w"]) == float(by_function["enc/b"]) == pytest.approx(5.0, rel=0.15)
    by_mapping = tune.block_scales(parts, e, groups={"enc/w": "e", "enc/b": "e", "dec/w": "d"})
    assert dict(by_mapping.factors) == dict(by_function.factors)


def test_cross_validation_is_honest(x64):
    """Held-out scores equal those made by hand: fit on the rest, noise on the rest, score the run left out."""
    parts, e = planted(8, 90, [0.1, 5.0])
    scales = tune.block_scales(parts, e, cross_validate=3)
    report = scales.cross_validation
    assert report is not None
    for fold in range(3):
        out = np.arange(90) // 30 == fold
        rest = {name: p[~out] for name, p in parts.items()}
        fitted = tune.block_scales(rest, e[~out])
        for scored, expected in (
            (fitted.variance, report.tuned),
            (lambda ps: sum(ps.values()), report.untuned),
        ):
            noise = tune.noise(e[~out], scored(rest))
            held = scored({name: p[out] for name, p in parts.items()})
            assert float(metrics.log_likelihood(e[out], held, noise)) == pytest.approx(
                float(expected[fold]), abs=1e-3
            )


def test_regularisation_is_chosen_by_held_out_score():
    """By cases of the same shapes, where strength helps and where it hurts."""
    useless, e = planted(9, 200, [1.0] * 6)
    weak = tune.block_scales(useless, e, regularisation=(0.03, 300.0), cross_validate=3)
    assert weak.regularisation == 300.0
    assert weak.cross_validation is not None
    assert len(weak.cross_validation.regularisation) == 3
    useful, e = planted(9, 200, [0.0, 30.0, 0.0, 0.0, 0.0, 0.0])
    strong = tune.block_scales(useful, e, regularisation=(0.03, 300.0), cross_validate=3)
    assert strong.regularisation == 0.03
    assert strong.cross_validation is not None
    assert float(strong.cross_validation.improvement) > 0.1


def test_bad_input_is_explained():
    parts, e = planted(0, 20, [1.0, 1.0])
    with pytest.raises(ValueError, match="no score 'auc'"):
        tune.block_scales(parts, e, score="auc")
    with pytest.raises(ValueError, match="is empty"):
        tune.block_scales({}, e)
    with pytest.raises(ValueError, match="does not say where"):
        tune.block_scales(parts, e, groups={"layer0/w": "a"})
    with pytest.raises(ValueError, match="folds"):
        tune.block_scales(parts, e, cross_validate=11)
    with pytest.raises(ValueError, match="zero or more"):
        tune.block_scales(parts, e, regularisation=-1.0)
    with pytest.raises(ValueError, match=r"parts\['layer1/w'\]"):
        tune.block_scales({**parts, "layer1/w": np.ones(3)}, e)
    with pytest.raises(ValueError, match="for the blocks"):
        tune.block_scales(parts, e).variance({"other": np.ones(3)})

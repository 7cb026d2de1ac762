"""fit, its report in words, the posterior's answers, and the file it is saved in."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import deltavariance as dv

pytestmark = pytest.mark.usefixtures("x64")


def line(params: Any, x: Any) -> Any:
    return x @ params["w"]


@pytest.fixture
def regression(x64: None) -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=800)
    return {"w": jnp.linalg.lstsq(x, y)[0]}, (jnp.asarray(x), jnp.asarray(y))


class TestReport:
    def test_a_good_fit_warns_of_nothing(self, regression: Any) -> None:
        params, data = regression
        scale = dv.estimate_noise(line, params, data)
        report = dv.fit(dv.gaussian_log_likelihood(line, scale=scale), params, data).report()
        assert report.num_data == 800
        assert report.parameters == 3
        assert report.structure == "EigenKronecker"
        assert "Kronecker factors take" in report.reason
        assert 0.8 < report.trace_ratio < 1.25
        assert report.gradient_over_spread < 1e-6
        assert report.dead == 0
        assert report.warnings == ()
        # tr H = tr(XᵀX)/(N σ²), exactly: Hutchinson's probes err by a few percent on three parameters.
        exact = float(jnp.sum(data[0] ** 2)) / 800 / 0.1**2
        assert abs(report.trace_hessian / exact - 1) < 0.15

    @pytest.mark.parametrize(
        ("scale", "words"), [(1.0, "noise that is too large"), (0.01, "noise that is too small")]
    )
    def test_a_wrong_noise_scale_is_noticed(self, regression: Any, scale: float, words: str) -> None:
        params, data = regression
        report = dv.fit(dv.gaussian_log_likelihood(line, scale=scale), params, data).report()
        # F goes with scale⁻⁴, H with scale⁻².
        np.testing.assert_allclose(report.trace_ratio, (0.1 / scale) ** 2, rtol=0.25)
        assert any(words in warning for warning in report.warnings)
        assert words in str(report)

    def test_unconverged_parameters_and_dead_ones_are_noticed(self, regression: Any) -> None:
        params, data = regression
        params = {"w": params["w"] + 0.1, "unused": jnp.zeros(5)}
        report = dv.fit(dv.gaussian_log_likelihood(line, scale=0.1), params, data).report()
        assert report.gradient_over_spread > 3
        assert report.dead == 5
        assert any("not converged" in warning or "has not" in warning for warning in report.warnings)
        assert any("5 of 8 parameters" in warning for warning in report.warnings)

    def test_a_saddle_is_noticed(self, x64: None) -> None:
        data = jnp.linspace(-1, 1, 20)
        report = dv.fit(lambda p, y: (p["a"] - 0.1 * y) ** 2, {"a": jnp.array(0.0)}, data).report()
        assert any("not safely positive" in warning for warning in report.warnings)

    def test_gradient_over_spread_is_one_for_a_random_draw(self, x64: None) -> None:
        """Scores at the true parameters have mean zero and variance F/N: their ratio is 1, whatever N."""
        rng = np.random.default_rng(4)
        data = jnp.asarray(rng.normal(size=(500, 400)))
        params = {"mean": jnp.zeros(400)}
        report = dv.fit(lambda p, y: -0.5 * jnp.sum((y - p["mean"]) ** 2), params, data).report()
        assert 0.85 < report.gradient_over_spread < 1.15

    def test_an_iterator_that_is_read_once(self, regression: Any) -> None:
        params, data = regression
        with pytest.raises(ValueError, match="reads the data several times"):
            dv.fit(dv.gaussian_log_likelihood(line, scale=0.1), params, iter([data]))


class TestAnswers:
    @pytest.fixture
    def post(self, regression: Any) -> dv.Posterior:
        params, data = regression
        return dv.fit(dv.gaussian_log_likelihood(line, scale=0.1), params, data, structure=dv.Diagonal())

    def test_interval_of_a_linear_quantity(self, post: dv.Posterior) -> None:
        z = jnp.eye(3)
        low, high = post.interval(line, z, level=0.9)
        np.testing.assert_allclose((high + low) / 2, post.mean(line, z), rtol=1e-10)
        np.testing.assert_allclose((high - low) / 2, 1.6448536269514722 * post.std(line, z), rtol=1e-8)

    def test_interval_on_a_transformed_scale(self, post: dv.Posterior) -> None:
        def positive(params: Any, x: Any) -> Any:
            return jnp.exp(line(params, x))

        z = jnp.eye(3)
        low, high = post.interval(positive, z, transform=jnp.log, inverse=jnp.exp)
        inner_low, inner_high = post.interval(line, z)
        np.testing.assert_allclose(low, jnp.exp(inner_low), rtol=1e-8)
        np.testing.assert_allclose(high, jnp.exp(inner_high), rtol=1e-8)
        with pytest.raises(ValueError, match="together"):
            post.interval(positive, z, transform=jnp.log)
        with pytest.raises(ValueError, match="between 0 and 1"):
            post.interval(positive, z, level=95.0)

    def test_samples_have_the_covariance(self, post: dv.Posterior) -> None:
        draws = post.sample(jax.random.key(0), 20_000)["w"]
        assert draws.shape == (20_000, 3)
        np.testing.assert_allclose(jnp.var(draws, axis=0), post.sigma.diagonal(), rtol=0.05)
        np.testing.assert_allclose(jnp.mean(draws, axis=0), post.params["w"], atol=5e-4)

    def test_parts_and_covariance_are_the_functions(self, post: dv.Posterior) -> None:
        z = jnp.eye(3)
        np.testing.assert_array_equal(
            post.covariance(line, z, joint=True), dv.covariance(line, post.params, z, post.sigma, joint=True)
        )
        np.testing.assert_allclose(sum(post.block_variances(line, z).values()), post.variance(line, z))

    def test_no_report_without_fit(self, post: dv.Posterior) -> None:
        with pytest.raises(ValueError, match=r"dv\.fit"):
            dv.Posterior(post.params, post.sigma).report()


class TestFile:
    def test_round_trip(self, regression: Any, tmp_path: Path) -> None:
        params, data = regression
        post = dv.fit(dv.gaussian_log_likelihood(line, scale=0.1), params, data)
        path = tmp_path / "posterior.safetensors"
        post.save(path)
        again = dv.load(path, params)
        z = data[0][:5]
        np.testing.assert_array_equal(again.variance(line, z), post.variance(line, z))
        assert again.report() == post.report()
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata()
        assert header["structure"] == "EigenKronecker"
        assert (header["num_data"], header["damping"]) == ("800.0", "1e-08")

    @pytest.mark.parametrize(
        "value", [0.3, {"w": jnp.arange(1.0, 4.0)}, jnp.diag(jnp.arange(1.0, 4.0)) + 0.1]
    )
    def test_given_covariances(self, regression: Any, tmp_path: Path, value: Any) -> None:
        params, _ = regression
        sigma = dv.as_covariance(params, value)
        dv.Posterior(params, sigma).save(tmp_path / "p.safetensors")
        again = dv.load(tmp_path / "p.safetensors", params)
        np.testing.assert_array_equal(again.sigma.to_dense(), sigma.to_dense())

    @pytest.mark.parametrize(
        "structure", [dv.Kronecker(), dv.EigenKronecker(), dv.Kronecker(split_damping=True)]
    )
    def test_fitted_structures(self, regression: Any, tmp_path: Path, structure: dv.Structure) -> None:
        _, data = regression
        params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(2), "v": jnp.ones((1, 2))}

        def log_likelihood(p: Any, example: Any) -> Any:
            return -jnp.sum((p["v"] @ jnp.tanh(p["w"] @ example[0] + p["b"]) - example[1]) ** 2)

        sigma = dv.fisher(log_likelihood, params, data, structure=structure).inverse(1e-3)
        dv.Posterior(params, sigma).save(tmp_path / "p.safetensors")
        again = dv.load(tmp_path / "p.safetensors", params).sigma
        np.testing.assert_array_equal(again.to_dense(), sigma.to_dense())

        def u(p: Any, x: Any) -> Any:
            return (p["v"] @ jnp.tanh(p["w"] @ x + p["b"]))[0]

        z = data[0][:4]
        np.testing.assert_array_equal(dv.variance(u, params, z, again), dv.variance(u, params, z, sigma))

    def test_half_precision_parameters(self, tmp_path: Path) -> None:
        params = {"w": jnp.arange(3, dtype=jnp.bfloat16)}
        dv.Posterior(params, dv.as_covariance(params, 0.5)).save(tmp_path / "p.safetensors")
        assert dv.load(tmp_path / "p.safetensors", params).params["w"].dtype == jnp.bfloat16

    def test_other_models_and_other_files(self, regression: Any, tmp_path: Path) -> None:
        params, _ = regression
        path = tmp_path / "p.safetensors"
        dv.Posterior(params, dv.as_covariance(params, 1.0)).save(path)
        fresh = tmp_path / "fresh.safetensors"
        fresh.write_bytes(path.read_bytes())
        with pytest.raises(ValueError, match="made for another model"):
            dv.load(path, {"w": jnp.zeros(7)})
        with pytest.raises(ValueError, match="saved with other parameters"):
            dv.load(path, {"w": params["w"] + 1e-9})
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(ValueError, match="damaged, cut short"):
            dv.load(path, params)
        path.write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match="damaged, cut short"):
            dv.load(path, params)

        with safe_open(str(fresh), framework="numpy") as file:
            header = file.metadata()
        assert header["structure"] == "DiagonalCovariance"
        assert header["version"]
        save_file({"x": np.zeros(2)}, str(path))
        with pytest.raises(ValueError, match="no posterior"):
            dv.load(path, params)

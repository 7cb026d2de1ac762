"""Figures show the numbers they were given."""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.estimators import Comparison, Result, Score

matplotlib.use("Agg")


def result(name, time):
    score = Score(0.5 * time, 0.1)
    return Result(name, score, score, score, score, score, time, 3.0, 0.0)


def test_a_point_with_its_error_for_each_estimator():
    table = Comparison((result("a", 2.0), result("b", 10.0), result("free", float("nan"))), "a", 10, 1e-3)
    ax = dv.plot.quality_against_cost(table)
    places = [container[0].get_xydata()[0].tolist() for container in ax.containers]
    assert places[:2] == [[2.0, 1.0], [10.0, 5.0]]
    # What has no known cost stands left of all others.
    assert places[2][0] < 2.0
    assert {text.get_text() for text in ax.texts} == {"a", "b", "free"}
    with pytest.raises(ValueError, match="`score` must be one of"):
        dv.plot.quality_against_cost(table, score="beauty")


def test_sparsification_curves():
    e = jax.random.normal(jax.random.key(0), (50, 2))
    curve = dv.metrics.sparsification_curve(e, jnp.abs(e))
    ax = dv.plot.sparsification({"mine": curve}, quantity=1)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), curve.error[:, 1])
    assert [line.get_label() for line in ax.lines] == ["mine", "oracle", "random"]
    with pytest.raises(ValueError, match="empty"):
        dv.plot.sparsification({})

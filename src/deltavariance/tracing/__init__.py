"""From `u(params, z)` to exact per-example gradients in factored form. Knows nothing of covariances."""

from deltavariance.tracing.example import Traced as Traced
from deltavariance.tracing.example import as_real_array as as_real_array
from deltavariance.tracing.example import example_gradients as example_gradients
from deltavariance.tracing.example import trace as trace
from deltavariance.tracing.gradients import Dense as Dense
from deltavariance.tracing.gradients import ExampleGradients as ExampleGradients
from deltavariance.tracing.gradients import Form as Form
from deltavariance.tracing.gradients import Products as Products
from deltavariance.tracing.gradients import Rows as Rows

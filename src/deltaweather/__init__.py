"""A weather forecaster with a learned step function: the first client of `deltavariance`."""

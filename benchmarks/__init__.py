"""Measurements, as ratios to a plain batched gradient in the same process. `python -m benchmarks --help`."""

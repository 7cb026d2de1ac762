"""Figures drawn from results. Nothing is computed here, and matplotlib is imported only when a figure is drawn."""

from deltavariance.plot.quality import quality_against_cost as quality_against_cost
from deltavariance.plot.sparsification import sparsification as sparsification

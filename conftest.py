"""Set up before any test or doctest imports the packages."""

import os

import matplotlib as mpl
from hypothesis import settings
from jaxtyping import install_import_hook

# Shapes and types of every annotated function are checked while the tests run.
install_import_hook(["deltavariance", "deltaweather"], "beartype.beartype")

mpl.use("Agg")

# Compiling takes longer than hypothesis allows an example; in continuous integration examples are fixed.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

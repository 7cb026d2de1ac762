"""`python -m benchmarks [subcommand]`: what was asked of the library beside what is measured."""

import argparse
import importlib
import sys

# A subcommand is a module with `add_arguments(parser)` and `main(arguments)`; a new one is one line here.
SUBCOMMANDS = {
    "core": ("benchmarks.core", "variance and Fisher information of seven networks, against one gradient"),
    "kronecker": ("benchmarks.kronecker", "Kronecker-factored fits and variances, against one gradient"),
    "big": ("benchmarks.big", "a transformer of 100 million parameters: peak memory, growth of cost"),
    "estimators": (
        "benchmarks.estimators",
        "every variance estimator on six data sets, and where truth is known",
    ),
}


def main(words: list[str]) -> None:
    """Without a subcommand, the core table: `--case mlp` alone is `core --case mlp`."""
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words = ["core", *words]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="subcommand", required=True)
    modules = {}
    for name, (module, text) in SUBCOMMANDS.items():
        sub = commands.add_parser(name, help=text)
        if words[0] == name:
            modules[name] = importlib.import_module(module)
            modules[name].add_arguments(sub)
    arguments = parser.parse_args(words)
    modules[arguments.subcommand].main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])

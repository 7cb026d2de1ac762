"""The command `deltaweather`."""

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence

# Name, the module that holds `add_arguments(parser)` and `run(arguments) -> int`, and a line of help.
# Modules are imported only when their command is used.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("info", "deltaweather.info", "what a record holds, what was found in it, what can be asked of it"),
    ("forecast", "deltaweather.commands.forecast", "a forecast for a place, with its bands and their causes"),
    ("train", "deltaweather.commands.train", "train forecasters on a record and measure their skill"),
    ("demo", "deltaweather.commands.demo", "the whole benchmark on ten years of Paris, without a download"),
    (
        "benchmark",
        "deltaweather.commands.benchmark",
        "compare estimators of a forecast's uncertainty on a record",
    ),
    ("simulate", "deltaweather.simulate", "make global weather with a circulation model"),
)

FAILED = 2
INTERRUPTED = 130


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser; only the chosen command's options are filled in (all of them for None)."""
    parser = argparse.ArgumentParser(
        prog="deltaweather",
        description="Weather forecasts by a learned model, and how far they depend on its data.",
    )
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, module, text in COMMANDS:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if chosen is None or chosen == name:
            loaded = importlib.import_module(module)
            loaded.add_arguments(sub)
            sub.set_defaults(run=loaded.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it went well, 2 after an error (told in a sentence), 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    names = {name for name, _, _ in COMMANDS}
    chosen = next((word for word in given if word in names), "")
    parsed = build_parser(chosen).parse_args(given)
    try:
        return int(parsed.run(parsed))
    except KeyboardInterrupt:
        print(
            "Interrupted; finished stages are kept. Run the same command again to continue.", file=sys.stderr
        )
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) went away
        sys.stderr.close()
        return 0
    except Exception as error:  # a person at a terminal wants the sentence; --debug gives the rest
        if parsed.debug:
            traceback.print_exc()
        print(f"deltaweather: {_sentence(error)}", file=sys.stderr)
        return FAILED


def _sentence(error: Exception) -> str:
    expected = (ValueError, TypeError, OSError, ImportError, FloatingPointError, IndexError)
    text = str(error) or type(error).__name__
    if isinstance(error, expected):
        return text
    return f"{type(error).__name__}: {text} (unexpected; run with --debug to see where)"


if __name__ == "__main__":
    sys.exit(main())

"""A griffe extension: doctests in docstrings are shown as code, without every docstring needing a fence."""

import re
from typing import Any

import griffe

# A paragraph that starts with a prompt, up to the blank line that ends a doctest.
DOCTEST = re.compile(r"(?:^|(?<=\n\n))>>> .*?(?=\n\n|\Z)", flags=re.DOTALL)


def fenced(text: str) -> str:
    """`text` with each doctest in a fence of its own."""
    return DOCTEST.sub(lambda found: f"```pycon\n{found.group(0).rstrip()}\n```", text)


class FencedDoctests(griffe.Extension):
    """Applied to every object as it is collected."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)

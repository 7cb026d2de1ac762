"""A MkDocs hook: folders in the navigation, and the reference pages from what the package exports.

A navigation entry that ends in "/" becomes all pages of that folder, sorted by file name. The folder
`reference/` has no files: its pages are written here, one per topic, so that a new public name is
documented as soon as the package exports it.
"""

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGE = "deltavariance"
# Where a name is defined decides its topic; the order here is the order of the pages.
TOPICS = {
    "variance": "The number: variance, covariance, per-block parts",
    "fit": "The short way: fit",
    "posterior": "The fitted object: ask, save, load",
    "report": "The report",
    "curvature": "Curvature: what the data say about the parameters",
    "covariance": "Covariances",
    "structures": "Structures",
    "likelihood": "Likelihoods",
    "noise": "The noise scale",
    "explain": "How gradients are kept",
    "linearity": "Is the quantity straight enough?",
}
OTHER = "Everything else"


def _topic(value: object) -> str:
    """The title of the page on which `value` is documented."""
    module = inspect.getmodule(value)
    parts = module.__name__.split(".") if module else []
    room = parts[1] if len(parts) > 1 else ""
    return TOPICS.get(room, OTHER)


def _public(module: ModuleType) -> list[str]:
    """What a module exports: its `__all__`, or else its own definitions and `import x as x`."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    names: list[str] = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            names.extend(alias.name for alias in node.names if alias.asname == alias.name)
    return sorted(name for name in names if not name.startswith("_"))


def _entry(path: str) -> str:
    return f"::: {path}\n"


def reference_pages() -> dict[str, str]:
    """File name to Markdown, for every public name of the package."""
    package = importlib.import_module(PACKAGE)
    by_topic: dict[str, list[str]] = {title: [] for title in [*TOPICS.values(), OTHER]}
    pages: dict[str, str] = {}
    for name in _public(package):
        value = getattr(package, name)
        if not isinstance(value, ModuleType):
            by_topic[_topic(value)].append(name)
        else:
            members = [m for m in _public(value) if not isinstance(getattr(value, m), ModuleType)]
            head = inspect.getdoc(value) or ""
            body = "\n".join(_entry(f"{PACKAGE}.{name}.{member}") for member in members)
            pages[f"reference/{PACKAGE}.{name}.md"] = f"# dv.{name}\n\n{head}\n\n{body}"
    for number, (title, names) in enumerate(by_topic.items()):
        if names:
            body = "\n".join(_entry(f"{PACKAGE}.{name}") for name in names)
            pages[f"reference/{number:02d}.md"] = f"# {title}\n\n{body}"
    return pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace every folder in the navigation by its pages."""
    docs = Path(config.docs_dir)
    expanded: list[Any] = []
    for item in config.nav or []:
        ((title, target),) = item.items()
        if isinstance(target, str) and target.endswith("/"):
            written = sorted(p.relative_to(docs).as_posix() for p in (docs / target).glob("*.md"))
            pages = written + (sorted(reference_pages()) if target == "reference/" else [])
            if pages:
                expanded.append({title: pages})
        else:
            expanded.append(item)
    config.nav = expanded
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    for path, text in reference_pages().items():
        files.append(File.generated(config, path, content=text))
    return files

"""A MkDocs hook: folders in the navigation, and the reference pages from what the package exports.

A navigation entry that ends in "/" becomes all pages of that folder, sorted by file name. The folder
`reference/` has no files: its pages are written here, one per topic, so that a new public name is
documented as soon as the package exports it.
"""

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
    "posterior": "One object: fit, save, load, report",
    "curvature": "Curvature: what the data say about the parameters",
    "covariance": "Covariances and their structures",
    "likelihood": "Likelihoods and the noise scale",
    "tracing": "Gradients of single cases",
}
OTHER = "Everything else"


def _topic(value: object) -> str:
    """The title of the page on which `value` is documented."""
    module = inspect.getmodule(value)
    parts = module.__name__.split(".") if module else []
    room = parts[1] if len(parts) > 1 else ""
    for stem, title in TOPICS.items():
        if room.startswith(stem.rstrip("s")):
            return title
    return OTHER


def _public(module: ModuleType) -> list[str]:
    return sorted(name for name in getattr(module, "__all__", vars(module)) if not name.startswith("_"))


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
            if getattr(value, "__doc__", None) and inspect.getmodule(value) is not None:
                by_topic[_topic(value)].append(name)
        elif value.__name__.startswith(f"{PACKAGE}."):
            members = [m for m in _public(value) if not isinstance(getattr(value, m), ModuleType)]
            head = inspect.getdoc(value) or ""
            body = "\n".join(_entry(f"{PACKAGE}.{name}.{member}") for member in members)
            pages[f"reference/{PACKAGE}.{name}.md"] = f"# dv.{name}\n\n{head}\n\n{body}"
    for number, (title, names) in enumerate(by_topic.items()):
        if names:
            body = "\n".join(_entry(f"{PACKAGE}.{name}") for name in names)
            pages[f"reference/{number}.md"] = f"# {title}\n\n{body}"
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

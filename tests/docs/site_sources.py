"""Hook of the documentation site: bring in what its pages link to outside `docs/`.

A page elsewhere becomes a page below `source/`, and so do those that it links to. Any other file becomes text there,
which each browser shows. So a link leads to the same file here and on the site.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.docs.site_reference import commands_page, routes_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_SEARCH = 'data-md-component="search" role="dialog"'
_SHOWN = {".md", ".png", ".svg"}
_GENERATED = {
    "commands.md", "errors.md", "messages.md", "messages-requests.md", "metrics.md", "rest-routes.md", "settings.md"
}  # fmt: skip
_GUIDES = {
    f"{name}.md" for name in (
        "quickstart", "tasks", "time", "occurrences", "run-states", "workflows", "tenants", "handlers", "targets",
        "http-targets", "own-transactions", "testing", "operations", "deployment", "console",
    )
}  # fmt: skip
# Reference with the rules that the generated pages lack.
_RULES = {"requests.md", "requests-submit.md", "interventions.md", "rest.md"}
# Python-Markdown, unlike CommonMark, needs a blank line before a list and a table, and no second word after a fence.
_BLANK = re.compile(r"^(?:(?![-*|] |\d+\. |[\s#`]).+(?=\n(?:[-*]|1\.) )|<!--.*-->(?=\n\|))$", re.MULTILINE)
_FENCE = re.compile(r"^(```\w+) .+$", re.MULTILINE)
# Code is matched too, so that nothing in it is a link.
_LINK = re.compile(r"^```.*?^```$|`[^`\n]*`|(?<=\]\()(?P<target>[^)\s#]+)(?=[)#])", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that the code writes, and each file outside `docs/` that a page leads to."""
    for name, text in (("rest-routes.md", routes_page()), ("commands.md", commands_page())):
        files.append(File.generated(config, name, content=text))
    ahead = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    while ahead:
        for path in _linked(ahead.pop()):
            if files.get_file_from_path(address(path)) is None and not path.is_relative_to(DOCS):
                files.append(File.generated(config, address(path), abs_src_path=str(path)))
                ahead += [path] * (path.suffix == ".md")
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to places on the site, and begin lists and tables as CommonMark does."""
    source, here = Path(page.file.abs_src_path or DOCS / page.file.src_uri), posixpath.dirname(page.file.src_uri)
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    page.meta.setdefault("search", {"boost": boost_of(page.file.src_uri)})

    def lead(found: re.Match[str]) -> str:
        """Return code as it is, and a link's new target."""
        path = _file(source, found["target"])
        return posixpath.relpath(address(path), here or ".") if path else found[0]

    return _FENCE.sub(r"\1", _BLANK.sub("\\g<0>\n", _LINK.sub(lead, markdown)))


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Name the theme's dialog of the search for screen readers."""
    del page, config
    return output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')


def boost_of(uri: str) -> float:
    """Return the weight of a page in a search: guides before reference, decision records last.

    >>> boost_of("tasks.md"), boost_of("topics.md"), boost_of("adr/0004-outbox.md")
    (4.0, 1.0, 0.1)
    """
    if uri in _GUIDES:
        return 4.0
    if uri in _RULES:
        return 2.0
    if uri.startswith(("adr/", "source/")):
        return 0.1
    return 0.5 if uri in _GENERATED or uri.startswith("coming-from/") else 1.0


def address(path: Path) -> str:
    """Return the place of a file on the site.

    >>> address(ROOT / "docs/time.md"), address(ROOT / "CHANGELOG.md"), address(ROOT / "schemas/reply.avsc")
    ('time.md', 'source/CHANGELOG.md', 'source/schemas/reply.avsc.txt')
    """
    if path.is_relative_to(DOCS):
        return "index.md" if path == DOCS / "README.md" else path.relative_to(DOCS).as_posix()
    name = f"source/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix in _SHOWN else f"{name}.txt"


def _linked(page: Path) -> Iterator[Path]:
    for found in _LINK.finditer(page.read_text(encoding="utf-8")):
        path = _file(page, found["target"])
        if path:
            yield path


def _file(page: Path, target: str | None) -> Path | None:
    """Return the file that a link leads to; None for code and for links to other sites."""
    if target is None or re.match(r"\w+:", target):
        return None
    path = (page.parent / unquote(target)).resolve()
    return path / "README.md" if path.is_dir() else path

"""Let mkdocs show pages that are made from the code, and links to files that are not on the site.

mkdocs.yml names this file. Pages are made in memory, so that none of them can be stale.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from website import notebooks, reference
from website.external import external_requests

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {  # files of the checkout that are pages of the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
}
LINK = re.compile(
    r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)"
)


def on_config(config: Any) -> Any:
    """Put the pages of a folder where the menu says `folder/*`."""
    config.nav = _expanded(config.nav, _folders(Path(config.docs_dir)))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from code, examples, notebooks and the files of the checkout."""
    for uri, text in _generated().items():
        files.append(File.generated(config, uri, content=text))
    for path, uri in notebooks.assets():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files of the checkout into links to their pages, or into plain names."""
    home = ROOT / "docs" / page.file.src_uri
    for name, uri in ROOT_PAGES.items():
        if uri == page.file.src_uri and name != "README.md":
            home = ROOT / name
    return LINK.sub(lambda found: _link(found, home, page.file.src_uri), markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put notebooks into a class of their own, in which style.css breaks the lines of outputs."""
    if not page.file.src_uri.startswith("notebooks/"):
        return html
    return f'<div class="notebook">{html}</div>'


def on_post_build(config: Any) -> None:
    """Raise an error if a built page would make a browser ask another host."""
    found = external_requests(Path(config.site_dir))
    if found:
        raise PluginError("Pages must ask no other host, got\n" + "\n".join(found))


def _link(found: re.Match[str], home: Path, here: str) -> str:
    """Return what stands in the place of one link on the page `here`, whose source is `home`."""
    text, target, anchor = found.group(1), found.group(2), found.group(3) or ""
    path = (home.parent / target).resolve()
    if not path.is_relative_to(ROOT) or not path.exists():
        return found.group(0)  # mkdocs knows generated pages, and says what is missing
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        uri = name.removeprefix("docs/")
    elif name in ROOT_PAGES:
        uri = ROOT_PAGES[name]
    elif name.startswith("examples/") and name.endswith(".py"):
        uri = name.removesuffix(".py") + ".md"
    else:
        return text if "`" in text else f"{text} (`{name}`)"
    up = "../" * here.count("/")
    return f"[{text}]({up}{uri}{anchor})"


def _generated() -> dict[str, str]:
    """Return the text of every page that is made while the site is built, by its address."""
    pages = {
        uri: (ROOT / name).read_text(encoding="utf-8")
        for name, uri in ROOT_PAGES.items()
        if name != "README.md"
    }
    return pages | reference.pages() | notebooks.pages() | _examples()


def _examples() -> dict[str, str]:
    """Return a page for each example: the first sentence of its docstring, and the file."""
    pages = {}
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8")
        title = path.stem.replace("_", " ").capitalize()
        pages[f"examples/{path.stem}.md"] = (
            f"# {title}\n\n`python examples/{path.name}`; the tests run it as it stands.\n\n"
            f"```python\n{code}```\n"
        )
    return pages


def _folders(docs: Path) -> dict[str, list[Any]]:
    """Return what stands in the menu for `folder/*`."""
    made = _generated()
    folders = {
        folder: [uri for uri in made if uri.startswith(f"{folder}/")]
        for folder in ("api", "examples", "notebooks")
    }
    listed = re.findall(r"\]\((algorithms/\w+\.md)\)", (docs / "methods.md").read_text())
    return folders | {"algorithms": listed}


def _expanded(entry: Any, folders: dict[str, list[Any]]) -> Any:
    """Return a part of the menu with the pages of folders in the place of `folder/*`."""
    if isinstance(entry, dict):
        return {title: _expanded(part, folders) for title, part in entry.items()}
    if isinstance(entry, list):
        parts: list[Any] = []
        for part in entry:
            whole = isinstance(part, str) and part.endswith("/*")
            parts.extend(folders[part[:-2]] if whole else [_expanded(part, folders)])
        return parts
    return entry

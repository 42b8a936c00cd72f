"""Hooks of MkDocs: the site also has pages and files of the repository that lie outside of docs/.

They are in its folder `project/`. A page links to them as GitHub wants it, by the path in the
repository; `on_page_markdown` turns such a link into one of the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PROJECT = "project"
OUTSIDE = [
    "*.md",
    "*/DESIGN.md",
    "cdcmeta/README.md",
    "tests/vectors/kubernetes/README.md",
    "benchmarks/results/*.md",
    "benchmarks/results/*.png",
    "examples/*.py",
    "examples/kubernetes/*",
]
FIRST = {"README.md": "index.md"}  # the first page of the repository, and of the site
LINK = re.compile(r"(\]\()(?![a-z]+:)([^)#\s]+)")
FENCED = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files from outside of docs/."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name not in FIRST and path.is_file():
                added = File.generated(config, f"{PROJECT}/{name}", abs_src_path=str(path))
                if name.startswith("benchmarks/"):
                    added.inclusion = added.inclusion.NOT_IN_NAV
                files.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links between files of the repository into links between pages of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(in_repository(here))

    def linked(link: re.Match[str]) -> str:
        target = in_site(posixpath.normpath(posixpath.join(folder, link[2])))
        return link[1] + posixpath.relpath(target, posixpath.dirname(here) or ".")

    pieces, end = [], 0
    for code in FENCED.finditer(markdown):
        pieces += [LINK.sub(linked, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, LINK.sub(linked, markdown[end:])])


def in_repository(name: str) -> str:
    """Return the path in the repository of a file of the site."""
    inside = name.removeprefix(f"{PROJECT}/")
    return inside if inside != name else f"docs/{name}"


def in_site(name: str) -> str:
    """Return the path in the site of a file of the repository."""
    inside = name.removeprefix("docs/")
    return FIRST.get(name, inside if inside != name else f"{PROJECT}/{name}")

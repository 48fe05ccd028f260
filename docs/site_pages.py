"""What mkdocs reads: the documents where they lie in the repository, so that their links work there and on the site.

Formulas become MathML while the site is built. Browsers show it as it is; nothing is fetched from elsewhere.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
SOURCES = (
    "*.md",
    "LICENSE",
    "docs/**/*.md",
    "docs/**/*.png",
    "docs/**/*.svg",
    "results/**/*.md",
    "results/**/*.png",
    "src/**/*.md",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's own files, and all documents by their path in the repository."""
    theme = [file for file in files if not file.src_uri.endswith((".md", ".png", ".py", ".svg"))]
    found = sorted(path.relative_to(ROOT).as_posix() for pattern in SOURCES for path in ROOT.glob(pattern))
    return Files([*theme, *(File(uri, str(ROOT), config.site_dir, config.use_directory_urls) for uri in found)])


def on_page_content(content: str, page: Page, **_: object) -> str:  # noqa: ARG001
    r"""`\( ... \)` and `\[ ... \]`, as pymdownx.arithmatex leaves them, to MathML."""
    return re.sub(
        r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>',
        lambda found: mathml(html.unescape(found[2]), "inline" if found[1] == "span" else "block"),
        content,
        flags=re.DOTALL,
    )


def mathml(formula: str, display: str) -> str:
    spaced = formula.replace(r"\tag{", r"\qquad \text{").replace(r"\Big\{", r"\{").replace(r"\Big\}", r"\}")
    spaced = re.sub(r"\\qquad \\text\{(\d+)\}", r"\\qquad (\1)", spaced)
    return convert(spaced, display=display)

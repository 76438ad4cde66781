"""What the documents point at exists, and NOTICE names those we depend on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    *ROOT.glob("*.md"),
    *(path for folder in ("docs", "awx", "files", "roles", "collections") for path in ROOT.glob(f"{folder}/**/*.md")),
]


def anchors(page: Path) -> set[str]:
    """The places inside a page that a link may name, as a forge derives them from headings."""
    headings = re.findall(r"^#+ +(.+?) *$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, place = target.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or not there.is_relative_to(ROOT):
            broken.append(f"{target}: {there} does not exist")
        elif place and place not in anchors(there):
            broken.append(f"{target}: {there.name} has no heading {place}")
    assert broken == []


def test_the_pages_are_found() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "docs/README.md", "docs/architecture.md"} <= names
    assert sum(page.read_text().count("](") for page in PAGES) > 10


def asked_for() -> set[str]:
    """Names of the packages and collections that somebody asked for, in the lower case that pip compares."""
    control = (ROOT / "requirements/control.txt").read_text().partition("# what those need")[0]
    lists = [control, *((ROOT / "requirements" / name).read_text() for name in ("serving-gb10.txt", "collections.txt"))]
    names = {re.split(r"[=<>!~\[; ]", line)[0] for text in lists for line in text.splitlines() if re.match(r"\w", line)}
    project = (ROOT / "runtime/pyproject.toml").read_text()
    for block in re.findall(r"^(?:dependencies|kernels) = \[(.*?)\]", project, re.MULTILINE | re.DOTALL):
        names |= {re.split(r"[=<>!~\[; ]", name)[0] for name in re.findall(r'"(.+?)"', block)}
    return {name.lower() for name in names}


def test_notice_names_what_the_requirements_ask_for() -> None:
    words = set(re.findall(r"[\w.-]*\w", (ROOT / "NOTICE").read_text().lower()))
    asked = asked_for()
    assert {"ansible-core", "vllm", "jsonschema", "awx.awx", "numpy"} <= asked
    assert asked - words == set(), "name them in NOTICE"

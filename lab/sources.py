"""Where Debian packages come from: this machine's own apt sources, with another suite's name put in.

Nothing here knows a mirror; what apt uses on this machine is what the lab uses.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lab.shell import LabError

# The release of this machine -> the suite its lab nodes run. trixie is the nearest to DGX OS that Debian 12 can make.
NODE_SUITE = {"bookworm": "trixie", "trixie": "trixie", "noble": "noble"}
BASE_SUITE = "bookworm"
OVERRIDE = "SPARKMESH_LAB_DEBIAN_SOURCES"
ETC = Path("/etc/apt")
OS_RELEASE = Path("/etc/os-release")


@dataclass(frozen=True)
class Source:
    """One apt source: a mirror, its main suite and what else the entry says."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""

    def line(self, suite: str, components: tuple[str, ...] = ()) -> str:
        """The source as one line of sources.list, for ``suite``."""
        option = f"[signed-by={self.signed_by}] " if self.signed_by else ""
        return f"deb {option}{self.uri} {suite} {' '.join(components or self.components)}"


def parse_deb822(text: str) -> list[Source]:
    """Binary sources of a ``.sources`` file that are enabled, in order; keys pasted into the file are left out."""
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for row in stanza.splitlines():
            if row.startswith("#"):
                continue
            if row[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {row.strip()}"
            elif ":" in row:
                name, value = row.split(":", 1)
                name = name.lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
            continue
        uris, suites = fields.get("uris", "").split(), fields.get("suites", "").split()
        if uris and suites:
            key = fields.get("signed-by", "")
            components = tuple(fields.get("components", "main").split())
            found.append(Source(uris[0], suites[0], components, key if key.startswith("/") else ""))
    return found


def parse_list(text: str) -> list[Source]:
    """Binary sources of a one-line-style ``sources.list``, in order."""
    found = []
    for row in text.splitlines():
        match = re.match(r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", row)
        if match:
            options = dict(part.split("=", 1) for part in (match[1] or "").split() if "=" in part)
            found.append(Source(match[2], match[3], tuple(match[4].split()), options.get("signed-by", "")))
    return found


def read(etc: Path) -> list[Source]:
    """All binary sources under an ``/etc/apt``: sources.list first, then the folder in name order."""
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    found: list[Source] = []
    for path in files:
        if path.suffix == ".sources" and path.is_file():
            found += parse_deb822(path.read_text())
        elif path.suffix == ".list" and path.is_file():
            found += parse_list(path.read_text())
    return found


def release(os_release: str) -> dict[str, str]:
    """The text of ``/etc/os-release`` as a mapping."""
    pairs = (row.split("=", 1) for row in os_release.splitlines() if "=" in row)
    return {name: value.strip().strip('"') for name, value in pairs}


def own(etc: Path = ETC, os_release: Path = OS_RELEASE) -> tuple[str, Source]:
    """This machine's code name and the source of its distribution. Raises LabError when the lab does not know it."""
    name = release(os_release.read_text()).get("VERSION_CODENAME", "")
    if name not in NODE_SUITE:
        raise LabError(f"this machine runs {name or 'an unnamed release'}, wanted one of {', '.join(NODE_SUITE)}")
    for source in read(etc):
        if source.suite == name:
            return name, source
    raise LabError(f"no apt source under {etc} has the suite {name}", "restore the distribution's own apt source")


def for_nodes(etc: Path = ETC, os_release: Path = OS_RELEASE) -> tuple[str, str]:
    """Suite of the nodes and the source line to make them from."""
    name, source = own(etc, os_release)
    suite = NODE_SUITE[name]
    return suite, source.line(suite, ("main", "universe") if suite == "noble" else ("main",))


def for_base(etc: Path = ETC, os_release: Path = OS_RELEASE) -> tuple[str, str]:
    """Suite of the serving base image and its source line; ``SPARKMESH_LAB_DEBIAN_SOURCES`` names another file."""
    other = os.environ.get(OVERRIDE)
    if other:
        text = Path(other).read_text()
        parsed = parse_deb822(text) if other.endswith(".sources") else parse_list(text)
        if not parsed:
            raise LabError(f"{OVERRIDE}={other} holds no binary apt source", "write one `deb` line or stanza into it")
        return BASE_SUITE, parsed[0].line(BASE_SUITE, ("main",))
    name, source = own(etc, os_release)
    if name == "noble":
        raise LabError(
            f"the serving base image is Debian {BASE_SUITE}, and this machine's apt sources are Ubuntu's",
            f"set {OVERRIDE} to a file with an apt source of Debian",
        )
    return BASE_SUITE, source.line(BASE_SUITE, ("main",))

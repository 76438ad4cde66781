"""Package sources of the lab come from the machine's own, whatever their style."""

from pathlib import Path

import pytest

from lab import sources
from lab.shell import LabError

DEB822 = """# a comment
Types: deb
URIs: http://mirror.invalid/debian
# Suites: oldold
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.invalid/security
Suites: bookworm-security
Components: main
"""


def machine(folder: Path, name: str, files: dict[str, str]) -> tuple[Path, Path]:
    (folder / "sources.list.d").mkdir()
    for file, text in files.items():
        (folder / file).write_text(text)
    (folder / "os-release").write_text(f'NAME="x"\nVERSION_CODENAME={name}\n')
    return folder, folder / "os-release"


def test_debian_12_gives_trixie_nodes_and_a_bookworm_base(tmp_path: Path) -> None:
    place = machine(tmp_path, "bookworm", {"sources.list.d/debian.sources": DEB822})
    key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert sources.for_nodes(*place) == ("trixie", f"deb {key} http://mirror.invalid/debian trixie main")
    assert sources.for_base(*place) == ("bookworm", f"deb {key} http://mirror.invalid/debian bookworm main")


def test_one_line_style_with_options(tmp_path: Path) -> None:
    text = "deb-src http://a.invalid trixie main\n# deb http://b.invalid trixie main\n"
    text += "deb [arch=amd64 signed-by=/k.gpg] http://c.invalid/debian trixie main non-free # why\n"
    place = machine(tmp_path, "trixie", {"sources.list": text})
    assert sources.for_nodes(*place) == ("trixie", "deb [signed-by=/k.gpg] http://c.invalid/debian trixie main")
    assert sources.for_base(*place)[1].endswith("http://c.invalid/debian bookworm main")


def test_ubuntu_nodes_need_universe_and_the_base_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Types: deb\nURIs: http://u.invalid/ubuntu\nSuites: noble noble-updates\nComponents: main\n"
    place = machine(tmp_path, "noble", {"sources.list.d/ubuntu.sources": text})
    assert sources.for_nodes(*place) == ("noble", "deb http://u.invalid/ubuntu noble main universe")
    monkeypatch.delenv(sources.OVERRIDE, raising=False)
    with pytest.raises(LabError, match=sources.OVERRIDE):
        sources.for_base(*place)
    (tmp_path / "other.list").write_text("deb http://d.invalid/debian sid main\n")
    monkeypatch.setenv(sources.OVERRIDE, str(tmp_path / "other.list"))
    assert sources.for_base(*place) == ("bookworm", "deb http://d.invalid/debian bookworm main")


def test_disabled_pasted_key_and_source_only_stanzas() -> None:
    text = (
        "Types: deb\nEnabled: no\nURIs: http://off.invalid\nSuites: s\n\n"
        "Types: deb-src\nURIs: http://src.invalid\nSuites: s\n\n"
        "Types: deb deb-src\nURIs:\n http://on.invalid\nSuites: s\nSigned-By:\n -----BEGIN PGP-----\n .\n abc\n"
    )
    assert sources.parse_deb822(text) == [sources.Source("http://on.invalid", "s", ("main",))]


def test_files_that_apt_ignores_are_ignored(tmp_path: Path) -> None:
    place = machine(tmp_path, "bookworm", {"sources.list.d/debian.sources.disabled": DEB822})
    with pytest.raises(LabError, match=r"no apt source under .* has the suite bookworm"):
        sources.own(*place)


def test_unknown_release_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="runs sid, wanted one of bookworm, trixie, noble"):
        sources.own(*machine(tmp_path, "sid", {}))

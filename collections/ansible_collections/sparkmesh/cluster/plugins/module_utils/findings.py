"""What a person reads of findings: the worst first, one line each, with the fix where something is to be done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Worst first. `unobserved` stands before `ok` because it is not good news.
ORDER = ("fail", "unobserved", "warn", "not_applicable", "ok")


def findings_text(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each finding, worst first; seen, wanted and fix only where the status asks for attention.

    Raises ValueError for a status that is none.
    """
    found, lines = list(findings), []
    for finding in found:
        if finding["status"] not in ORDER:
            raise ValueError(
                f"finding {finding['id']} of {finding['node']} has status {finding['status']!r}, "
                f"wanted one of {', '.join(ORDER)}"
            )
    for finding in sorted(found, key=lambda each: ORDER.index(each["status"])):
        line = f"{finding['status']:<14} {finding['node']}  {finding['id']}: {finding['title']}"
        if finding.get("emulated"):
            line += " (emulated)"
        if finding["status"] == "ok":
            line += f" is {finding['seen']}"
        elif finding["status"] == "not_applicable":
            line += f"; {finding['fix']}"
        else:
            line += f": seen {finding['seen']}, wanted {finding['wanted']}; fix: {finding['fix']}"
        lines.append(line)
    return lines


def link_findings(links: Iterable[Mapping[str, Any]], node: str) -> list[dict[str, Any]]:
    """The proof of ``node``'s links (``links`` of the module ``fabric_links``) as findings with the id fabric.proof."""
    return [
        {
            "id": "fabric.proof",
            "node": node,
            "status": link["status"],
            "title": f"jumbo frames over {link['interface']} to {link['peer']}",
            "seen": link["seen"],
            "wanted": link["wanted"],
            "fix": link["fix"],
            "emulated": False,
        }
        for link in links
    ]

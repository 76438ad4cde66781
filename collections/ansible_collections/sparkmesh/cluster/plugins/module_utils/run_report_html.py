# Copyright: sparkmesh contributors
# SPDX-License-Identifier: Apache-2.0
"""A run report (see run_report.py) as one HTML file: no script, nothing to fetch, all text escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #2e7d32; --bad: #c62828; --warn: #b26a00; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .25rem .6rem; vertical-align: top;
border-bottom: 1px solid var(--line); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: 13px/1.4 ui-monospace, monospace; }
summary { cursor: pointer; padding: .3rem 0; } meter { width: 8rem; }
.ok, .changed { color: var(--good); } .failed, .unreachable, .fail { color: var(--bad); font-weight: 600; }
.ignored, .warn, .rescued, .unobserved { color: var(--warn); } .skipped, .not_applicable { opacity: .6; }
"""


def render(report: Mapping[str, Any]) -> str:
    """The whole page; well-formed XML as well as HTML, so that tools can check it."""
    verdict = ("ok", "succeeded") if report["ok"] else ("failed", "failed")
    mode = " (check mode: nothing was changed)" if report["check_mode"] else ""
    title = f"{report['playbook']} {verdict[1]}"
    body = [
        f'<h1 class="{verdict[0]}">{escape(title)}{escape(mode)}</h1>',
        f"<p>Started {escape(report['started'])}, took {report['seconds']:.1f} s: {report['rows']} task rows, "
        f"{report['changed']} changed.</p>",
        _failures(report["failures"]),
        *(_stats(host, values) for host, values in report["custom"].items()),
        "<h2>Hosts</h2>",
        _hosts(report),
        "<h2>Plays</h2>",
        *(_play(play, report["seconds"]) for play in report["plays"]),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="utf-8" />'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """Cells are HTML already."""
    mark = [' class="n"' if column in numeric else "" for column in range(len(head))]
    lines = [
        "<table><tr>" + "".join(f"<th{m}>{escape(name)}</th>" for m, name in zip(mark, head, strict=True)) + "</tr>"
    ]
    for row in rows:
        lines.append("<tr>" + "".join(f"<td{m}>{cell}</td>" for m, cell in zip(mark, row, strict=True)) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _pre(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    # Control characters are not allowed in XML and tell a reader nothing.
    return f"<pre>{escape(''.join(char for char in text if char >= ' ' or char in chr(10) + chr(9)))}</pre>"


def _status(status: str) -> str:
    return f'<span class="{escape(status)}">{escape(status)}</span>'


def _failures(failures: Sequence[Mapping[str, str]]) -> str:
    if not failures:
        return ""
    rows = [
        [escape(f["host"]), _status(f["status"]), escape(f["task"]), _pre(f["message"]), _pre(f["fix"] or "-")]
        for f in failures
    ]
    return "<h2>What failed</h2>\n" + _table(["host", "", "task", "message", "fix"], rows)


def _stats(host: str, values: Mapping[str, Any]) -> str:
    if not values:
        return ""
    rows = [[escape(name), _findings(value) if _is_findings(value) else _pre(value)] for name, value in values.items()]
    place = "" if host == "_run" else f" of {escape(host)}"
    return f"<h2>Results{place}</h2>\n" + _table(["name", "value"], rows)


def _is_findings(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(entry, Mapping) and {"id", "status"} <= set(entry) for entry in value)
    )


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    columns = ("id", "node", "title", "seen", "wanted", "fix")
    rows = [[_status(str(f["status"])), *(_pre(f.get(name, "")) for name in columns)] for f in findings]
    return _table(["status", *columns], rows)


def _hosts(report: Mapping[str, Any]) -> str:
    counts = ("ok", "changed", "failures", "unreachable", "skipped", "rescued", "ignored")
    names = list(report["hosts"]) + [host for host in report["trips"] if host not in report["hosts"]]
    rows = [
        [
            escape(host),
            *(str(report["hosts"].get(host, {}).get(count, 0)) for count in counts),
            str(report["trips"].get(host, 0)),
        ]
        for host in names
    ]
    return _table(["host", *counts, "trips"], rows, range(1, len(counts) + 2))


def _play(play: Mapping[str, Any], total: float) -> str:
    trips = ", ".join(f"{escape(host)} {count}" for host, count in sorted(play["trips"].items())) or "none"
    share = f'<meter min="0" max="{max(total, 0.001):.3f}" value="{play["seconds"]:.3f}"></meter>'
    head = f"{share} <b>{escape(play['name'])}</b> {play['seconds']:.1f} s, {play['rows']} rows, trips: {trips}"
    rows = [[escape(task["name"]), f"{task['seconds']:.1f}", _outcomes(task["hosts"])] for task in play["tasks"]]
    return (
        f"<details><summary>{head}</summary>\n" + _table(["task", "seconds", "hosts"], rows, [1]) + "\n</details>"
        if rows
        else f"<p>{head}</p>"
    )


def _outcomes(hosts: Mapping[str, Mapping[str, Any]]) -> str:
    parts = []
    for host, row in hosts.items():
        parts.append(f"<div>{escape(host)} {_status(row['status'])} {row['seconds']:.1f} s</div>")
        if row.get("message"):
            parts.append(_pre(row["message"]))
        if row.get("actions"):
            parts.append(_pre("\n".join(row["actions"])))
    return "".join(parts)

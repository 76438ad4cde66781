"""Findings as a person reads them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.findings import ORDER, findings_text, link_findings


def finding(status: str, **changes: Any) -> dict[str, Any]:
    made = {"id": "fabric.mtu", "node": "spark-1", "status": status, "title": "MTU", "seen": 1500, "wanted": 9000}
    return {**made, "fix": "run the fabric play", "emulated": False, **changes}


def test_the_worst_comes_first_and_equals_keep_their_order() -> None:
    mixed = [finding(status, node=f"n{place}") for place, status in enumerate([*reversed(ORDER), *reversed(ORDER)])]
    lines = [line.split()[:2] for line in findings_text(mixed)]
    assert [status for status, _ in lines] == [status for status in ORDER for _ in range(2)]
    assert [node for _, node in lines] == ["n4", "n9", "n3", "n8", "n2", "n7", "n1", "n6", "n0", "n5"]


@pytest.mark.parametrize("status", ["fail", "warn", "unobserved"])
def test_what_asks_for_attention_says_seen_wanted_and_fix(status: str) -> None:
    (line,) = findings_text([finding(status)])
    assert line.split(maxsplit=1) == [
        status, "spark-1  fabric.mtu: MTU: seen 1500, wanted 9000; fix: run the fabric play",
    ]  # fmt: skip


def test_what_is_well_says_what_it_is_and_no_fix() -> None:
    assert findings_text([finding("ok", seen=9000)]) == ["ok             spark-1  fabric.mtu: MTU is 9000"]


def test_what_does_not_apply_says_why() -> None:
    (line,) = findings_text([finding("not_applicable", fix="a container has no kernel of its own")])
    assert line == "not_applicable spark-1  fabric.mtu: MTU; a container has no kernel of its own"


def test_emulated_is_said_in_every_line() -> None:
    assert all(" MTU (emulated)" in line for line in findings_text([finding(s, emulated=True) for s in ORDER]))


def test_an_unknown_status_is_no_finding() -> None:
    with pytest.raises(ValueError, match="fine"):
        findings_text([finding("fine")])


def test_links_become_findings_that_can_be_read() -> None:
    link = {"interface": "enp1s0f0np0", "peer": "spark-2", "seen": "1472 bytes", "wanted": "8972 bytes", "fix": "MTU"}
    found = link_findings([{**link, "status": "ok"}, {**link, "status": "fail"}], "spark-1")
    assert [(each["id"], each["node"], each["status"]) for each in found] == [
        ("fabric.proof", "spark-1", "ok"),
        ("fabric.proof", "spark-1", "fail"),
    ]
    assert findings_text(found) == [
        "fail           spark-1  fabric.proof: jumbo frames over enp1s0f0np0 to spark-2: "
        "seen 1472 bytes, wanted 8972 bytes; fix: MTU",
        "ok             spark-1  fabric.proof: jumbo frames over enp1s0f0np0 to spark-2 is 1472 bytes",
    ]
    assert link_findings([], "spark-1") == []

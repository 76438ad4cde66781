"""A consent may come as text: AWX's surveys send nothing else. Nothing but a consent may."""

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.inventory_check import inventory_findings

BOOL = {"type": "bool"}


@pytest.mark.parametrize("name", ["reboot_allowed", "fabric_allow_link_change", "recable_approve"])
@pytest.mark.parametrize("text", ["true", "false"])
def test_a_consent_may_be_the_text_of_a_boolean(name: str, text: str) -> None:
    assert inventory_findings({name: text}, {name: BOOL}, "spark-1") == []


@pytest.mark.parametrize(("name", "value"), [("monitoring_wanted", "true"), ("reboot_allowed", "maybe")])
def test_anything_else_is_refused_by_name(name: str, value: str) -> None:
    found = inventory_findings({name: value}, {name: BOOL}, "spark-1")
    assert len(found) == 1
    assert name in found[0]
    assert value in found[0]

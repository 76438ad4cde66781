#!/usr/bin/python
"""Ansible module: host settings as data."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_settings
short_description: Apply, check or revert a list of host settings in one call
version_added: "0.1.0"
description:
  - Brings sysctls, files, masked units, held and present packages to the wanted state, all in one round trip.
  - The original of everything it changes is kept byte for byte in C(/var/lib/sparkmesh/backup) first.
  - >-
    A setting that cannot exist on this machine (a kernel-wide sysctl in a container, a unit that is not installed)
    is V(not_applicable) with the reason; a setting that a real machine refuses is V(failed), and so is the task,
    after all other settings were tried.
options:
  settings:
    description:
      - The descriptors. Each has O(settings[].name) (unique), O(settings[].kind) and the keys of its kind.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: What the setting is called in results.
        type: str
        required: true
      kind:
        description:
          - V(sysctl) has C(key) and C(value); written to C(/etc/sysctl.d/60-sparkmesh.conf) and set live.
          - V(file) has C(path) and either C(content) (and C(mode), default V(0644)) or C(absent=true); owner is root.
          - V(service_mask) has C(unit); it is stopped and masked.
          - V(hold) has C(packages), names or globs; those installed are held.
          - V(package) has C(packages); those missing are installed.
        type: str
        required: true
        choices: [sysctl, file, service_mask, hold, package]
      applies:
        description: >-
          Where the setting applies. C({containers: false, reason: text}) makes it V(not_applicable) in a container.
        type: dict
      key:
        description: The sysctl, as sysctl(8) writes it.
        type: str
      value:
        description: The value of the sysctl.
        type: str
      path:
        description: The absolute path of the file.
        type: str
      content:
        description: The whole text of the file.
        type: str
      mode:
        description: The mode of the file, octal.
        type: str
      absent:
        description: The file must not exist.
        type: bool
      unit:
        description: The unit to mask.
        type: str
      packages:
        description: The packages to hold or install.
        type: list
        elements: str
  state:
    description:
      - V(applied) changes what differs.
      - V(checked) changes nothing and tells what differs.
      - V(reverted) gives back what was there before sparkmesh; installed packages stay.
    type: str
    choices: [applied, checked, reverted]
    default: applied
attributes:
  check_mode:
    support: full
    description: Tells V(would_change) for each setting and shows the full diff.
  diff_mode:
    support: full
    description: Shows files whole and every other change in one line.
author: sparkmesh
"""

EXAMPLES = r"""
- name: Settings of a Spark
  sparkmesh.cluster.host_settings:
    settings:
      - {name: arp_ignore, kind: sysctl, key: net.ipv4.conf.all.arp_ignore, value: "1"}
      - {name: watermark boost, kind: sysctl, key: vm.watermark_boost_factor, value: "0"}
      - {name: hot-plug marker, kind: file, path: /etc/nvidia/cx7-hotplug-enabled, absent: true}
      - name: watchdog
        kind: file
        path: /etc/systemd/system.conf.d/60-sparkmesh.conf
        content: |
          [Manager]
          RuntimeWatchdogSec=1min
        applies: {containers: false, reason: a container has no watchdog}
      - {name: headless, kind: service_mask, unit: gdm3.service}
      - {name: driver, kind: hold, packages: ["nvidia-driver-*", "linux-image-*-nvidia*"]}
      - {name: tools, kind: package, packages: [lldpd, ethtool]}

- name: Take them back
  sparkmesh.cluster.host_settings:
    settings: "{{ host_settings }}"
    state: reverted
"""

RETURN = r"""
results:
  description: One entry for each setting, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    name: {description: The name of the setting., type: str}
    status:
      description: V(ok), V(changed), V(would_change), V(not_applicable) or V(failed).
      type: str
    seen: {description: What was there., type: str}
    wanted: {description: What should be there., type: str}
    reason: {description: Why it does not apply or failed., type: str}
actions:
  description: What changed or would change, in words.
  returned: always
  type: list
  elements: str
  sample: ["arp_ignore: 0 → 1"]
"""

from pathlib import Path

from ansible_collections.sparkmesh.cluster.plugins.module_utils._module import NodeModule
from ansible_collections.sparkmesh.cluster.plugins.module_utils.host_kinds import Site
from ansible_collections.sparkmesh.cluster.plugins.module_utils.host_settings import problems_of, settle
from ansible_collections.sparkmesh.cluster.plugins.module_utils.journal import Journal, JournalError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader, container_of


def main() -> None:
    """Apply, check or revert, and return."""
    module = NodeModule(
        {
            "settings": {"type": "list", "elements": "dict", "required": True},
            "state": {"type": "str", "choices": ["applied", "checked", "reverted"], "default": "applied"},
        }
    )
    settings, state = module.params["settings"], module.params["state"]
    problems = problems_of(settings)
    if problems:
        module.fail("; ".join(problems))
    try:
        journal = Journal("host")
    except JournalError as problem:
        module.fail(str(problem))
    site = Site(journal, Path("/"), container_of(Reader()), dry=module.check_mode)
    outcomes = settle(settings, state, site)
    moved = [outcome for outcome in outcomes if outcome.status in ("changed", "would_change")]
    actions = [f"{o.name}: {o.seen or 'unknown'} → {o.wanted or 'as before'}" for o in moved]
    results = [outcome.as_result() for outcome in outcomes]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    changed = bool(moved) and state != "checked"
    if failed:
        text = "; ".join(f"{o.name}: {o.reason} (seen {o.seen or 'unknown'}, wanted {o.wanted})" for o in failed)
        module.fail(
            f"{len(failed)} of {len(outcomes)} settings failed: {text}",
            changed=changed, actions=actions, diff=site.diffs, results=results,
        )  # fmt: skip
    module.exit(changed=changed, actions=actions, diff=site.diffs, results=results)


if __name__ == "__main__":
    main()

"""Filter ``source_tree``: a directory as texts."""

from __future__ import annotations

DOCUMENTATION = r"""
name: source_tree
author: sparkmesh
version_added: "0.1.0"
short_description: Read a source directory
description:
  - Returns every text file below a directory of the controller. Caches are skipped.
  - Fails for binaries, links and unreadable files, naming each.
options:
  _input:
    description: The directory.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read the runtime package
  ansible.builtin.set_fact:
    __image_files: "{{ (image_context ~ '/runtime') | sparkmesh.cluster.source_tree }}"
"""

RETURN = r"""
_value:
  description: Relative path to text.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.source_tree import source_tree
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"source_tree": as_filter(source_tree)}

"""Filter ``source_id``: the digest of a source."""

from __future__ import annotations

DOCUMENTATION = r"""
name: source_id
author: sparkmesh
version_added: "0.1.0"
short_description: Name a source by its content
description: Digest over paths, texts and whatever else decides the result.
positional: _input, extra
options:
  _input:
    description: Relative path to text.
    type: dict
    required: true
  extra:
    description: Any value that shall change the name, such as build arguments and the digest of the base image.
    type: raw
"""

EXAMPLES = r"""
- name: Name the source
  ansible.builtin.debug:
    msg: "{{ __image_files | sparkmesh.cluster.source_id({'base': image_base}) }}"
"""

RETURN = r"""
_value:
  description: C(sha256:) and 64 hex digits.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.source_tree import source_id
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"source_id": as_filter(source_id)}

"""Plain JSON values, their canonical text and their digest.

Everything that is compared, hashed or sent to a node passes through here, so that two controllers that read the same
inventory agree to the byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


def plain(value: object, where: str = "value") -> Any:
    """Copy ``value`` into exact ``dict list str int float bool None``.

    ansible-core hands filters subclasses of these (values that carry their origin, containers that template when
    read); a copy is the only form whose type checks and JSON are the same with and without Ansible.

    Raises ``TypeError`` naming the place (``where`` and the keys below it) of anything that JSON cannot say.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        copy: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} is a {type(key).__name__}, wanted text: quote it")
            copy[str.__str__(key)] = plain(item, f"{where}.{key}")
        return copy
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    raise TypeError(f"{where} is a {type(value).__name__}, wanted text, a number, true/false, a list or a mapping")


def canonical_json(value: object) -> str:
    """The one JSON text of ``value``: sorted keys, no spaces, UTF-8 kept. Raises ``ValueError`` on NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_hex(text: str) -> str:
    """SHA-256 of the UTF-8 bytes of ``text`` as 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()

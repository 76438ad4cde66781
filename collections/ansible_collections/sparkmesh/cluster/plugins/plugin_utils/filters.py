"""From a plain function to a Jinja filter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.plain import plain
from ansible_collections.sparkmesh.cluster.plugins.module_utils.refusal import Refusal


def as_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` for templates: arguments become plain values, a refusal an error that lists every problem."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
            given.arguments = {name: plain(value, name) for name, value in given.arguments.items()}
        except TypeError as error:
            raise AnsibleFilterError(f"{function.__name__}: {error}") from None
        try:
            return function(*given.args, **given.kwargs)
        except Refusal as refusal:
            # The problems are the whole story; a chained cause would print them twice.
            raise AnsibleFilterError("\n".join([f"{function.__name__} refuses:", *refusal.problems])) from None

    return call

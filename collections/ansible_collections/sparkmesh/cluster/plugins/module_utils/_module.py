"""The one place of the collection's module code that imports Ansible: a thin typed base for every module.

A module builds a ``NodeModule``, does its work with plain module_utils, and ends with ``exit`` or ``fail``; both
always return ``changed`` and ``actions``, so a reader of any result finds the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Result, run


class NodeModule:
    """Arguments, check mode, commands and results of one module call."""

    def __init__(self, argument_spec: Mapping[str, Any], **options: Any) -> None:
        """``options`` go to Ansible unchanged (required_if, mutually_exclusive, ...). Check mode is always on."""
        self._ansible = AnsibleModule(argument_spec=dict(argument_spec), supports_check_mode=True, **options)
        self.params: dict[str, Any] = self._ansible.params
        self.check_mode: bool = self._ansible.check_mode

    def run(
        self,
        command: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Result:
        """Run one command (no shell, C locale, ``timeout`` seconds); with ``check`` a failure ends the module."""
        try:
            return run(command, timeout=timeout, check=check, environment=environment, stdin=stdin)
        except CommandFailed as problem:
            self.fail(str(problem))

    def read(self, path: str) -> str | None:
        """The text of a file, None when there is none; any other trouble ends the module with the file's name."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as problem:
            self.fail(f"{path} cannot be read: {problem.strerror}. Run the task with become: true")

    def exit(
        self,
        *,
        changed: bool,
        actions: Sequence[str] = (),
        diff: Sequence[Mapping[str, str]] = (),
        **values: Any,
    ) -> NoReturn:
        """End well. ``actions`` says in words what changed or, in check mode, would change."""
        if diff:
            values["diff"] = [dict(part) for part in diff]
        self._ansible.exit_json(changed=changed, actions=list(actions), **values)
        raise SystemExit(0)

    def fail(
        self,
        msg: str,
        *,
        changed: bool = False,
        actions: Sequence[str] = (),
        diff: Sequence[Mapping[str, str]] = (),
        **values: Any,
    ) -> NoReturn:
        """End badly. ``msg`` names the thing, the value seen, the value wanted and the fix."""
        if diff:
            values["diff"] = [dict(part) for part in diff]
        self._ansible.fail_json(msg=msg, changed=changed, actions=list(actions), **values)
        raise SystemExit(1)

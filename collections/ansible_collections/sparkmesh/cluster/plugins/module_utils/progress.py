"""Text files replaced in one step, and the progress file that a long task leaves for whoever watches it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import write_file

PROGRESS_DIR = "/run/sparkmesh/progress"


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace `path` with `text` in one step; its folder is made when it is absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, text.encode(), mode)


def write_json(path: Path, doc: Any, mode: int = 0o644) -> None:
    """`write_text` of a JSON document."""
    write_text(path, json.dumps(doc, indent=1, sort_keys=True, ensure_ascii=False) + "\n", mode)


class Progress:
    """`<folder>/<name>.json`: {step, of, text, started, updated}; times are Unix seconds, step and of are counts.

    Written at most once per `every` seconds, plus whenever the text changes. A folder that cannot be written
    costs the watcher the progress, never the task its result.
    """

    def __init__(self, name: str, folder: str = PROGRESS_DIR, every: float = 1.0) -> None:
        self._path = Path(folder, f"{name}.json")
        self._every = every
        self._started = time.time()
        self._written = 0.0
        self._text = ""
        self._lock = threading.Lock()

    def say(self, step: int, of: int, text: str) -> None:
        now = time.time()
        with self._lock:
            if text == self._text and step < of and now - self._written < self._every:
                return
            self._text, self._written = text, now
            with contextlib.suppress(OSError):
                write_json(self._path, {"step": step, "of": of, "text": text, "started": self._started, "updated": now})

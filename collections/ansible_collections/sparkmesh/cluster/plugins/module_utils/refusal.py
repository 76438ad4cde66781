"""The one way pure code refuses its input."""

from __future__ import annotations


class Refusal(ValueError):
    """The input cannot be used. ``problems``: one sentence each, naming the thing, what was seen and the fix."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

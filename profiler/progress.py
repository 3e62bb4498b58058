"""How long work tells where it is."""

from __future__ import annotations

from collections.abc import Callable

#: Called with (steps done, steps in all or 0 where unknown, what is being done now).
Progress = Callable[[int, int, str], None]


def quiet(done: int, total: int, what: str) -> None:
    """Reports nowhere."""

"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 replay`, `2 replays`, `1,629 launches`."""
    plural = f"{noun}es" if noun.endswith(("ch", "sh", "s", "x")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"

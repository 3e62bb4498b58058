"""A page of text as data, so that Markdown and HTML are two ways to write the same thing.

A `str` is text of this program's own. Whatever comes from a trace or from somebody's run is data: it goes through
`data` or `Code`, and no renderer lets it become markup, a mention or a link.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Text that means nothing to any renderer of Markdown, and that GitHub makes no link, mention or reference of.
_TAME = re.compile(r"[\w .,:()+=/%-]*")
_LINKS = re.compile(r"(?i)(?:https?|ftp|mailto|xmpp):|www\.|\bGH-\d|__|\b_|_\b|^\W|^\d+[.)](?:\s|$)|\s$")


@dataclass(frozen=True)
class Code:
    """Data as it is, in a code span."""

    text: str


@dataclass(frozen=True)
class Bold:
    """Emphasis."""

    parts: tuple[Inline, ...]


Inline = str | Code | Bold
Line = tuple[Inline, ...]


@dataclass(frozen=True)
class Heading:
    """The title of the page."""

    line: Line


@dataclass(frozen=True)
class Paragraph:
    """Lines that each stand on a line of their own."""

    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """The first `left` columns are text, the others numbers."""

    head: tuple[Line, ...]
    rows: tuple[tuple[Line, ...], ...]
    left: int = 1


@dataclass(frozen=True)
class Listing:
    """Points with their depth, from 0."""

    points: tuple[tuple[int, Line], ...]


@dataclass(frozen=True)
class Verbatim:
    """Lines of a terminal."""

    text: str


@dataclass(frozen=True)
class Fold:
    """Blocks that open on demand."""

    title: Line
    blocks: tuple[Block, ...]


Block = Heading | Paragraph | Table | Listing | Verbatim | Fold


def line(*parts: Inline) -> Line:
    """A line from its parts."""
    return parts


def bold(*parts: Inline) -> Bold:
    """Emphasis on parts."""
    return Bold(parts)


def data(text: str, longest: int = 120) -> Inline:
    """Somebody's text: as it is where it can mean nothing but itself, else in a code span; cut at `longest`."""
    kept = text if len(text) <= longest else text[: longest - 1] + "…"
    if kept and _TAME.fullmatch(kept) and not _LINKS.search(kept):
        return kept
    return Code(kept)


def joined(lines: Sequence[Line], between: str = ", ") -> Line:
    """Several lines as one."""
    found: list[Inline] = []
    for place, one in enumerate(lines):
        found += ([between] if place else []) + list(one)
    return tuple(found)


def plain(parts: Line) -> str:
    """A line without its markup, for a terminal."""
    return "".join(plain(p.parts) if isinstance(p, Bold) else p.text if isinstance(p, Code) else p for p in parts)

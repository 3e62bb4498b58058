"""Texts from somebody else's trace, as they may be shown: nothing in them acts on a terminal, a page or a reader."""

from __future__ import annotations

import re

#: Line ends, other control characters (an escape sequence begins with one), those without width, and those that turn
#: the direction of writing.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
#: The same without the end of a line, for texts of several lines that are ours.
UNSEEN_IN_LINES = re.compile(r"(?:(?!\n)" + UNSEEN.pattern.removesuffix("+") + ")+")


def seen(text: str) -> str:
    """A text in one line, with a space for every run of characters that are not seen."""
    return UNSEEN.sub(" ", text)


def seen_lines(text: str) -> str:
    """The same for a text whose lines are ours: they stay apart."""
    return UNSEEN_IN_LINES.sub(" ", text)


def escaped(document: str) -> str:
    """A JSON or TOML document with such characters in its texts as escapes: the same values, and nothing to act on."""
    return UNSEEN_IN_LINES.sub(lambda found: "".join(f"\\u{ord(one):04x}" for one in found[0]), document)

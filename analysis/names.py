"""Kernel names short enough to read: the last identifier of a demangled, mangled or compiled name."""

from __future__ import annotations

import re

_ITANIUM = re.compile(r"^_ZN?K?(?P<rest>(?:\d+\w+)+)")
_ARGUMENTS = re.compile(r"<[^<>]*>|\([^()]*\)|\[[^\[\]]*\]")
#: Longer than this a name breaks a table.
LONGEST = 60


def short(name: str) -> str:
    """The last identifier of a kernel's name: without return type, namespaces, template and call arguments.

    A name that is only arguments, and any name longer than 60 characters, is cut at 60.
    """
    text = _mangled(name) or name
    text = text.replace("(anonymous namespace)", "anonymous")
    while _ARGUMENTS.search(text):
        text = _ARGUMENTS.sub("", text)
    text = re.split(r"[<(\[]", text)[0]
    words = re.split(r"::|\s+", text.strip()) if "::" in text or " " in text else [text]
    found = next((word for word in reversed(words) if word), name)
    # Names are data of somebody else's trace: nothing in them may end a Markdown code span or a table row.
    found = re.sub(r"[`|\s]", "_", found)
    return found if len(found) <= LONGEST else found[: LONGEST - 1] + "…"


def _mangled(name: str) -> str:
    match = _ITANIUM.match(name)
    if match is None:
        return ""
    rest, last = match["rest"], ""
    while found := re.match(r"\d+", rest):
        length = int(found[0])
        last, rest = rest[found.end() : found.end() + length], rest[found.end() + length :]
    return last

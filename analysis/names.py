"""Kernel names short enough to read: the last identifier of a demangled, mangled or compiled name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fusionscope.analysis.texts import UNSEEN, seen

_ITANIUM = re.compile(r"^_ZN?K?(?P<rest>(?:\d+\w+)+)")
_ARGUMENTS = re.compile(r"<[^<>]*>|\([^()]*\)|\[[^\[\]]*\]")
#: Longer than this a name breaks a table.
LONGEST = 60


def short(name: str) -> str:
    """The last identifier of a kernel's name: without return type, namespaces, template and call arguments.

    A name that is only arguments, and any name longer than 60 characters, is cut at 60.
    """
    # What is not seen goes first, so that an escape sequence cannot be taken for brackets and lose its end.
    name = UNSEEN.sub("_", name)
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


def distinct(names: Iterable[str]) -> dict[str, str]:
    """Short names that tell these kernels apart: with the template arguments in which they differ, and no others.

    Names that differ in nothing shown (cut, or by their call arguments) are numbered in the order of their text.
    """
    alike: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        alike.setdefault(short(name), []).append(name)
    found: dict[str, str] = {}
    for label, same in alike.items():
        telling = _telling([_template(name) for name in same]) if len(same) > 1 else [""]
        counted: dict[str, int] = {}
        for name, arguments in zip(same, telling, strict=True):
            text = label + arguments
            counted[text] = counted.get(text, 0) + 1
            found[name] = text if counted[text] == 1 else f"{text} #{counted[text]}"
    return found


def _telling(arguments: list[list[str]]) -> list[str]:
    """`<...>` with the places in which the argument lists differ; "" where they have no places in common."""
    if len({len(each) for each in arguments}) > 1:
        kept = arguments
    else:
        places = [k for k, column in enumerate(zip(*arguments, strict=True)) if len(set(column)) > 1]
        kept = [[each[k] for k in places] for each in arguments]
    texts = [", ".join(re.sub(r"\b\w+::", "", argument) for argument in each) for each in kept]
    texts = [re.sub(r"[`|\s]+", " ", seen(text)) for text in texts]
    return [f"<{text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}>" if text else "" for text in texts]


def _template(name: str) -> list[str]:
    """The template arguments of the last identifier of a demangled name, in order."""
    text = name.replace("(anonymous namespace)", "anonymous")
    depth, current = 0, ""
    arguments: list[str] = []
    for char in text:
        if char == "(" and depth == 0:
            break  # the call's arguments begin
        if char == "<":
            depth += 1
            if depth == 1:
                arguments, current = [], ""
                continue
        elif char == ">" and depth:
            depth -= 1
            if depth == 0:
                arguments.append(current.strip())
                continue
        elif char == "," and depth == 1:
            arguments.append(current.strip())
            current = ""
            continue
        elif char == ":" and depth == 0:
            arguments = []  # they were a namespace's or a class's
        if depth:
            current += char
    return arguments

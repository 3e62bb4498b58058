"""Regular expressions of rules files, with bounded matching time.

Python's matcher backtracks, so that a repeat inside a repeat can take time exponential in a kernel's name (names of
several thousand letters are common). Such patterns are refused when the rules are read; the rest are searched once in
each distinct name, never once a launch.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from fusionscope.profiler.errors import FusionScopeError

#: A repeat of at least so many rounds counts as unlimited.
MANY = 16
#: Unlimited repeats in one pattern: each multiplies the time by the length of the name at the worst.
MOST_REPEATS = 5
#: Letters of a name that are searched; the longest name in the public samples has 2,900.
SEARCHED = 16_384

_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT)


def compiled(where: str, text: object) -> re.Pattern[str]:
    """The pattern; raises FusionScopeError where it is no regular expression, or one whose time is not bounded."""
    return _compiled(where, str(text))


# A command that compares runs reads the same rules once a run; looking through a pattern takes as long as reading it.
@lru_cache(maxsize=1024)
def _compiled(where: str, pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            # Python warns of a set such as [[:alpha:]], which it takes for other letters than its author.
            warnings.simplefilter("error", FutureWarning)
            found = re.compile(pattern)
            tree = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError, FutureWarning) as error:
        raise FusionScopeError(
            f"{where} has a pattern that is no regular expression, {pattern!r} ({error})."
        ) from error
    if _nested(tree):
        raise FusionScopeError(
            f"{where} has a pattern that repeats something of varying length, {pattern!r}, which can take endless time "
            r"on long kernel names: repeat one set of characters instead, as in [\w:]* for (\w+::)*."
        )
    if _unlimited(tree) > MOST_REPEATS:
        raise FusionScopeError(
            f"{where} has a pattern with more than {MOST_REPEATS} unlimited repeats, {pattern!r}, which can take "
            "endless time on long kernel names: shorten it, or write several roles."
        )
    return found


def found_in(pattern: re.Pattern[str], *names: str) -> bool:
    """Whether the pattern is in one of the names (demangled, raw)."""
    return any(pattern.search(name, 0, SEARCHED) is not None for name in names if name)


def _children(op: Any, argument: Any) -> list[Any]:
    """The patterns inside one item of a parsed pattern."""
    if op in _REPEATS or op == ops.POSSESSIVE_REPEAT:
        return [argument[2]]
    if op == ops.SUBPATTERN:
        return [argument[3]]
    if op == ops.BRANCH:
        return list(argument[1])
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        return [argument[1]]
    if op == ops.ATOMIC_GROUP:
        return [argument]
    if op == ops.GROUPREF_EXISTS:
        return [part for part in argument[1:] if part is not None]
    return []


def _nested(tree: Any) -> bool:
    """Whether an unlimited repeat holds something that can match the same text in several ways."""
    for op, argument in tree:
        if op in _REPEATS and _endless(argument) and _ambiguous(argument[2]):
            return True
        if any(_nested(child) for child in _children(op, argument)):
            return True
    return False


def _ambiguous(tree: Any) -> bool:
    low, high = tree.getwidth()
    return bool(low != high) or _has_branch(tree)


def _has_branch(tree: Any) -> bool:
    return any(op == ops.BRANCH or any(_has_branch(c) for c in _children(op, argument)) for op, argument in tree)


def _endless(repeat: Any) -> bool:
    return bool(repeat[1] is ops.MAXREPEAT or int(repeat[1]) >= MANY)


def _unlimited(tree: Any) -> int:
    """Unlimited repeats on the way that holds most of them."""
    total = 0
    for op, argument in tree:
        inside = [_unlimited(child) for child in _children(op, argument)]
        total += max(inside, default=0) + (op in _REPEATS and _endless(argument))
    return total

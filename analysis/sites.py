"""A site of a boundary, and the filter that narrows a set of sites."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fusionscope.profiler.errors import FusionScopeError


@dataclass(frozen=True)
class Site:
    """One occurrence of a boundary in a forward: `columns` are the numbers of its launches, in order of start."""

    boundary: str
    subtype: str
    #: -1 where the rung does not know the layer.
    layer: int
    columns: tuple[int, ...]
    rung: int
    path: str = ""
    declined: str = ""
    #: "split" or "fused" where a rule said so.
    form: str = ""
    site: int = 0


_COMPARE: dict[str, Callable[[object, object], bool]] = {
    ">=": operator.ge,  # type: ignore[dict-item]
    "<=": operator.le,  # type: ignore[dict-item]
    "!=": operator.ne,
    ">": operator.gt,  # type: ignore[dict-item]
    "<": operator.lt,  # type: ignore[dict-item]
    "=": operator.eq,
}
_NUMBERS, _TEXTS = ("layer", "site"), ("subtype", "path")
_NAMED = re.compile(r"^\s*(\w+)(?::(\w+))?\s*$")
_TERM = re.compile(r"^\s*(\w+)\s*(>=|<=|!=|>|<|=)\s*([\w.-]+)\s*$")


def check_kinds(expression: str, kinds: Iterable[str]) -> None:
    """Raises FusionScopeError where a term of `expression` names a kind of boundary that is none of `kinds`."""
    for term in expression.split(","):
        named = _NAMED.match(term)
        if named is not None and named[1] not in kinds:
            raise FusionScopeError(
                f"--sites {term.strip()} names no kind of boundary: choose {', '.join(kinds)}, or define it in "
                "--rules FILE."
            )


def select(sites: list[Site], expression: str) -> list[Site]:
    """Sites for which every comma-separated term holds, e.g. `layer>=3,subtype=ffn_exit` or `mhc_post:ffn_exit`.

    Fields are layer, site (numbers), subtype and path (texts, with = and != only); KIND or KIND:SUBTYPE keeps those.
    Raises FusionScopeError for another field, a bad term, or a layer that the rung does not know.
    """
    kept = sites
    for term in expression.split(","):
        named = _NAMED.match(term)
        if named is not None:
            kept = [s for s in kept if s.boundary == named[1] and (not named[2] or s.subtype == named[2])]
            continue
        match = _TERM.match(term)
        if match is None or match[1] not in _NUMBERS + _TEXTS:
            raise FusionScopeError(
                f"--sites cannot read {term.strip()!r}: write terms such as layer>=3, site<10, path=triton or "
                "mhc_post:ffn_exit, joined by commas."
            )
        field, sign, text = match.groups()
        if field in _TEXTS and sign not in ("=", "!="):
            raise FusionScopeError(f"--sites compares {field} only with = or !=, not {sign}.")
        if field in _NUMBERS and not re.fullmatch(r"-?\d+", text):
            raise FusionScopeError(f"--sites compares {field} with a whole number, not {text!r}.")
        # The trailing norm lies in no layer; any other kind of which no site has one was marked without layers.
        if field == "layer" and kept and all(s.layer < 0 and s.subtype != "trailing" for s in kept):
            raise FusionScopeError(
                "--sites layer needs sites that know their layer, and these do not (rules by name never do, a "
                "provenance may not): import with a --provenance that has layers, or narrow by site or subtype."
            )
        value: object = int(text) if field in _NUMBERS else text
        compare = _COMPARE[sign]
        kept = [s for s in kept if compare(getattr(s, field), value)]
    return kept

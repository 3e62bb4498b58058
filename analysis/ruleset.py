"""Rules: what role a kernel plays, and what the kinds of boundary look like as sequences of roles."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fusionscope.analysis.patterns import found_in
from fusionscope.profiler.errors import FusionScopeError

#: Forms of one boundary: what it looks like before a fusion, and after.
SPLIT, FUSED = "split", "fused"
#: What becomes of the launches of an element: part of the boundary, or in between and left alone.
TAKEN, KEPT = "taken", "kept"
#: As many repeats as there are.
ALL = 1 << 30


@dataclass(frozen=True)
class Role:
    """A kernel whose demangled or raw name contains `pattern` plays `role`."""

    role: str
    pattern: re.Pattern[str]
    vendor: str = "both"


@dataclass(frozen=True)
class Element:
    """One place of a sequence: a role, a pattern of kernel names, or any of several such elements.

    It takes `least` to `most` launches in a row, as many as it can. One that lies `between` others takes as few as it
    must, none included; with `fate` KEPT its launches do not belong to the boundary.
    """

    role: str = ""
    name: re.Pattern[str] | None = None
    any_of: tuple[Element, ...] = ()
    least: int = 1
    most: int = 1
    fate: str = TAKEN
    between: bool = False

    def matches(self, role: str, names: tuple[str, str]) -> bool:
        """Whether a launch with this role and these names (demangled, raw) fills the place."""
        if self.any_of:
            return any(element.matches(role, names) for element in self.any_of)
        if self.name is not None:
            return found_in(self.name, *names)
        return role == self.role

    def __str__(self) -> str:
        if self.any_of:
            return f"any of {', '.join(map(str, self.any_of))}"
        return f"name {self.name.pattern!r}" if self.name is not None else f"role {self.role}"


@dataclass(frozen=True)
class Form:
    """One way a boundary can look: a sequence of neighbours on a stream."""

    kind: str
    sequence: tuple[Element, ...]
    subtype: str = ""
    #: The form does not count where a site of one of these kinds covers it.
    unless_in: tuple[str, ...] = ()


@dataclass(frozen=True)
class BoundaryRule:
    """A kind of boundary: its split form and any number of fused forms."""

    name: str
    title: str
    forms: tuple[Form, ...]
    subtype_by_last: dict[str, str] = field(default_factory=dict)
    #: Sites that a forward should have: a number, or so many a layer ("layers", "2 layers"); "" where nobody says.
    expect_sites: str = ""
    #: Sites of other subtypes are none of this kind; empty: all are.
    subtypes: tuple[str, ...] = ()

    def expected(self, layers: int) -> int | None:
        """The number of sites to expect; None where the rule, or the run's number of layers (-1), is silent."""
        number, _, unit = self.expect_sites.partition(" ")
        if not self.expect_sites:
            return None
        if number.isdigit() and not unit:
            return int(number)
        return (int(number) if unit else 1) * layers if layers > 0 else None


@dataclass(frozen=True)
class Rules:
    """Roles in order (first match wins) and kinds of boundary."""

    roles: tuple[Role, ...]
    boundaries: tuple[BoundaryRule, ...]

    def role_of(self, name: str, raw_name: str = "") -> str:
        """The role of a kernel, "" where no rule knows it."""
        for role in self.roles:
            if found_in(role.pattern, name, raw_name):
                return role.role
        return ""

    def boundary(self, name: str) -> BoundaryRule:
        """The kind of that name; raises FusionScopeError listing the kinds there are."""
        for rule in self.boundaries:
            if rule.name == name:
                return rule
        kinds = ", ".join(rule.name for rule in self.boundaries)
        raise FusionScopeError(f"There is no boundary kind {name}: choose {kinds}, or define it in --rules FILE.")


@dataclass(frozen=True)
class AdHoc:
    """A boundary that the command line defines: KIND=ELEMENT;ELEMENT;…"""

    text: str


#: Where rules come from: a TOML file, the name of a shipped one, or a definition on the command line.
Source = str | Path | AdHoc


def load(sources: Iterable[Source] = ()) -> Rules:
    """The shipped rules with a user's before them, so that a user's roles and kinds win.

    Raises FusionScopeError for a file that is missing, is not TOML, or holds an unknown key or a bad pattern.
    """
    from fusionscope.analysis.rulefile import parse, parse_adhoc, shipped_text, text_of

    sources = list(sources)
    files = [s for s in sources if not isinstance(s, AdHoc)]
    parsed = [parse(str(s), text_of(s)) for s in files]
    parsed += [parse(n, shipped_text(n)) for n in ("roles.toml", "boundaries.toml")]
    roles = tuple(role for part, _ in parsed for role in part)
    known = {role.role for role in roles}
    defined = [parse_adhoc(s.text, known) for s in sources if isinstance(s, AdHoc)]
    kinds: dict[str, BoundaryRule] = {}
    for rule in [*defined, *(rule for _, part in parsed for rule in part)]:
        kinds.setdefault(rule.name, rule)
    # The shipped kinds come first, wherever they were defined: every report lists them in one order.
    first = [kinds[rule.name] for rule in parsed[-1][1]]
    return Rules(roles, tuple(first + [rule for rule in kinds.values() if rule not in first]))

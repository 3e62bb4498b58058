"""Reads rules: the shipped TOML files and a user's, into one checked set."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from fusionscope.profiler.errors import FusionScopeError

#: Forms of one boundary: what it looks like before a fusion, and after.
SPLIT, FUSED = "split", "fused"


@dataclass(frozen=True)
class Role:
    """A kernel whose demangled or raw name contains `pattern` plays `role`."""

    role: str
    pattern: re.Pattern[str]
    vendor: str = "both"


@dataclass(frozen=True)
class Element:
    """One place of a sequence: a role, or a pattern of kernel names."""

    role: str = ""
    name: re.Pattern[str] | None = None
    optional: bool = False

    def matches(self, role: str, names: tuple[str, str]) -> bool:
        """Whether a launch with this role and these names (demangled, raw) fills the place."""
        if self.name is not None:
            return any(self.name.search(n) for n in names)
        return role == self.role


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


@dataclass(frozen=True)
class Rules:
    """Roles in order (first match wins) and kinds of boundary."""

    roles: tuple[Role, ...]
    boundaries: tuple[BoundaryRule, ...]

    def role_of(self, name: str, raw_name: str = "") -> str:
        """The role of a kernel, "" where no rule knows it."""
        for role in self.roles:
            if role.pattern.search(name) or (raw_name and role.pattern.search(raw_name)):
                return role.role
        return ""

    def boundary(self, name: str) -> BoundaryRule:
        """The kind of that name; raises FusionScopeError listing the kinds there are."""
        for rule in self.boundaries:
            if rule.name == name:
                return rule
        kinds = ", ".join(rule.name for rule in self.boundaries)
        raise FusionScopeError(f"There is no boundary kind {name}: choose {kinds}, or define it in --rules FILE.")


def load(files: Iterable[str | Path] = ()) -> Rules:
    """The shipped rules with a user's files before them, so that a user's roles and kinds win.

    Raises FusionScopeError for a file that is missing, is not TOML, or holds an unknown key or a bad pattern.
    """
    folder = resources.files("fusionscope.analysis.rules")
    sources = [(str(f), _text(Path(f))) for f in files]
    sources += [(n, (folder / n).read_text(encoding="utf-8")) for n in ("roles.toml", "boundaries.toml")]
    roles: list[Role] = []
    kinds: dict[str, BoundaryRule] = {}
    for where, text in sources:
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise FusionScopeError(f"{where} is not valid TOML ({error}): correct it there.") from error
        _only(where, data, {"role", "boundary"})
        roles += [_role(where, entry) for entry in data.get("role", [])]
        for entry in data.get("boundary", []):
            rule = _boundary(where, entry)
            kinds.setdefault(rule.name, rule)
    shipped = ["ar_norm", "moe_finalize", "mhc_post", "add_norm"]
    ordered = [kinds[n] for n in shipped] + [rule for n, rule in kinds.items() if n not in shipped]
    return Rules(tuple(roles), tuple(ordered))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FusionScopeError(f"The rules file {path} cannot be read ({why}): check the path.") from error


def _only(where: str, data: dict[str, Any], allowed: set[str]) -> None:
    unknown = sorted(set(data) - allowed)
    if unknown:
        raise FusionScopeError(f"{where} has an unknown key {unknown[0]!r}: allowed are {', '.join(sorted(allowed))}.")


def _pattern(where: str, text: object) -> re.Pattern[str]:
    try:
        return re.compile(str(text))
    except re.error as error:
        raise FusionScopeError(f"{where} has a pattern that is no regular expression, {text!r} ({error}).") from error


def _role(where: str, entry: dict[str, Any]) -> Role:
    _only(where, entry, {"role", "pattern", "vendor", "source"})
    for key in ("role", "pattern"):
        if key not in entry:
            raise FusionScopeError(f"{where} has a [[role]] without {key!r}: add it.")
    return Role(str(entry["role"]), _pattern(where, entry["pattern"]), str(entry.get("vendor", "both")))


def _element(where: str, entry: str | dict[str, Any]) -> Element:
    if isinstance(entry, str):
        return Element(role=entry)
    _only(where, entry, {"role", "name", "optional"})
    if ("role" in entry) == ("name" in entry):
        raise FusionScopeError(f"{where} has an element that needs either 'role' or 'name': {entry}.")
    name = _pattern(where, entry["name"]) if "name" in entry else None
    return Element(role=str(entry.get("role", "")), name=name, optional=bool(entry.get("optional", False)))


def _boundary(where: str, entry: dict[str, Any]) -> BoundaryRule:
    _only(where, entry, {"name", "title", "split", "fused", "subtype_by_last"})
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(entry.get("name", ""))):
        raise FusionScopeError(f"{where} has a [[boundary]] whose name is not one word of letters, digits and _.")
    forms = []
    for kind in (SPLIT, FUSED):
        for form in entry.get(kind, []):
            _only(where, form, {"sequence", "subtype", "unless_in"})
            sequence = tuple(_element(where, e) for e in form.get("sequence", []))
            if all(e.optional for e in sequence):
                raise FusionScopeError(f"{where}: a form of {entry['name']} needs an element that is not optional.")
            forms.append(Form(kind, sequence, str(form.get("subtype", "")), tuple(form.get("unless_in", ()))))
    if not forms:
        raise FusionScopeError(f"{where}: {entry['name']} has neither 'split' nor 'fused': add its sequence.")
    return BoundaryRule(
        str(entry["name"]), str(entry.get("title", "")), tuple(forms), dict(entry.get("subtype_by_last", {}))
    )

"""From the TOML of a rules file, or a definition on the command line, to rules."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from fusionscope.analysis.patterns import compiled
from fusionscope.analysis.ruleset import ALL, FUSED, KEPT, SPLIT, TAKEN, BoundaryRule, Element, Form, Role, Source
from fusionscope.profiler.errors import FusionScopeError

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPECTED = re.compile(r"(\d{1,6})|((\d{1,3}) )?layers")
_ELEMENT_KEYS = {"role", "name", "any_of", "optional", "repeat", "absorb", "skip"}


def shipped_text(name: str) -> str:
    """The text of a rules file of this package."""
    return (resources.files("fusionscope.analysis.rules") / name).read_text(encoding="utf-8")


def shipped_extras() -> list[str]:
    """Names of shipped rules that are read only when they are asked for (`--rules attention`)."""
    folder = resources.files("fusionscope.analysis.rules")
    names = sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))
    return [name for name in names if name not in ("roles", "boundaries")]


def text_of(source: Source) -> str:
    """The text of a rules file: a path, or else the name of a shipped one."""
    path = Path(str(source))
    if str(source) in shipped_extras() and not path.exists():
        return shipped_text(f"{source}.toml")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8 text"
        raise FusionScopeError(
            f"The rules file {path} cannot be read ({why}): check the path, or name shipped rules "
            f"({', '.join(shipped_extras())})."
        ) from error


def parse(where: str, text: str) -> tuple[list[Role], list[BoundaryRule]]:
    """The roles and kinds of one file. Raises FusionScopeError that names the file and what is wrong."""
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        # A TOMLDecodeError, or Python's own word for a number of thousands of digits.
        raise FusionScopeError(f"{where} is not valid TOML ({error}): correct it there.") from error
    except RecursionError as error:
        raise FusionScopeError(f"{where} is nested too deeply: write it flat.") from error
    _only(where, data, {"role", "boundary"})
    roles = [_role(where, entry) for entry in _tables(where, data, "role")]
    return roles, [_boundary(where, entry) for entry in _tables(where, data, "boundary")]


def parse_adhoc(text: str, roles: set[str]) -> BoundaryRule:
    """`rope_kv=rotary_embedding;store_kvcache`: each part is a role that is known, else a pattern of names.

    Raises FusionScopeError for another form.
    """
    where = f"--boundary {text}"
    name, equals, rest = text.partition("=")
    parts = [part.strip() for part in rest.split(";")]
    if not equals or not _WORD.fullmatch(name.strip()) or not all(parts):
        raise FusionScopeError(
            f"{where} cannot be read: write KIND=ELEMENT;ELEMENT with roles or patterns of kernel names, as in "
            "rope_kv=rotary_embedding;store_kvcache."
        )
    sequence = tuple(Element(role=p) if p in roles else Element(name=compiled(where, p)) for p in parts)
    return BoundaryRule(name.strip(), "", (Form(SPLIT, sequence),))


def _tables(where: str, data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = data.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FusionScopeError(f"{where} has {key!r} in another form: write it as [[{key}]] tables.")
    return entries


def _only(where: str, data: dict[str, Any], allowed: set[str]) -> None:
    unknown = sorted(set(data) - allowed)
    if unknown:
        raise FusionScopeError(f"{where} has an unknown key {unknown[0]!r}: allowed are {', '.join(sorted(allowed))}.")


def _list(where: str, data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key, [])
    if not isinstance(value, list):
        raise FusionScopeError(f"{where}: {key!r} must be a list, not {value!r}.")
    return value


def _role(where: str, entry: dict[str, Any]) -> Role:
    _only(where, entry, {"role", "pattern", "vendor", "source"})
    for key in ("role", "pattern"):
        if key not in entry:
            raise FusionScopeError(f"{where} has a [[role]] without {key!r}: add it.")
    return Role(str(entry["role"]), compiled(where, entry["pattern"]), str(entry.get("vendor", "both")))


def _element(where: str, entry: Any, inside: bool = False) -> Element:
    if isinstance(entry, str):
        return Element(role=entry)
    if not isinstance(entry, dict):
        raise FusionScopeError(f"{where} has an element that is neither a role nor a table: {entry!r}.")
    _only(where, entry, {"role", "name"} if inside else _ELEMENT_KEYS)
    given = [key for key in ("role", "name", "any_of") if key in entry]
    if len(given) != 1:
        raise FusionScopeError(f"{where} has an element that needs one of 'role', 'name' and 'any_of': {entry}.")
    least, most, fate, between = _amount(where, entry)
    choices = tuple(_element(where, e, inside=True) for e in _list(where, entry, "any_of"))
    if given == ["any_of"] and not choices:
        raise FusionScopeError(f"{where} has an empty 'any_of': name the roles or names to choose from.")
    name = compiled(where, entry["name"]) if "name" in entry else None
    return Element(str(entry.get("role", "")), name, choices, least, most, fate, between)


def _amount(where: str, entry: dict[str, Any]) -> tuple[int, int, str, bool]:
    """(least, most, fate, whether it lies between others) of an element."""
    flags = {key: entry.get(key, False) for key in ("optional", "absorb", "skip")}
    if wrong := [key for key, value in flags.items() if not isinstance(value, bool)]:
        raise FusionScopeError(f"{where}: {wrong[0]!r} of an element is true or false: {entry}.")
    if flags["absorb"] and flags["skip"]:
        raise FusionScopeError(f"{where} has an element that is both 'absorb' and 'skip': choose one: {entry}.")
    between = flags["absorb"] or flags["skip"]
    if between and (flags["optional"] or "repeat" in entry):
        raise FusionScopeError(
            f"{where} has an 'absorb' or 'skip' element with 'optional' or 'repeat', which it is anyway: {entry}."
        )
    if between:
        return 0, ALL, KEPT if flags["skip"] else TAKEN, True
    repeat = entry.get("repeat", False)
    least, most = (1, ALL) if repeat is True else (1, 1) if repeat is False else _counts(where, repeat)
    return 0 if flags["optional"] else least, most, TAKEN, False


def _counts(where: str, repeat: Any) -> tuple[int, int]:
    counts = [repeat, repeat] if type(repeat) is int else repeat
    whole = isinstance(counts, list) and len(counts) == 2 and all(type(n) is int for n in counts)
    if not whole or not 0 <= counts[0] <= counts[1] or not 1 <= counts[1] <= 1000:
        raise FusionScopeError(f"{where}: 'repeat' is true, a number up to 1000, or [least, most], not {repeat!r}.")
    return counts[0], counts[1]


def _form(where: str, kind: str, name: str, form: Any, between: list[Element]) -> Form:
    if not isinstance(form, dict):
        raise FusionScopeError(f"{where}: a form of {name} is a table with a 'sequence', not {form!r}.")
    _only(where, form, {"sequence", "subtype", "unless_in", "absorb", "skip"})
    between = [*between, *_between(where, form)]
    sequence: list[Element] = []
    for place, entry in enumerate(_list(where, form, "sequence")):
        if place and between:
            sequence += [_loop(between)] if len({e.fate for e in between}) == 1 else _mixed(where, name)
        sequence.append(_element(where, entry))
    if not any(e.least and e.fate == TAKEN for e in sequence):
        raise FusionScopeError(f"{where}: a form of {name} needs an element that is not optional.")
    subtype = form.get("subtype", "")
    return Form(kind, tuple(sequence), str(subtype), tuple(map(str, _list(where, form, "unless_in"))))


def _loop(between: list[Element]) -> Element:
    return Element(any_of=tuple(between), least=0, most=ALL, fate=between[0].fate, between=True)


def _mixed(where: str, name: str) -> list[Element]:
    raise FusionScopeError(
        f"{where}: {name} has both 'absorb' and 'skip' between its elements: write one of them there, and the other "
        "as an element, { role = …, skip = true }."
    )


def _between(where: str, data: dict[str, Any]) -> list[Element]:
    """What may lie between any two elements: `absorb` goes with the boundary, `skip` stays."""
    found = []
    for key, fate in (("absorb", TAKEN), ("skip", KEPT)):
        for entry in _list(where, data, key):
            one = _element(where, entry, inside=True)
            found.append(Element(one.role, one.name, fate=fate))
    return found


def _boundary(where: str, entry: dict[str, Any]) -> BoundaryRule:
    keys = {"name", "title", "split", "fused", "subtype_by_last", "subtypes", "absorb", "skip", "expect_sites"}
    _only(where, entry, keys)
    name = str(entry.get("name", ""))
    if not _WORD.fullmatch(name):
        raise FusionScopeError(f"{where} has a [[boundary]] whose name is not one word of letters, digits and _.")
    between = _between(where, entry)
    forms = [_form(where, kind, name, form, between) for kind in (SPLIT, FUSED) for form in _list(where, entry, kind)]
    if not forms:
        raise FusionScopeError(f"{where}: {name} has neither 'split' nor 'fused': add its sequence.")
    by_last = entry.get("subtype_by_last", {})
    if not isinstance(by_last, dict):
        raise FusionScopeError(f"{where}: 'subtype_by_last' of {name} is a table of roles and subtypes.")
    expected = str(entry.get("expect_sites", ""))
    if expected and not _EXPECTED.fullmatch(expected):
        raise FusionScopeError(f'{where}: \'expect_sites\' of {name} is a number, "layers" or "2 layers".')
    subtypes = tuple(map(str, _list(where, entry, "subtypes")))
    told = {str(k): str(v) for k, v in by_last.items()}
    return BoundaryRule(name, str(entry.get("title", "")), tuple(forms), told, expected, subtypes)

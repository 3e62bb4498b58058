"""Where a fusion could be worth looking for: chains of small kernels between GEMMs and attention that repeat.

The trace shows that they are adjacent. Whether data flows from one to the next, and whether they could be one kernel,
it does not show.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.matching import Kernels, kernels_of
from fusionscope.analysis.names import short
from fusionscope.analysis.sites import Site
from fusionscope.analysis.tables import number
from fusionscope.analysis.target import Target
from fusionscope.analysis.texts import escaped

#: What a trace can say of a chain, and no more.
ADJACENT = "adjacent; data flow not known"
#: Roles that do the work of a layer: a chain lies between them.
WORK = ("gemm", "moe_gemm", "attention")
#: A kernel of no known role, or a collective other than an all-reduce, that takes so many times the forward's median
#: launch ends a chain as well.
LARGE, COLLECTIVES = 5.0, ("collective_generic", "all_gather", "reduce_scatter")
#: Launches of a chain, and sites from which on it counts as repeating.
LONGEST, LEAST_SITES = 8, 3
#: Chains whose ceiling is worked out, those with most kernel time: so many, fewer in a forward of more launches.
TRIED, LEAST_TRIED, LAUNCHES = 24, 6, 5_000

Chain = tuple[int, ...]


@dataclass(frozen=True)
class Suggestion:
    """A chain of kernels that repeats; times in ns of one step."""

    name: str
    kernels: tuple[str, ...]
    roles: tuple[str, ...]
    sites: list[Site]
    kernel_time_ns: float
    #: Part of the traced span.
    share: float
    ceiling_ns: float
    #: Kind of boundary -> how many of its sites lie in the chain's.
    known: dict[str, int]
    toml: str

    def document(self, step_ns: float) -> dict[str, object]:
        """The suggestion as JSON."""
        return {
            "name": self.name,
            "kernels": list(self.kernels),
            "roles": list(self.roles),
            "sites": len(self.sites),
            "launches": sum(len(s.columns) for s in self.sites),
            "kernel_time_ns": number(self.kernel_time_ns),
            "share": self.share,
            "ceiling_ns": number(self.ceiling_ns),
            "ceiling_part": self.ceiling_ns / step_ns if step_ns else 0.0,
            "known": self.known,
            "says": ADJACENT,
            "toml": self.toml,
        }


def suggest(run: Analysed, limit: int = 10) -> list[Suggestion]:
    """Chains that repeat, the highest ceiling first; one that lies wholly in a better one is left out."""
    forward = run.forward
    names = forward.nodes["name"].astype(str).tolist()
    # By demangled name alone, since that is what the patterns of the rules file will tell apart.
    kernels = kernels_of(forward, [""] * len(names), names, names)
    pieces = list(_pieces(run, kernels))
    closed = _closed(_counted(pieces, kernels))
    weight = {chain: float(np.median(forward.duration[:, [c for s in at for c in s]].sum(axis=1)))
              for chain, at in closed.items()}  # fmt: skip
    tried = sorted(closed, key=lambda chain: (-weight[chain], chain))
    tried = tried[: max(LEAST_TRIED, TRIED * min(LAUNCHES, forward.launches) // max(forward.launches, 1))]
    schedule = run.schedule()
    found = []
    for chain in tried:
        sites = [Site("chain", "", -1, columns, 4, site=k) for k, columns in enumerate(closed[chain])]
        ceiling = Target(run.attribution, schedule, "chain", "", sites, run.untraced, None).ceiling_ns
        found.append((ceiling, chain, sites))
    found.sort(key=lambda item: (-item[0], item[1]))
    kept: list[Suggestion] = []
    taken: list[set[int]] = []
    for ceiling, chain, sites in found:
        columns = {c for s in sites for c in s.columns}
        if len(kept) < limit and ceiling > 0 and not any(columns <= other for other in taken):
            taken.append(columns)
            kept.append(_suggestion(run, kernels, chain, sites, weight[chain], ceiling, kept))
    return kept


def _pieces(run: Analysed, kernels: Kernels) -> Iterator[list[int]]:
    """The launches of each stream between two pieces of a layer's work, in order."""
    time = np.median(run.forward.duration, axis=0)
    large = LARGE * float(np.median(time))
    # A kernel is large or not wherever it stands: a pattern finds it by its name, whatever it takes at one place.
    for code in np.unique(kernels.codes):
        time[kernels.codes == code] = np.median(time[kernels.codes == code])
    for stream in kernels.streams:
        piece: list[int] = []
        for column in stream.tolist():
            role = run.attribution.roles[column]
            if role in WORK or (role in ("", *COLLECTIVES) and time[column] > large):
                yield piece
                piece = []
            else:
                piece.append(column)
        yield piece


def _counted(pieces: list[list[int]], kernels: Kernels) -> dict[Chain, list[Chain]]:
    """Chain of kernels -> the columns of its occurrences, which do not overlap, where there are enough of them."""
    found: dict[Chain, list[Chain]] = {}
    for piece in pieces:
        codes = kernels.codes[piece].tolist()
        for length in range(2, min(LONGEST, len(piece)) + 1):
            for at in range(len(piece) - length + 1):
                columns = tuple(piece[at : at + length])
                before = found.setdefault(tuple(codes[at : at + length]), [])
                # Occurrences come in order, so only the one before can overlap.
                if not before or not set(before[-1]) & set(columns):
                    before.append(columns)
    return {chain: at for chain, at in found.items() if len(at) >= LEAST_SITES}


def _closed(counted: dict[Chain, list[Chain]]) -> dict[Chain, list[Chain]]:
    """Chains that no longer chain contains at as many sites."""
    longer: Counter[Chain] = Counter()
    for chain, at in counted.items():
        for part in (chain[1:], chain[:-1]):
            longer[part] = max(longer[part], len(at))
    return {chain: at for chain, at in counted.items() if longer[chain] < len(at)}


def _suggestion(
    run: Analysed, kernels: Kernels, chain: Chain, sites: list[Site], time: float, ceiling: float,
    others: list[Suggestion],
) -> Suggestion:  # fmt: skip
    names = [kernels.names[code][0] for code in chain]
    name = _kind([short(n) for n in names], {o.name for o in others} | set(run.attribution.sites))
    columns = [set(s.columns) for s in sites]
    roles = tuple(run.attribution.roles[c] for c in sites[0].columns)
    known = {
        kind: inside
        for kind, there in run.attribution.sites.items()
        if (inside := sum(any(set(s.columns) <= own for own in columns) for s in there))
    }
    span = float(np.median(run.forward.span)) or 1.0
    return Suggestion(
        name=name,
        kernels=tuple(names),
        roles=roles,
        sites=sites,
        kernel_time_ns=time,
        share=time / span,
        ceiling_ns=ceiling,
        known=known,
        toml=_toml(name, names, len(sites), {n for n, _ in kernels.names}),
    )


def _kind(names: list[str], taken: set[str]) -> str:
    """A name for a kind of boundary: first and last kernel, one word."""
    words = [re.sub(r"\W+", "_", n, flags=re.ASCII).strip("_")[:28] or "kernel" for n in (names[0], names[-1])]
    base = "_to_".join(dict.fromkeys(words))
    base = f"k_{base}" if base[0].isdigit() else base
    found, k = base, 2
    while found in taken:
        found, k = f"{base}_{k}", k + 1
    return found


def _toml(name: str, kernels: list[str], sites: int, all_names: set[str]) -> str:
    """The chain as a kind of boundary for `--rules`."""
    elements = ",\n  ".join(f"{{ name = {_text(_pattern(k, all_names))} }}" for k in kernels)
    return (
        f"[[boundary]]\nname = {_text(name)}\ntitle = {_text(f'{ADJACENT}; {sites} sites when it was suggested')}\n"
        f"split = [{{ sequence = [\n  {elements},\n] }}]\n"
    )


def _pattern(name: str, all_names: set[str]) -> str:
    """A pattern that matches this kernel alone of a forward's: by its last identifier where that will do."""
    brief = rf"(?<![A-Za-z0-9_]){re.escape(short(name))}(?![A-Za-z0-9_])"
    if [n for n in all_names if re.search(brief, n)] == [name]:
        return brief
    # A space means itself in these patterns, and names are full of them.
    return rf"^{re.escape(name)}$".replace("\\ ", " ")


def _text(text: str) -> str:
    """A TOML basic string: JSON's, without what JSON lets stand and TOML or a terminal does not."""
    return escaped(json.dumps(text, ensure_ascii=False))

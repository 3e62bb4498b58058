"""Exact expectations on a run: numbers that are the same on any machine, such as launches and fused sites."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.copies import copies
from fusionscope.analysis.forwards import forwards, most_like
from fusionscope.analysis.names import short
from fusionscope.analysis.sites import Site
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.importing import ranks_of

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_TEXT = re.compile(r"\s*(?P<what>.+?)\s*(?P<sign>==|!=|<=|>=|<|>|=)\s*(?P<value>[^\s=<>!]+)\s*")
_SITES = re.compile(r"(?P<kind>\w+)(?::(?P<subtype>\w+))?\.(?P<what>\w+)")
#: What can be counted of the whole forward, and of the sites of a boundary.
WHOLE, OF_SITES = ("launches", "replays", "memcpy", "memset"), ("sites", "fused", "split", "declined", "launches")


@dataclass(frozen=True)
class Expectation:
    """`what` `sign` `value`, as in `mhc_post:ffn_exit.fused == 45`."""

    what: str
    sign: str
    value: int

    @property
    def text(self) -> str:
        """The expectation as one writes it."""
        return f"{self.what}{self.sign}{self.value}"


@dataclass(frozen=True)
class Found:
    """An expectation and the number that one rank has."""

    expectation: Expectation
    rank: int
    number: int

    @property
    def holds(self) -> bool:
        """Whether it is as expected."""
        return _COMPARE[self.expectation.sign](self.number, self.expectation.value)

    def document(self) -> dict[str, object]:
        """The same as JSON."""
        return {"expect": self.expectation.text, "rank": self.rank, "found": self.number, "holds": self.holds}


def parse(text: str) -> Expectation:
    """An expectation from its text. Raises FusionScopeError where it cannot be read."""
    match = _TEXT.fullmatch(text)
    whole = match is not None and re.fullmatch(r"\d+", match["value"])
    if match is None or not whole or match["sign"] not in _COMPARE:
        raise FusionScopeError(
            f"--expect cannot read {text!r}: write a name, one of {' '.join(_COMPARE)}, and a whole number, as in "
            "launches<=1619 or mhc_post:ffn_exit.fused==45."
        )
    return Expectation(match["what"], match["sign"], int(match["value"]))


def found(expectation: Expectation, run: Analysed) -> Found:
    """The number in one analysed run. Raises FusionScopeError for a name that counts nothing."""
    return Found(expectation, run.forward.rank, _count(expectation.what, run))


def on_every_rank(expectations: Sequence[Expectation], run: Analysed) -> list[Found]:
    """The numbers on every traced rank, of the forward there that is most like the run's chosen one."""
    results = []
    for rank in ranks_of(run.run.trace):
        side = run
        if rank != run.forward.rank:
            there = forwards(run.run.trace, rank, run.info.warmup_replays)
            side = run.of(most_like(there, run.forward))
        results += [found(expectation, side) for expectation in expectations]
    return results


def near(what: str, run: Analysed) -> list[str]:
    """Kernels of the forward that `kernel:NAME` may have meant: their short names hold NAME, whatever the case."""
    wanted = what.removeprefix("kernel:").lower()
    labels = {short(name) for name in run.forward.nodes["name"].astype(str)}
    return sorted(label for label in labels if what.startswith("kernel:") and wanted and wanted in label.lower())


def _count(what: str, run: Analysed) -> int:
    if what == "launches":
        return run.forward.launches
    if what == "replays":
        return run.forward.replays
    if what in ("memcpy", "memset"):
        return sum(c.nodes for c in copies(run) if c.kind == what)
    if what.startswith("kernel:"):
        wanted = what.removeprefix("kernel:")
        names = run.forward.nodes["name"].astype(str)
        return sum(1 for name in names if wanted in (name, short(name)))
    match = _SITES.fullmatch(what)
    if match is None or match["what"] not in OF_SITES:
        raise FusionScopeError(
            f"--expect cannot count {what!r}: choose {', '.join(WHOLE)}, kernel:NAME, or KIND[:SUBTYPE]. followed by "
            f"{', '.join(OF_SITES)}."
        )
    if match["kind"] not in run.attribution.sites:
        raise FusionScopeError(
            f"--expect names no kind of boundary: {match['kind']}; choose {', '.join(run.attribution.sites)}, or "
            "define it in --rules FILE."
        )
    sites = [s for s in run.attribution.sites[match["kind"]] if match["subtype"] in (None, s.subtype)]
    return _count_sites(match["what"], sites)


def _count_sites(what: str, sites: list[Site]) -> int:
    if what == "launches":
        return len({column for site in sites for column in site.columns})
    if what == "declined":
        return sum(1 for site in sites if site.declined)
    fused = sum(1 for site in sites if _is_fused(site))
    return {"sites": len(sites), "fused": fused, "split": len(sites) - fused}[what]


def _is_fused(site: Site) -> bool:
    """By the form that a rule saw, else by the path that the site took, else one launch is a fused one."""
    if site.form:
        return site.form == "fused"
    if site.path:
        return site.path != "split" and not site.declined
    return len(site.columns) == 1

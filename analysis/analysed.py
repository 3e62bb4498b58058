"""A run as the analysis commands see it: one forward of one rank, attributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis import noise, ruleset, schedule
from fusionscope.analysis.attribution import Attribution, attribute
from fusionscope.analysis.forwards import Forward, choose, forwards, most_like
from fusionscope.analysis.ordinal import damaged
from fusionscope.analysis.waiting import wait_ns
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run


@dataclass(frozen=True)
class Analysed:
    """A run, the kinds of forward of one rank, and the attribution of one of them."""

    run: Run
    forwards: list[Forward]
    attribution: Attribution
    untraced: noise.Baseline | None
    rules: ruleset.Rules
    site_filter: str | None = None
    rung: int | None = None
    like: Analysed | None = None

    def of(self, forward: Forward) -> Analysed:
        """The same run with another of its kinds of forward attributed."""
        made = _attributed(self.run, forward, self.forwards, self.rules, self.site_filter, self.rung, self.like)
        return replace(self, attribution=made)

    @property
    def info(self) -> RunInfo:
        """What is known of the run."""
        return self.run.info

    @property
    def forward(self) -> Forward:
        """The forward that was chosen."""
        return self.attribution.forward

    @property
    def title(self) -> str:
        """The run's name, else its id."""
        return self.run.info.name or self.run.info.id

    @property
    def layers(self) -> int:
        """Layers of the model, -1 where neither the capture nor the user (`import --set layers=36`) said."""
        return layers_of(self.run)

    def schedule(self) -> schedule.Schedule:
        """The schedule of the forward, over the graph's own edges where the capture stored them."""
        edges = self.run.trace.edges
        return schedule.build(self.forward, edges[edges["rank"].isin([self.forward.rank, -1])])

    def wait(self) -> NDArray[np.float64] | None:
        """[R, n] ns of each launch that waits for other ranks; None where the run does not know (one rank traced)."""
        found = wait_ns(self.run, self.forward, self.attribution.roles)
        return None if found is None else found.astype(np.float64)

    def step_ns(self) -> float:
        """Median time of one step: untraced where known, else the traced span."""
        return self.untraced.median_ns if self.untraced else float(np.median(self.forward.span))


def analyse(
    run: Run,
    *,
    rank: int | None = None,
    forward: str | None = None,
    rules: Sequence[ruleset.Source] = (),
    sites: str | None = None,
    rung: int | None = None,
    like: Run | None = None,
) -> Analysed:
    """Attribute one forward of one rank of a run, by default of the lowest that was traced.

    `like` is a sibling: a run of the same program whose sites are taken over by place where this one's are unknown.
    Raises GraphModeTrace for a run without kernels, FusionScopeError for a rank, forward, rule or filter that does
    not fit.
    """
    loaded = ruleset.load(rules)
    rank = _lowest(run) if rank is None else rank
    found = forwards(run.trace, rank, run.info.warmup_replays)
    chosen = choose(found, forward or None)
    beside = None if like is None else _beside(like, rank, chosen, rules)
    made = _attributed(run, chosen, found, loaded, sites or None, rung, beside)
    baseline = noise.baseline(run.trace.timings, rank)
    return Analysed(run, found, made, baseline, loaded, sites or None, rung, beside)


def _lowest(run: Run) -> int:
    ranks = run.trace.kernels["rank"]
    return int(ranks.min()) if len(ranks) else 0


def _beside(like: Run, rank: int, chosen: Forward, rules: Sequence[ruleset.Source]) -> Analysed:
    """The sibling's forward that is most like the chosen one; its first rank where it has no such rank."""
    known = rank if (like.trace.kernels["rank"] == rank).any() else None
    first = analyse(like, rank=known, rules=rules)
    return first.of(most_like(first.forwards, chosen))


def _attributed(
    run: Run,
    forward: Forward,
    everything: list[Forward],
    rules: ruleset.Rules,
    sites: str | None,
    rung: int | None,
    like: Analysed | None,
) -> Attribution:
    # Our own decode step marks every boundary it has; somebody else's provenance may cover one kind only.
    complete = "built-in model" in run.info.labels
    made = attribute(
        run.trace,
        forward,
        rules,
        complete_provenance=complete,
        site_filter=sites,
        rung=rung,
        layers=layers_of(run),
        sibling=None if like is None else like.attribution,
    )
    return replace(made, warnings=(*damaged(everything, forward), *made.warnings))


def layers_of(run: Run) -> int:
    """Layers of the model of a run, -1 where they are not known."""
    given = run.info.settings.get("layers", "")
    return int(given) if given.isdigit() else run.info.layers

"""What fusing a boundary would save: Amdahl, the re-timed schedule, ceiling, noise, verdict, also by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dash import html
from dash.development.base_component import Component

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.baselines import Baselines, baselines
from fusionscope.analysis.candidate import fused_in
from fusionscope.analysis.estimate import Estimate, Fused, of_target
from fusionscope.analysis.floors import floors, shape_of
from fusionscope.analysis.knockout import Ceiling
from fusionscope.analysis.outlook import Outlook, outlook
from fusionscope.analysis.predictions import batches
from fusionscope.analysis.target import target
from fusionscope.analysis.verdict import us
from fusionscope.dashboard import controls, parts, tables, urls
from fusionscope.dashboard.figures import estimates
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.pages import estimate_parts as shown
from fusionscope.profiler.errors import FusionScopeError

TITLE = "Estimate"
#: Before anybody has a kernel: published operator speed-ups of one such fusion lie between 1.77 and 2.49.
ASSUMED_SPEEDUP = 2.0
HOWS = {"speedup": "a speed-up", "time": "its time at a site", "run": "a run that has it"}
_SOURCES = {
    "guess": "a guess",
    "isolated": "alone in a loop",
    "in-context": "in context",
    "candidate": "a traced graph",
}


@dataclass(frozen=True)
class Asked:
    """What the query asks for."""

    boundary: str
    how: str
    speedup: float
    fused_us: float | None
    fused_run: str
    launches: int
    source: str
    margin: float
    rank: int | None

    @staticmethod
    def of(query: urls.Query, default: str) -> Asked:
        """Read a query; `default` is the boundary where it names none. Raises FusionScopeError for a bad value."""
        how = query.text("how", "speedup")
        source = query.text("source", "guess")
        if how not in HOWS or source not in _SOURCES:
            raise FusionScopeError(
                f"how is one of {', '.join(HOWS)} and source one of {', '.join(_SOURCES)}: correct it."
            )
        return Asked(
            boundary=query.text("boundary", default),
            how=how,
            speedup=query.number("speedup", ASSUMED_SPEEDUP),
            fused_us=query.number("fused_us", 1.0) if query.text("fused_us") else None,
            fused_run=query.text("from"),
            launches=max(query.whole("launches", 1), 1),
            source=source,
            margin=query.margin(),
            rank=query.rank(),
        )

    @property
    def kind(self) -> tuple[str, str]:
        """Kind and subtype ("" all)."""
        kind, _, subtype = self.boundary.partition(":")
        return kind, subtype


def page(library: Library, ref: str, query: urls.Query) -> Component:
    """The page `/estimate/<id>`; without an id a run is chosen first."""
    runs = controls.runs(library)
    if not ref:
        hint = parts.alert("Choose the run whose boundary would be fused.", colour="blue")
        choice = html.Div(_run_choice(runs, None), className="fs-controls")
        return html.Div([parts.title("Estimate", _LEAD), choice, hint])
    run = library.analysed(ref, query.rank())
    asked = Asked.of(query, _largest(run))
    head = parts.title(
        f"Estimate for {run.title}",
        [parts.badges(run.info.labels), html.Span(_LEAD)],
        [parts.link("Run", urls.run(run.info.id), button=True)],
    )
    if not asked.boundary:
        text = "No boundary of this forward has a site: name its kernels in a rules file (--rules)."
        return html.Div([head, html.Div(_run_choice(runs, run.info.id), className="fs-controls"),
                         parts.alert(text, "Nothing to fuse", "yellow")])  # fmt: skip
    return html.Div(
        [
            head,
            html.Div(
                [_controls(run, asked, runs), html.Div(result(library, ref, query), id="estimate-result")],
                className="fs-split",
            ),
        ]
    )


_LEAD = "What the forward gains if a boundary becomes one launch a site, before the kernel is merged."


@dataclass(frozen=True)
class Answer:
    """The estimate that was asked for, what plainer estimators say, and how fast a kernel must be."""

    made: Estimate
    plain: Baselines
    ahead: Outlook
    knocked_out: Ceiling | None


def result(library: Library, ref: str, query: urls.Query) -> list[Component]:
    """The answer beside the controls; a value that does not fit is answered with its sentence."""
    try:
        run = library.analysed(ref, query.rank())
        asked = Asked.of(query, _largest(run))
        answer = predict(library, run, asked)
        rows, note = by_batch(library, run, asked)
    except FusionScopeError as error:
        return [parts.alert(str(error), "No estimate")]
    made = answer.made
    return [
        parts.verdict(made.verdict, "predicted"),
        shown.numbers(answer, asked.margin),
        parts.section(
            "Amdahl and schedule",
            parts.figure(
                "plot-amdahl",
                estimates.amdahl_curve(made, asked.margin),
                f"Saving in percent of the step of {us(made.span_ns)} ({made.basis}).",
                f"{run.title}-{asked.boundary.replace(':', '-')}-estimate",
            ),
        ),
        shown.before_a_kernel(answer),
        shown.plainer(answer),
        parts.section(
            "By batch size",
            parts.table(
                [{**row, "Run": parts.link(row["Run"], urls.estimate(i, **_kept(asked)))} for i, row in rows],
                "The same fusion in runs of this experiment that differ in batch",
                ("Run", "Basis", "Verdict"),
            ),
            note=note,
            actions=[parts.save(urls.download("estimate.csv", run=run.info.id, rank=asked.rank, **_kept(asked)))],
        ),
    ]


def predict(library: Library, run: Analysed, asked: Asked) -> Answer:
    """The estimate that was asked for. Raises FusionScopeError."""
    fused = _fused(library, asked)
    aim = target(run.attribution, run.schedule(), *asked.kind, run.untraced, run.wait())
    least = floors(aim, shape_of(run.info, run.run.trace.machine.get("gpu", "")))
    made = of_target(aim, fused, asked.margin)
    return Answer(
        made,
        baselines(aim, made.speedup, least.floor_ns),
        outlook(aim, least, asked.margin, fused.launches),
        library.knocked_out(run, asked.boundary),
    )


def rows_of(library: Library, query: urls.Query) -> tables.Rows:
    """The table over batch sizes, for its CSV."""
    run = library.analysed(query.text("run"), query.rank())
    return [row for _, row in by_batch(library, run, Asked.of(query, _largest(run)))[0]]


def by_batch(library: Library, run: Analysed, asked: Asked) -> tuple[list[tuple[str, dict[str, object]]], str]:
    """(run, row) of each batch size, and what is assumed of the others."""
    infos = library.infos()
    candidates: dict[int, str] = {}
    if asked.how == "run" and asked.fused_run:
        fused = next((i for i in infos if i.id == asked.fused_run), None)
        candidates = {i.batch: i.id for i in batches(infos, fused)} if fused else {}
    rows = []
    for info in batches(infos, run.info):
        same = info.id == run.info.id
        fused_run = asked.fused_run if same else candidates.get(info.batch, "")
        if asked.how == "run" and not fused_run:
            continue
        try:
            other = run if same else library.analysed(info.id, asked.rank)
            made = predict(library, other, replace(asked, fused_run=fused_run)).made
        except FusionScopeError:
            continue
        (row,) = tables.estimate_rows([(other.title, made)])
        told = {name: value for name, value in row.items() if name not in ("Boundary", "Sites")}
        rows.append((info.id, {"Batch": info.batch if info.batch >= 0 else "unknown", **told}))
    note = {
        "speedup": "The same speed-up is assumed at every batch.",
        "time": "The same fused time is assumed at every batch; a real kernel takes longer with more tokens.",
        "run": "Each batch takes the fused time from the run of that batch that has the fusion.",
    }[asked.how]
    return rows, note + (" No other batch size of this experiment is stored." if len(rows) < 2 else "")


def _fused(library: Library, asked: Asked) -> Fused:
    if asked.how == "run":
        if not asked.fused_run:
            raise FusionScopeError("Choose a run in which this boundary is fused: its traced time is used.")
        return fused_in(library.analysed(asked.fused_run, asked.rank), *asked.kind)
    if asked.how == "time":
        if asked.fused_us is None:
            raise FusionScopeError("Give the time of a fused site in us.")
        return Fused(time_ns=asked.fused_us * 1000, launches=asked.launches, source=asked.source)
    return Fused(speedup=asked.speedup, launches=asked.launches, source=asked.source)


def _largest(run: Analysed) -> str:
    """The kind with the most kernel time that has a site of several launches, else any that has sites."""
    split = [k for k, sites in run.attribution.sites.items() if any(len(s.columns) > 1 for s in sites)]
    kinds = split or [k for k, sites in run.attribution.sites.items() if sites]
    return max(kinds, key=lambda k: run.forward.duration[:, run.attribution.columns(k)].sum(), default="")


def _kept(asked: Asked) -> dict[str, object]:
    return {"boundary": asked.boundary, "how": asked.how, "speedup": f"{asked.speedup:g}", "source": asked.source,
            "fused_us": asked.fused_us, "from": asked.fused_run, "launches": asked.launches,
            "margin": f"{asked.margin * 100:g}"}  # fmt: skip


def _run_choice(runs: Sequence[tuple[str, str]], chosen: str | None) -> Component:
    return controls.select("run", "Run", runs, chosen, go=True, placeholder="choose a run")


def _controls(run: Analysed, asked: Asked, runs: Sequence[tuple[str, str]]) -> Component:
    boundaries = []
    for kind, sites in run.attribution.sites.items():
        subtypes = sorted({s.subtype for s in sites})
        if sites:
            boundaries.append((kind, f"{kind}, {len(sites)} sites"))
        if len(subtypes) > 1:
            boundaries += [(f"{kind}:{t}", f"{kind}:{t}, {sum(s.subtype == t for s in sites)} sites")
                           for t in subtypes if t]  # fmt: skip
    fused_runs = [(i, text) for i, text in runs if i != run.info.id]
    boxes = [
        _run_choice(runs, run.info.id),
        controls.select("boundary", "Boundary", boundaries, asked.boundary),
        controls.select("how", "The fused kernel is given as", list(HOWS.items()), asked.how),
        html.Div(
            controls.number("speedup", "Speed-up (x)", asked.speedup, low=0.1, high=1000, step=0.1),
            className="fs-for-speedup",
        ),
        html.Div(
            controls.number("fused_us", "Time of a fused site (us)", asked.fused_us, low=0.01, high=1e6, step=0.1),
            className="fs-for-time",
        ),
        html.Div(
            controls.select("from", "Run in which it is fused", fused_runs, asked.fused_run or None),
            className="fs-for-run",
        ),
        html.Div(
            controls.select("source", "That number comes from", list(_SOURCES.items()), asked.source),
            className="fs-for-speedup fs-for-time",
        ),
        html.Div(
            controls.number("launches", "Launches of a fused site", asked.launches, low=1, high=3, step=1),
            className="fs-for-speedup fs-for-time",
        ),
        controls.number("margin", "Margin (% of the step)", asked.margin * 100, low=0, high=99, step=0.1),
    ]
    return html.Form(boxes, className=f"fs-side fs-how-{asked.how}", id="estimate-controls")

"""Predicted against measured, over all runs that have both."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from fusionscope.analysis.predictions import agreement
from fusionscope.dashboard import parts, tables, urls
from fusionscope.dashboard.figures import estimates
from fusionscope.dashboard.library import Library

TITLE = "Accuracy"


def page(library: Library, query: urls.Query) -> Component:
    """The page `/accuracy`."""
    found, left = library.predictions()
    lead = (
        "What the run before a fusion alone, with the fused kernel's time, predicts, and what was measured: for each "
        "run that fused something, beside the run of the same experiment without it that is nearest in time."
    )
    body: list[Component] = [parts.title("Accuracy", lead, [parts.save(urls.download("accuracy.csv"))])]
    if left:
        body.append(parts.alert(f"{left} more pairs are not shown: the newest come first.", colour="yellow"))
    fit = agreement(found)
    if fit is None:
        text = (
            "No two runs of this store have both: capture the same model once with --paths KIND=split and once with "
            "the fused path, both with untraced replays."
        )
        return html.Div([*body, parts.alert(text, colour="blue")])
    body.append(
        parts.stats(
            [
                ("Pairs", str(fit.pairs), "with one fusion each"),
                ("Within the interval", f"{fit.held} of {fit.pairs}", "95 % is what it claims"),
                ("Median error", f"{fit.median_error:.2%}", "of the step, without sign"),
                ("Largest error", f"{fit.largest_error:.2%}", "of the step, without sign"),
            ]
        )
    )
    made = parts.figure("plot-accuracy", estimates.accuracy(found), "Bars are 95 % intervals.", "accuracy")
    rows = [
        {**row, "Base": parts.link(row["Base"], urls.run(p.base.id)),
         "Candidate": parts.link(row["Candidate"], urls.compare(p.base.id, [p.candidate.id])),
         "Labels": parts.badges(p.candidate.labels)}
        for row, p in zip(tables.accuracy(found), found, strict=True)
    ]  # fmt: skip
    words = ("Boundary", "Base", "Candidate", "Within the interval", "Labels")
    body += [
        parts.section("Predicted against measured", made),
        parts.section("Pairs", parts.table(rows, "Savings of one step, untraced", words)),
    ]
    return html.Div(body)

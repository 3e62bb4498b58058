"""Files: each table of the pages as CSV, a summary as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import flask

from fusionscope.analysis.summary import markdown
from fusionscope.analysis.timeline import timeline
from fusionscope.dashboard import tables, urls
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.pages import estimate, summary
from fusionscope.profiler.errors import FusionScopeError

#: A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: tables.Rows) -> str:
    """Rows as CSV; a text that a spreadsheet would run as a formula gets a quote before it. Numbers stay numbers."""
    out = io.StringIO()
    if rows:
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow(list(rows[0]))
        writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return "" if value is None else value


#: The name of each file to what makes its rows.
FILES: dict[str, Callable[[Library, urls.Query], tables.Rows]] = {
    "runs.csv": lambda lib, _: tables.runs(lib.list()),
    "boundaries.csv": lambda lib, q: tables.boundaries(lib.analysed(*_forward(q))),
    "kernels.csv": lambda lib, q: tables.kernels(lib.analysed(*_forward(q))),
    "timeline.csv": lambda lib, q: tables.launches(timeline(lib.analysed(*_forward(q)).attribution)),
    "gaps.csv": lambda lib, q: tables.largest_gaps(timeline(lib.analysed(*_forward(q)).attribution)),
    "totals.csv": lambda lib, q: tables.totals([lib.analysed(r) for r in (q.text("base"), *q.texts("candidate"))]),
    "compared-kernels.csv": lambda lib, q: tables.compared_kernels(lib.comparison(*_sides(q))),
    "compared-boundaries.csv": lambda lib, q: tables.compared_boundaries(lib.comparison(*_sides(q))),
    "estimate.csv": lambda lib, q: estimate.rows_of(lib, q),
    "accuracy.csv": lambda lib, _: tables.accuracy(lib.predictions()[0]),
}


def _forward(query: urls.Query) -> tuple[str, int | None, str]:
    return query.text("run"), query.rank(), query.text("forward")


def _sides(query: urls.Query) -> tuple[str, str]:
    return query.text("base"), query.text("candidate")


def add_routes(server: flask.Flask, library: Library) -> None:
    """Serve `/download/<name>`; what cannot be made is answered with its sentence and 400."""

    def download(name: str) -> flask.Response:
        query = urls.Query.parse(flask.request.query_string.decode())
        try:
            if name == "summary.md":
                found, options = summary.asked(library, query)
                return _file(markdown(found, options.margin, options), name, "text/markdown")
            if name in FILES:
                return _file(csv_text(FILES[name](library, query)), name, "text/csv")
        except FusionScopeError as error:
            return flask.Response(str(error), 400, content_type="text/plain; charset=utf-8")
        return flask.Response(f"There is no file {name}.", 404, content_type="text/plain; charset=utf-8")

    server.add_url_rule("/download/<name>", "download", download)


def _file(text: str, name: str, kind: str) -> flask.Response:
    headers = {"Content-Disposition": f'attachment; filename="fusionscope-{name}"', "X-Content-Type-Options": "nosniff"}
    return flask.Response(text, headers=headers, content_type=f"{kind}; charset=utf-8")

"""The text of a pull request: claim, what ran, measurement, verdict, proof that it fired, a table that adds up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionscope.analysis.accuracy import Accuracy
from fusionscope.analysis.blocks import Block, Code, Fold, Heading, Line, Paragraph, Table, bold, data, joined, plain
from fusionscope.analysis.blocks_html import html as as_html
from fusionscope.analysis.blocks_html import page
from fusionscope.analysis.blocks_markdown import markdown as as_markdown
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.compare_document import document
from fusionscope.analysis.gates import Outcome
from fusionscope.analysis.quantities import Ticks
from fusionscope.analysis.ranks import Ranks
from fusionscope.analysis.serving import Serving
from fusionscope.analysis.serving_forecast import document as serving_document
from fusionscope.analysis.summary_details import details
from fusionscope.analysis.summary_lines import (
    claim,
    doubtful,
    fired,
    measurement,
    predicted,
    verdict,
    verdict_of,
    what_ran,
)  # fmt: skip
from fusionscope.analysis.summary_pairs import gate_line, pair_name, pairs_table
from fusionscope.analysis.summary_ranks import all_reduce_line, notes_line, ranks_beside
from fusionscope.analysis.summary_serving import accuracy_line, serving_line
from fusionscope.analysis.summary_table import kernel_table
from fusionscope.analysis.verdict import MARGIN

#: GitHub refuses a comment that is longer, in characters.
LONGEST = 65_536
#: Pairs that stand before the fold.
PAIRS = 40
#: Settings (`--set`) that name the software under test and stand before the fold.
SOFTWARE = ("image", "commit", "version")
FORMATS = ("md", "html", "json")


@dataclass(frozen=True)
class Options:
    """What a summary says beside its comparisons."""

    margin: float = MARGIN
    #: Stands in the place of the claim, which follows it.
    title: str = ""
    #: The command that makes the summary again.
    command: str = ""
    #: Serving runs before and after, and evaluations of the answers.
    serving: Serving | None = None
    accuracy: tuple[Accuracy, ...] = ()


def markdown(found: Comparison | list[Comparison], margin: float = MARGIN, options: Options | None = None) -> str:
    """The summary as Markdown, under 65,536 characters; the first comparison is the one that leads."""
    return as_markdown(blocks(found, options or Options(margin)))


def html(found: Comparison | list[Comparison], options: Options) -> str:
    """The same as one document that loads nothing."""
    return page(options.title or "FusionScope summary", as_html(blocks(found, options)))


def written(
    found: list[Comparison], options: Options, format: str, outcome: Outcome | None = None
) -> str | dict[str, object]:
    """The summary in one of FORMATS; JSON is the leading comparison's document with the Markdown beside it."""
    if format == "html":
        return html(found, options)
    text = markdown(found, options.margin, options)
    if format == "md":
        return text
    pairs: list[dict[str, object]] = []
    for one in found:
        decided = verdict_of(one, predicted(one, options.margin), options.serving)
        told = decided.document() if decided else None
        pairs.append({"name": pair_name(one, found), "verdict": told, **document(one, options.serving)})
    gates = None
    if outcome is not None:
        gates = {"exit_code": outcome.exit_code, "failed": outcome.failed, "sentences": outcome.sentences}
    title = plain(claim(found[0], predicted(found[0], options.margin), options.serving))
    beside = {
        "serving": None if options.serving is None else serving_document(options.serving),
        "accuracy": [score.document() for score in options.accuracy],
    }
    return {**pairs[0], "title": title, "pairs": pairs, "gates": gates, **beside, "markdown": text}


def blocks(found: Comparison | list[Comparison], options: Options) -> list[Block]:
    """The summary as blocks, small enough for a comment whatever the runs."""
    among = found if isinstance(found, list) else [found]
    # Several candidates share a base.
    runs = {id(run): run for one in among for run in (one.base, one.candidate)}
    known = {key: ranks_beside(run) for key, run in runs.items()}
    ranks = [(known[id(one.base)], known[id(one.candidate)]) for one in among]
    head = _head(among, ranks[0], options)
    for folded in (len(among), 1, 0):
        room = LONGEST - len(as_markdown([*head, *_folds(among, ranks, options, folded, 0)])) - 500
        if room > 0:
            break
    return [*head, *_folds(among, ranks, options, folded, room)]


def _head(among: list[Comparison], ranks: tuple[Ranks, Ranks], options: Options) -> list[Block]:
    """What stands before the fold."""
    lead = among[0]
    guess = predicted(lead, options.margin)
    said = claim(lead, guess, options.serving)
    lines: list[Line] = [(bold(*said),)] if options.title else []
    lines.append(what_ran(lead))
    if lead.incomparable:
        why = "The times of the two runs are not put beside each other; launches are facts of each run."
        lines += [(bold("Verdict:"), " none: the runs are not comparable."), fired(lead)]
        table: list[Block] = [Paragraph(((why,),)), _two_runs(lead)]
    else:
        lines += [measurement(lead, guess, options.margin), verdict(lead, guess, options.serving), fired(lead)]
        table = kernel_table(lead, ranks)
    doubt, waits = doubtful(lead), all_reduce_line(*ranks)
    lines += [doubt] if doubt else []
    title: Line = (data(options.title, 200),) if options.title else said
    found: list[Block] = [Heading(title), Paragraph(tuple(lines)), *table]
    if len(among) > 1:
        found.append(pairs_table(among[:PAIRS], options.margin, options.serving))
    last = [
        gate_line(among, options.margin, options.serving),
        None if lead.incomparable else waits,
        notes_line(lead, *ranks),
    ]
    said_last = [one for one in last if one is not None]
    if options.serving is not None:
        said_last.append(serving_line(options.serving))
    if options.accuracy:
        said_last.append(accuracy_line(options.accuracy, options.serving))
    return [*found, Paragraph((*said_last, _not_measured(among, options)))]


def _two_runs(found: Comparison) -> Table:
    """Totals of two runs that cannot be compared, without differences."""
    values = {name: [np.median(getattr(run.forward, name)) for run in (found.base, found.candidate)]
              for name in ("kernel_time", "span")}  # fmt: skip
    ticks = Ticks(max(float(v) for both in values.values() for v in both))
    rows: list[tuple[Line, ...]] = [
        (("launches",), *((str(run.forward.launches),) for run in (found.base, found.candidate)))
    ]
    for name, both in values.items():
        rows.append(((name.replace("_", " "),), *((ticks.total(ticks.of(float(v))),) for v in both)))
    return Table((("one decode forward, traced",), ("before",), ("after",)), tuple(rows))


def _not_measured(among: list[Comparison], options: Options) -> Line:
    info = among[0].candidate.info
    batches = list(dict.fromkeys(one.candidate.info.batch for one in among if one.candidate.info.batch > 0))
    known = [f"batch {', '.join(map(str, batches))}"] if batches else []
    known += [f"context {info.context}"] if info.context > 0 else []
    known += [f"TP{info.tp}"] if info.tp > 0 else []
    what = ", ".join(known) or "this batch, context and TP"
    missing = [] if options.serving is not None else ["serving throughput"]
    missing += [] if options.accuracy else ["accuracy"]
    parts: Line = (bold("Not measured:"), f" {'; '.join([f'anything but {what}', *missing])}.")
    software = [(f"{key} ", Code(info.settings[key])) for key in SOFTWARE if info.settings.get(key)]
    return (*parts, " Base ", *joined(software), ".") if software else parts


def _folds(
    among: list[Comparison], ranks: list[tuple[Ranks, Ranks]], options: Options, folded: int, room: int
) -> list[Block]:
    """The fold of the leading pair, and one of each further pair: the first `folded` pairs."""
    found: list[Block] = []
    for one, both in list(zip(among, ranks, strict=True))[:folded]:
        command = options.command if one is among[0] else ""
        fold = details(one, both, command, max(room, 0) // folded, options.serving)
        if one is not among[0] and not one.incomparable:
            name: Line = (data(pair_name(one, among)), ": kernels, runs")
            fold = Fold(name, (Paragraph((fired(one),)), *kernel_table(one, both), *fold.blocks))
        found.append(fold)
    return found

"""`fusionscope summary`."""

from __future__ import annotations

from fusionscope.cli.analysing import MarginOpt, analysed, margin_part
from fusionscope.cli.common import ForwardOpt, JsonOpt, RankOpt, RulesOpt, RunArg, SitesOpt, StoreOpt


def summary(
    base: RunArg,
    candidate: RunArg,
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = 0,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Write the Markdown of a pull request from two runs: before and after the fusion.

    Example: fusionscope summary split fused > summary.md
    """
    import sys

    from fusionscope.analysis.compare import compare
    from fusionscope.analysis.compare_document import document
    from fusionscope.analysis.summary import markdown
    from fusionscope.cli import output

    part = margin_part(margin)
    # The kind of forward is the base's: the candidate's is the one that is most like it.
    before = analysed(base, store, rank, forward, rules, sites)
    after = analysed(candidate, store, rank, "", rules, sites)
    found = compare(before, after, part)
    text = markdown(found, part)
    if json:
        output.write_json({**document(found), "markdown": text})
    else:
        # Plain text, not through a console: wrapped lines would break the Markdown.
        sys.stdout.write(text)

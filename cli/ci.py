"""`fusionscope ci`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.analysing import MarginOpt, margin_part
from fusionscope.cli.common import BoundariesOpt, ForwardOpt, JsonOpt, RankOpt, RulesOpt, SitesOpt, StoreOpt
from fusionscope.cli.pairing import (
    SEVERAL,
    AbOpt,
    AccuracyOpt,
    BaseOpt,
    CandidateOpt,
    ControlsOpt,
    FailIfOpt,
    RunsArg,
    ServingBaseOpt,
    ServingCandidateOpt,
    TitleOpt,
    compared,
    references,
    served,
)  # fmt: skip
from fusionscope.cli.variadic import Variadic

if TYPE_CHECKING:
    from fusionscope.analysis.gates import Outcome


class COMMAND(Variadic):
    """The class of this command."""

    several = SEVERAL


def ci(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the files to keep are written.")],
    runs: RunsArg = None,
    base: BaseOpt = None,
    candidate: CandidateOpt = None,
    title: TitleOpt = "",
    fail_if: FailIfOpt = "",
    expect: Annotated[
        list[str] | None,
        typer.Option("--expect", help="As `fusionscope check` takes it, of every candidate; lines or repeated."),
    ] = None,
    pr: Annotated[str, typer.Option("--pr", help="The pull request's number, kept beside the runs.")] = "",
    ab: AbOpt = None,
    serving_base: ServingBaseOpt = None,
    serving_candidate: ServingCandidateOpt = None,
    controls: ControlsOpt = "",
    accuracy: AccuracyOpt = None,
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Do what a continuous integration does: compare, write summary and packed runs to a folder, tell the job, fail.

    In a GitHub workflow the summary goes to the job's summary, failed gates become annotations, and the outputs
    `verdict` and `exit-code` are set.

    Example: fusionscope ci example example-fused --out report --fail-if slower,not-fired
    """
    from fusionscope.analysis import expect as expecting
    from fusionscope.analysis.accuracy import parse
    from fusionscope.analysis.gates import Gates
    from fusionscope.analysis.summary import Options, written
    from fusionscope.cli import output, writing
    from fusionscope.profiler.packed import pack

    gates = Gates.of(fail_if)
    part = margin_part(margin)
    expected = [expecting.parse(text) for option in expect or [] for text in option.splitlines() if text.strip()]
    found = compared(*references(runs, base, candidate), part, store, rank, forward, rules, boundary, sites, ab)
    serving = served(serving_base, serving_candidate, controls, found, part)
    scores = tuple(parse(text) for text in accuracy or [])
    checks = [check for one in found for check in expecting.on_every_rank(expected, one.candidate)] if expected else []
    failed = [f"Expected {c.expectation.text} of rank {c.rank}, found {c.number}." for c in checks if not c.holds]
    outcome = gates.of_pairs(found, part, serving)
    code = outcome.exit_code or (1 if failed else 0)
    options = Options(part, title, output.command_line(), serving, scores)
    text = str(written(found, options, "md"))
    document = written(found, options, "json", outcome)
    assert isinstance(document, dict)
    document["expectations"] = [check.document() for check in checks]
    # What another comparison left there is not of this one.
    for stale in [*out.glob("base-*.tar"), *out.glob("candidate-*.tar"), *out.glob("pr")]:
        stale.unlink()
    writing.write(out / "summary.md", text.encode())
    writing.write(out / "summary.json", output.json_text(document).encode())
    if pr:
        writing.write(out / "pr", f"{number(pr)}\n".encode())
    for place, one in enumerate(found):
        for side, run in (("base", one.base), ("candidate", one.candidate)):
            pack(run.run.path, out / f"{side}-{place}.tar")
    _tell(text, document, outcome, failed, code)
    if json:
        output.write_json({"exit_code": code, "out": str(out), **document})
    else:
        output.line(f"{document['title']}\nWritten to {out}")
    if code:
        raise typer.Exit(code)


def number(text: str) -> int:
    """A pull request's number. Raises FusionScopeError for anything else, such as what somebody's file holds."""
    from fusionscope.profiler.errors import FusionScopeError

    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise FusionScopeError("The number of the pull request must be digits alone: give it as --pr N.")
    return int(text)


def _tell(text: str, document: dict[str, object], outcome: Outcome, failed: list[str], code: int) -> None:
    """Say it to the job: its summary and outputs, and one line a failure."""
    import os

    from fusionscope.cli import github, output

    verdict = document["verdict"]
    class_ = verdict["class"] if isinstance(verdict, dict) else "none"
    github.append("GITHUB_STEP_SUMMARY", text)
    github.append("GITHUB_OUTPUT", f"verdict={class_}\nexit-code={code}\n")
    in_workflow = os.environ.get("GITHUB_ACTIONS") == "true"
    for sentence in [*outcome.sentences, *failed]:
        level = "warning" if sentence.startswith("Warning") else "error"
        output.say(github.annotation(level, sentence) if in_workflow else sentence)

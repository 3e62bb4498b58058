"""`fusionscope serving`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.analysing import MarginOpt, analysed, margin_part
from fusionscope.cli.common import BoundariesOpt, JsonOpt, RankOpt, RulesOpt, StoreOpt, emit
from fusionscope.cli.pairing import compared, references
from fusionscope.cli.variadic import Variadic

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.accuracy import Accuracy
    from fusionscope.analysis.compare import Comparison
    from fusionscope.analysis.serving import Serve, Serving
    from fusionscope.analysis.serving_outlook import Forecast


NOTHING = "Nothing is foretold: the traced runs do not know their batch, or both sides run the same kernels."


class COMMAND(Variadic):
    """The class of this command."""

    several = ("--serving-base", "--serving-candidate", "--base", "--candidate")


def serving(
    serving_base: Annotated[
        list[Path] | None,
        typer.Option("--serving-base", metavar="F...", help="Results before: bench_serving's or vllm bench serve's."),
    ] = None,
    serving_candidate: Annotated[
        list[Path] | None,
        typer.Option("--serving-candidate", metavar="F...", help="Results after; several runs an arm."),
    ] = None,
    base: Annotated[
        list[str] | None, typer.Option("--base", metavar="RUN...", help="Traced runs before, one a batch: predict.")
    ] = None,
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", metavar="RUN...", help="Traced runs after, one a batch.")
    ] = None,
    saving_us: Annotated[
        float | None,
        typer.Option("--saving-us", help="Saving of a forward as `estimate` has it, us: in place of --candidate."),
    ] = None,
    controls: Annotated[
        str, typer.Option("--controls", metavar="N,N", help="Concurrencies at which the fusion cannot fire.")
    ] = "",
    host_us: Annotated[
        float | None,
        typer.Option("--host-us", min=0, help="Host time a step that no forward hides. Default: what is left over."),
    ] = None,
    accept_length: Annotated[
        float | None, typer.Option("--accept-length", min=1, help="Tokens a step. Default: from the results.")
    ] = None,
    decode_share: Annotated[
        float, typer.Option("--decode-share", min=0, max=1, help="Part of the time per token that is such steps.")
    ] = 1.0,
    accuracy: Annotated[
        list[str] | None,
        typer.Option("--accuracy", metavar="NAME=A,B", help="gsm8k=0.967/1319,0.969/1319, or two files of answers."),
    ] = None,
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = None,
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    json: JsonOpt = False,
) -> None:
    """Put serving runs before and after beside each other, with their noise, and beside what the forward predicts.

    With traced runs alone: what their saving makes of the time per token and of the throughput.

    Example: fusionscope serving --serving-base off*.jsonl --serving-candidate on*.jsonl --controls 64
    """
    from dataclasses import asdict

    from fusionscope.analysis.accuracy import parse
    from fusionscope.analysis.serving import Serve
    from fusionscope.analysis.serving import serving as beside
    from fusionscope.analysis.serving_forecast import control_batches, estimated, step_savings
    from fusionscope.analysis.serving_forecast import document as told
    from fusionscope.analysis.serving_outlook import assumed, forecasts
    from fusionscope.profiler.errors import FusionScopeError
    from fusionscope.profiler.readers.serving_json import read_serving

    if bool(serving_base) != bool(serving_candidate):
        raise FusionScopeError("Give serving results of both sides: --serving-base F… and --serving-candidate F….")
    if not (serving_base or base or candidate):
        raise FusionScopeError(
            "Give serving results (--serving-base F… --serving-candidate F…), or traced runs to predict from (--base "
            "RUN with --candidate RUN or --saving-us X), or both."
        )
    pairs: list[Comparison] = []
    part = margin_part(margin)
    if saving_us is None and (base or candidate):
        pairs = compared(*references(None, base, candidate), part, store, rank, "", rules, boundary)
    serve = Serve(None if host_us is None else host_us * 1000, accept_length, decode_share)
    savings = step_savings(pairs, part)
    if saving_us is not None:
        if not base or len(base) > 1 or candidate:
            raise FusionScopeError(
                "--saving-us X is what one run would save: give that run with --base, no --candidate."
            )
        savings = estimated(analysed(base[0], store, rank, "", rules, "", boundaries=boundary), saving_us * 1000)
    scores = [parse(text) for text in accuracy or []]
    ahead = forecasts(savings, serve)
    beyond = {
        "forecasts": [asdict(one) for one in ahead],
        "assumed": assumed(serve),
        "accuracy": [score.document() for score in scores],
    }
    if not serving_base or not serving_candidate:
        emit(json, beyond, lambda: render_ahead(ahead, serve, scores))
        return
    off = numbers(controls) | control_batches(pairs)
    found = beside(read_serving(serving_base), read_serving(serving_candidate), savings, serve, off)
    emit(json, told(found) | beyond, lambda: render(found, scores))


def numbers(text: str) -> set[int]:
    """`64,128` as numbers."""
    from fusionscope.profiler.errors import FusionScopeError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise FusionScopeError(f"--controls takes concurrencies such as 64,128, not {text!r}.")
    return {int(part) for part in parts}


def render_ahead(ahead: list[Forecast], serve: Serve, scores: list[Accuracy]) -> RenderableType:
    """What traced runs alone foretell of a server."""
    from rich.text import Text

    from fusionscope.analysis.serving_outlook import assumed

    lines = [one.sentence().replace("%", " %") for one in ahead]
    lines = [*lines, assumed(serve).replace("%", " %")] if lines else [NOTHING]
    return Text("\n".join([*lines, *(score.sentence() for score in scores)]))


def render(found: Serving, scores: list[Accuracy]) -> RenderableType:
    """One row a concurrency, and what they say."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.serving import sentences
    from fusionscope.cli import output

    rows = []
    for row in found.rows:
        change = f"{-row.observed:+.2%}"
        if row.interval is not None:
            change += f" [{-row.interval[1]:+.2%}, {-row.interval[0]:+.2%}]"
        rows.append(
            (row.concurrency, f"{row.runs[0]} and {row.runs[1]}", f"{row.tpot_ms[0]:.2f}", f"{row.tpot_ms[1]:.2f}",
             change, "-" if row.predicted is None else f"{-row.predicted:+.2%}",
             "-" if row.ceiling is None else f"{-row.ceiling:+.2%}", "control" if row.control else "")
        )  # fmt: skip
    columns = ("concurrency", "runs", "ms per token", "after", "observed [95 %]", "predicted", "at most", "")
    lines = [*sentences(found), *(score.sentence() for score in scores)]
    return Group(output.table("Time per output token", columns, rows, right=columns[:7]), Text("\n".join(lines)))

"""`fusionscope amdahl`."""

from __future__ import annotations

from typing import Annotated

import typer

from fusionscope.cli.common import JsonOpt, emit


def amdahl(
    share: Annotated[float, typer.Option("--share", help="Part of the time, 0 to 1: 0.33 % is 0.0033.")],
    speedup: Annotated[float, typer.Option("--speedup", help="How many times faster the boundary becomes.")],
    json: JsonOpt = False,
) -> None:
    """Amdahl's law: what a speed-up of a share of the time gains. Pure arithmetic, no run needed.

    Example: fusionscope amdahl --share 0.0033 --speedup 2.0
    """
    from fusionscope.analysis.amdahl import gain

    saved = gain(share, speedup)
    payload = {"share": share, "speedup": speedup, "gain": saved}
    # Four digits of a percentage, since the gains at stake are fractions of one.
    emit(json, payload, lambda: f"{share:.4%} of the time, {speedup:g} times faster: saves {saved:.4%} of the time.")

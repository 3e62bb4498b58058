"""`fusionscope doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusionscope.cli.common import JsonOpt, emit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.profiler.capture.doctor import Examined


def doctor(json: JsonOpt = False) -> None:
    """Say what can be captured on this machine, what cannot, and how to get it.

    Example: fusionscope doctor
    """
    from fusionscope.profiler.capture.doctor import examine

    found = examine()
    payload = {
        "checks": [check.document() for check in found.checks],
        "captures": {"built_in_model": found.built_in, "commands": found.commands},
    }
    emit(json, payload, lambda: render(found))


def render(found: Examined) -> RenderableType:
    """The checks as a table, and what follows from them."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.cli import output

    rows = [(check.name, check.state, check.found, check.fix) for check in found.checks]
    built_in = ", ".join(found.built_in) or "nothing here: install torch with pip install 'fusionscope[runtime]'"
    return Group(
        output.table("What is here", ("", "state", "found", "what to do"), rows),
        Text(f"The built-in model can be captured with --profiler {built_in}."),
        Text(f"Engines and other commands can be captured with --profiler {', '.join(found.commands)}."),
    )

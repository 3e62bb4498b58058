"""What every command's help has in common: arguments by their names alone, and an example that can be copied."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """A command whose help fits a narrow terminal and does not wrap its example."""

    def __init__(self, *args: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*args, help=re.sub(r"\n\n(Example: .*)", _copied, help or ""), **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Errors of use name this command, so that they can send to its own help."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] RUN`: an argument as its metavar says it."""
        return ["[OPTIONS]", *(_shown(one) for one in self.get_params(ctx) if one.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, then the options."""
        params: list[Any] = list(self.get_params(ctx))
        arguments = [(_shown(one), one.help or "") for one in params if one.param_type_name == "argument"]
        for one in params:
            kind = one.display_type(ctx) if one.param_type_name == "option" and one.metavar is None else None
            if kind and "bool" not in kind:
                one.metavar = next((short for long, short in (("int", "N"), ("float", "X")) if long in kind), "TEXT")
        options = [one.get_help_record(ctx) for one in params if one.param_type_name == "option"]
        for title, rows in (("Arguments", arguments), ("Options", [row for row in options if row is not None])):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _copied(example: re.Match[str]) -> str:
    """An example as a shell takes it, in lines that end where a narrow terminal does."""
    lines = textwrap.wrap(example[1], 74, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    # Click leaves a paragraph after \b as it is written.
    return "\n\n\b\n" + " \\\n".join(lines)


def _shown(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())

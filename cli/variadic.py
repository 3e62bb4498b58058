"""Options that take several values at once: `--base b1 b4 b16`, as a shell's glob gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusionscope.cli.command import Command


class Variadic(Command):
    """A command whose options named in `several` take every word up to the next option."""

    several: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args, self.several))


def spread(args: Sequence[str], several: Sequence[str]) -> list[str]:
    """`--base a b` as `--base a --base b`, for the options in `several`."""
    found: list[str] = []
    option, first = "", False
    for place, word in enumerate(args):
        if word == "--":
            return [*found, *args[place:]]
        if word.startswith("-") and word != "-":
            option, first = (word, True) if word in several else ("", False)
            found.append(word)
        elif option and not first:
            found += [option, word]
        else:
            found.append(word)
            first = False
    return found

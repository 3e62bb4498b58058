"""Chooses the path of a site once, before it runs, and remembers why another one stepped back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusionscope.fusion_runtime.errors import WrongGroup
from fusionscope.fusion_runtime.ownership import Owed
from fusionscope.fusion_runtime.paths.base import Path, SiteShape
from fusionscope.fusion_runtime.paths.registry import get_path

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext


def choose(boundary: str, subtype: str, owed: Owed, shape: SiteShape, ctx: DecodeContext) -> tuple[Path, str]:
    """The path to run and "" or "path: reason" if the one asked for declined. Raises WrongGroup."""
    if owed.group is not ctx.group:
        raise WrongGroup(
            f"{owed.what} belongs to another group ({owed.group.kind}, {owed.group.size} ranks) than the forward "
            f"({ctx.group.kind}, {ctx.group.size} ranks): complete it over its own group first."
        )
    wanted = get_path(ctx.paths.path_for(boundary, subtype))
    reason = wanted.declines(boundary, shape=shape, group=ctx.group)
    if reason is None:
        return wanted, ""
    return get_path("split"), f"{wanted.name}: {reason}"

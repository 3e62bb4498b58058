"""`auto`: takes at each site the path that was fastest where it was measured (tuning.py has the rules)."""

from __future__ import annotations

from collections.abc import Sequence

from fusionscope.fusion_runtime import tuning
from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.paths import registry
from fusionscope.fusion_runtime.paths.base import SiteShape, UnavailablePath


class AutoPath(UnavailablePath):
    """Runs nothing itself: it names the paths to try, and a site's record names the one that ran."""

    def __init__(self) -> None:
        super().__init__("auto", Decline(Gate.NOT_COVERED, "auto chooses among paths and is none"))

    def unavailable(self, group: Group, device: object) -> Decline | None:
        return None

    def settings(self) -> str:
        return tuning.of_this_machine().digest()

    def chooses_from(self, names: Sequence[str]) -> Sequence[str]:
        return [name for name in names if name != self.name]

    def order(self, boundary: str, subtype: str, shape: SiteShape, group: Group) -> Sequence[str]:
        table = tuning.of_this_machine()
        best = table.ranking(boundary, max(shape.tokens, 1), shape.hidden, group.size).paths
        # A table may have a path of the program that measured it.
        return [name for name in best if name in registry.path_names()]

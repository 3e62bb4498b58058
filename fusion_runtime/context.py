"""What a forward carries along: its group, its operations, the chosen paths and the record of sites."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.decode.recorder import SiteRecorder
from fusionscope.fusion_runtime.errors import BadPathChoice, RanksDisagree
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.paths.registry import get_path, path_names

SUBTYPES: dict[str, tuple[str, ...]] = {
    "ar_norm": ("residual", "no_residual", "trailing"),
    "moe_finalize": ("ffn_exit",),
    "mhc_post": ("attn_exit", "ffn_exit"),
    "mhc_post_pre": ("attn_exit",),
}
"""Every boundary the runtime knows, with its subtypes; a boundary of one's own is added here."""

ENVIRONMENT = "FUSIONSCOPE_PATHS"

_SITE = re.compile(r"(?P<boundary>[^:@]*)(?P<colon>:(?P<subtype>[^@]*))?(?P<at>@(?P<layer>.*))?")


@dataclass(frozen=True)
class PathChoice:
    """Which path each BOUNDARY[:SUBTYPE][@LAYER] should take; what is not named takes `split`."""

    chosen: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> PathChoice:
        """Reads "mhc_post=triton,mhc_post:attn_exit@3=split". Raises BadPathChoice naming the valid words."""
        chosen: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            site, equals, path = (word.strip() for word in item.partition("="))
            if not equals:
                raise BadPathChoice(f"{item!r} is not BOUNDARY=PATH: write for example mhc_post=split.")
            _check_site(site)
            if path not in path_names():
                raise BadPathChoice(f"there is no path {path!r}: choose from {', '.join(path_names())}.")
            if chosen.get(site, path) != path:
                raise BadPathChoice(f"{site} is given two paths, {chosen[site]} and {path}: keep one of them.")
            chosen[site] = path
        return cls(chosen)

    @classmethod
    def from_environment(cls) -> PathChoice:
        """The choice in FUSIONSCOPE_PATHS, or all split where it is not set."""
        return cls.parse(os.environ.get(ENVIRONMENT, ""))

    def path_for(self, boundary: str, subtype: str, layer: int = -1) -> str:
        """The path's name for a site; the layer goes before all others, boundary:subtype before boundary."""
        kinds = (f"{boundary}:{subtype}", boundary)
        for site in (*(f"{kind}@{layer}" for kind in kinds), *kinds):
            if site in self.chosen:
                return self.chosen[site]
        return "split"

    def __str__(self) -> str:
        return ",".join(f"{site}={path}" for site, path in sorted(self.chosen.items()))


def _check_site(site: str) -> None:
    found = _SITE.fullmatch(site)
    assert found is not None  # every text matches
    boundary, subtype, layer = found["boundary"], found["subtype"], found["layer"]
    if boundary not in SUBTYPES:
        raise BadPathChoice(f"there is no boundary {boundary!r}: choose from {', '.join(SUBTYPES)}.")
    if found["colon"] and subtype not in SUBTYPES[boundary]:
        raise BadPathChoice(f"{boundary} has no subtype {subtype!r}: choose from {', '.join(SUBTYPES[boundary])}.")
    if found["at"] and not layer.isdecimal():
        raise BadPathChoice(f"{layer!r} is not a layer: write for example {boundary}@3=split.")


@dataclass
class DecodeContext:
    """`ops` is the module of operations for `device`: `decode.reference_ops` or `decode.cuda_ops`.

    Making one is collective: all ranks of the group agree on which of the chosen paths every one of them can run.
    Raises RanksDisagree where they were given different choices.
    """

    group: Group
    ops: ModuleType
    paths: PathChoice = field(default_factory=PathChoice)
    recorder: SiteRecorder = field(default_factory=SiteRecorder)
    device: Any = "cpu"
    unavailable: dict[str, Decline] = field(init=False)
    """Paths that this machine, or another rank's, cannot run, with the reason."""

    def __post_init__(self) -> None:
        names = self._names()
        told = "|".join([str(self.paths), *(get_path(name).settings() for name in names)])
        if not self.group.same(zlib.crc32(told.encode())):
            raise RanksDisagree(
                f"rank {self.group.rank} was given the paths {str(self.paths) or 'split'!r} and another rank others, "
                f"or another table for one of them: give every rank the same --paths, {ENVIRONMENT} and tables."
            )
        mine = {name: get_path(name).unavailable(self.group, self.device) for name in names}
        everywhere = self.group.agree([mine[name] is None for name in names])
        self.unavailable = {
            name: mine[name] or Decline(Gate.UNAVAILABLE_ON_A_RANK, "another rank of the group cannot run it")
            for name, able in zip(names, everywhere, strict=True)
            if not able
        }

    def _names(self) -> list[str]:
        """Paths that a site may take, those behind a choosing one included; nothing else is loaded."""
        chosen = {name for name in self.paths.chosen.values() if name != "split"}
        behind = [get_path(name).chooses_from(path_names()) for name in sorted(chosen)]
        return sorted(chosen.union(*behind) - {"split"})

"""What a forward carries along: its group, its operations, the chosen paths and the record of sites."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.decode.recorder import SiteRecorder
from fusionscope.fusion_runtime.errors import BadPathChoice

SUBTYPES: dict[str, tuple[str, ...]] = {
    "ar_norm": ("residual", "no_residual", "trailing"),
    "moe_finalize": ("ffn_exit",),
    "mhc_post": ("attn_exit", "ffn_exit"),
}
"""Every boundary the runtime knows, with its subtypes."""

PATH_NAMES = ("split", "inductor", "triton")
"""Every path the runtime knows; `split` is the default and never declines."""

ENVIRONMENT = "FUSIONSCOPE_PATHS"


@dataclass(frozen=True)
class PathChoice:
    """Which path each boundary (or boundary:subtype) should take; what is not named takes `split`."""

    chosen: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> PathChoice:
        """Reads "mhc_post=triton,mhc_post:attn_exit=split". Raises BadPathChoice naming the valid words."""
        chosen: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            site, equals, path = (word.strip() for word in item.partition("="))
            if not equals:
                raise BadPathChoice(f"{item!r} is not BOUNDARY=PATH: write for example mhc_post=split.")
            boundary, colon, subtype = site.partition(":")
            if boundary not in SUBTYPES:
                raise BadPathChoice(f"there is no boundary {boundary!r}: choose from {', '.join(SUBTYPES)}.")
            if colon and subtype not in SUBTYPES[boundary]:
                raise BadPathChoice(
                    f"{boundary} has no subtype {subtype!r}: choose from {', '.join(SUBTYPES[boundary])}."
                )
            if path not in PATH_NAMES:
                raise BadPathChoice(f"there is no path {path!r}: choose from {', '.join(PATH_NAMES)}.")
            if chosen.get(site, path) != path:
                raise BadPathChoice(f"{site} is given two paths, {chosen[site]} and {path}: keep one of them.")
            chosen[site] = path
        return cls(chosen)

    @classmethod
    def from_environment(cls) -> PathChoice:
        """The choice in FUSIONSCOPE_PATHS, or all split where it is not set."""
        return cls.parse(os.environ.get(ENVIRONMENT, ""))

    def path_for(self, boundary: str, subtype: str) -> str:
        """The path's name for a site; boundary:subtype goes before boundary."""
        return self.chosen.get(f"{boundary}:{subtype}", self.chosen.get(boundary, "split"))

    def __str__(self) -> str:
        return ",".join(f"{site}={path}" for site, path in sorted(self.chosen.items()))


@dataclass
class DecodeContext:
    """`ops` is the module of operations for the group's device: `decode.reference_ops` or `decode.cuda_ops`."""

    group: Group
    ops: ModuleType
    paths: PathChoice = field(default_factory=PathChoice)
    recorder: SiteRecorder = field(default_factory=SiteRecorder)

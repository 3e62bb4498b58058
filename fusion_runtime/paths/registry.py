"""Finds a path by name. A path whose library or device is missing is there too, and declines with the reason."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch

from fusionscope.fusion_runtime.paths.base import Path, UnavailablePath
from fusionscope.fusion_runtime.paths.split import SplitPath


@cache
def get_path(name: str) -> Path:
    """The one instance of the path `name` (one of context.PATH_NAMES)."""
    if name == "split":
        return SplitPath()
    if name == "inductor":
        from fusionscope.fusion_runtime.paths.inductor import InductorPath

        return InductorPath()
    if name == "triton":
        return _triton()
    raise KeyError(name)


def _triton() -> Path:
    if importlib.util.find_spec("triton") is None:
        return UnavailablePath("triton", "Triton is not installed: pip install 'fusionscope[runtime]'")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return UnavailablePath("triton", "Triton needs a CUDA GPU and this process sees none")
    from fusionscope.fusion_runtime.paths.triton import TritonPath

    path: Path = TritonPath()
    return path

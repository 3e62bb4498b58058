"""Finds a path by name. A path whose library or device is missing is there too, and declines with the reason.

Nothing is imported before its path is asked for.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import torch

from fusionscope.fusion_runtime.errors import BadPathChoice
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.paths.base import Path, UnavailablePath

Loader = Callable[[], Path]


def _split() -> Path:
    from fusionscope.fusion_runtime.paths.split import SplitPath

    return SplitPath()


def _inductor() -> Path:
    from fusionscope.fusion_runtime.paths.inductor import InductorPath

    return InductorPath()


def _triton() -> Path:
    if importlib.util.find_spec("triton") is None:
        why = Decline(Gate.LIBRARY_MISSING, "Triton is not installed: pip install 'fusionscope[runtime]'")
        return UnavailablePath("triton", why)
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return UnavailablePath("triton", Decline(Gate.NO_DEVICE, "Triton needs a GPU and this process sees none"))
    from fusionscope.fusion_runtime.paths.triton import TritonPath

    path: Path = TritonPath()
    return path


def _flashinfer() -> Path:
    from fusionscope.fusion_runtime.paths.flashinfer import FlashinferPath

    return FlashinferPath()


def _aiter() -> Path:
    from fusionscope.fusion_runtime.paths.aiter import AiterPath

    return AiterPath()


def _auto() -> Path:
    from fusionscope.fusion_runtime.paths.auto import AutoPath

    return AutoPath()


_BUILT_IN: dict[str, Loader] = {
    "split": _split,
    "inductor": _inductor,
    "triton": _triton,
    "flashinfer": _flashinfer,
    "aiter": _aiter,
    "auto": _auto,
}
_loaders = dict(_BUILT_IN)
_loaded: dict[str, Path] = {}


def path_names() -> tuple[str, ...]:
    """Every path that can be chosen; `split` comes first, is the default and never declines."""
    return tuple(_loaders)


def register_path(name: str, load: Loader) -> None:
    """Adds a path, or puts another in its place; `load` runs once, when the path is first asked for."""
    _loaders[name] = load
    _loaded.pop(name, None)


def forget_path(name: str) -> None:
    """Takes a path out again; a built-in one comes back, and is looked for anew when it is next asked for."""
    _loaded.pop(name, None)
    if name in _BUILT_IN:
        _loaders[name] = _BUILT_IN[name]
    else:
        _loaders.pop(name, None)


def get_path(name: str) -> Path:
    """The one instance of the path `name`. Raises BadPathChoice for a name that is not in path_names()."""
    # A dictionary of our own: torch.compile traces through functools.cache and warns.
    if name not in _loaded:
        if name not in _loaders:
            raise BadPathChoice(f"there is no path {name!r}: choose from {', '.join(path_names())}, or register it.")
        _loaded[name] = _loaders[name]()
    return _loaded[name]

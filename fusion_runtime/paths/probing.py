"""Looks at an optional library before it is called: which operations it has, and which arguments they take."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any


def has_library(name: str) -> bool:
    """Whether a library can be imported, without importing it."""
    return importlib.util.find_spec(name) is not None


def operation(module: str, name: str) -> Callable[..., Any] | None:
    """The operation `name` of `module`, or None where the module or the operation is missing or cannot be loaded."""
    try:
        found = importlib.import_module(module)
    except (ImportError, OSError, RuntimeError):
        return None
    return getattr(found, name, None)


@cache
def parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names that `function` takes; None where they cannot be told."""
    try:
        known = inspect.signature(inspect.unwrap(function)).parameters
    except (TypeError, ValueError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
        return None
    return frozenset(known)


def takes(function: Callable[..., Any] | None, *names: str) -> bool:
    """Whether `function` is there and takes all these names; not, where that cannot be told."""
    known = None if function is None else parameters(function)
    return known is not None and set(names) <= known


def call(function: Callable[..., Any], optional: dict[str, Any], /, *operands: Any, **named: Any) -> Any:
    """Calls with those of the `optional` arguments that this version takes; the others must not matter."""
    return function(*operands, **named, **{name: value for name, value in optional.items() if takes(function, name)})

"""Makes a piece of CPU work one operator of a profile, as a fused kernel is one launch on a GPU.

A profile of eager torch lists views, dtype look-ups and copies inside each operator, most of which do no work, and
their parents' time would belong to nobody when launches are the operators without children. So an operation that
is one kernel on a GPU is one operator here: recorded under its name, with this thread's record functions off inside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch

NAMESPACE = "fusionscope"

Function = TypeVar("Function", bound=Callable[..., Any])

_inside = threading.local()


def one_launch(function: Function) -> Function:
    """Decorates an operation: a profile shows `fusionscope::<its name>` and nothing inside. Nested ones vanish."""
    return launch_as(f"{NAMESPACE}::{function.__name__}", function)


def launch_as(name: str, function: Function) -> Function:
    """As one_launch, under another name."""
    record: Callable[[str], Any] = torch._C._profiler._RecordFunctionFast

    @wraps(function)
    def launched(*operands: Any, **named: Any) -> Any:
        # A compiler makes its own launches of what is inside.
        if torch.compiler.is_compiling() or getattr(_inside, "busy", False):
            return function(*operands, **named)
        with record(name), _unrecorded():
            return function(*operands, **named)

    return launched  # type: ignore[return-value]


def split(x: Any, sizes: Sequence[int]) -> tuple[Any, ...]:
    """x [..., sum of sizes] -> views [..., size] of its columns, unrecorded: a view launches nothing."""
    with _unrecorded():
        return tuple(x.split(list(sizes), -1))


def reshaped(x: Any, *shape: int) -> Any:
    """x.view(shape), unrecorded: a view launches nothing."""
    with _unrecorded():
        return x.view(shape)


@contextmanager
def _unrecorded() -> Iterator[None]:
    enable: Callable[[bool], None] = torch.autograd._enable_record_function
    if torch.compiler.is_compiling() or getattr(_inside, "busy", False):
        yield
        return
    _inside.busy = True
    enable(False)
    try:
        yield
    finally:
        enable(True)
        _inside.busy = False

"""Makes a piece of CPU work one operator of a profile, as a fused kernel is one launch on a GPU.

A profile of eager torch lists views, dtype look-ups and copies inside each operator, most of which do no work, and
their parents' time would belong to nobody when launches are the operators without children. So an operation that
is one kernel on a GPU is one operator here: recorded under its name, with this thread's record functions off inside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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
    enable: Callable[[bool], None] = torch.autograd._enable_record_function

    @wraps(function)
    def launched(*operands: Any, **named: Any) -> Any:
        if getattr(_inside, "busy", False):
            return function(*operands, **named)
        with record(name):
            _inside.busy = True
            enable(False)
            try:
                return function(*operands, **named)
            finally:
                enable(True)
                _inside.busy = False

    return launched  # type: ignore[return-value]

"""Makes a piece of CPU work one operator of a profile, as a fused kernel is one launch on a GPU.

The profiler would otherwise list the operators inside (a compiled region's guards, a view, a copy). Inside
`hidden_inside` this thread's record functions are off, so the operator around it has no children.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def hidden_inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an operator's implementation so that a profile shows the operator and nothing inside."""
    switch: Callable[[bool], None] = torch.autograd._enable_record_function

    @wraps(function)
    def quiet(*operands: Any) -> Any:
        switch(False)
        try:
            return function(*operands)
        finally:
            switch(True)

    return quiet

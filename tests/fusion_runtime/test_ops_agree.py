"""The layers call one module of operations or the other: both must have the same functions, called alike."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import FunctionType

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fusionscope.fusion_runtime.boundaries import dispatch
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.decode.model import ops_for

RUNTIME = Path(dispatch.__file__).parents[1]


def called_operations() -> set[str]:
    """Every `ops.name(...)`, `ctx.ops.name(...)` or `self.ctx.ops.name(...)` of the code that takes either module."""
    names: set[str] = set()
    folders = ("decode/layers", "boundaries", "families", "paths")
    files = [file for folder in folders for file in (RUNTIME / folder).glob("*.py")]
    for file in [*files, *(RUNTIME / name for name in ("decode/model.py", "residual_stream.py", "hyper.py"))]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if "ops" in (getattr(owner, "id", None), getattr(owner, "attr", None)):
                    names.add(node.func.attr)
    return names


def test_cuda_ops_has_every_operation_with_as_many_parameters() -> None:
    names = called_operations()
    wanted = {"hc_pre", "mhc_post", "moe_sum_reduce", "kda_update", "argmax", "add_rmsnorm", "quantise", "stream_mean"}
    assert wanted <= names and len(names) >= 25
    cuda_ops = ops_for("cuda")
    for name in sorted(names):
        reference, other = getattr(reference_ops, name), getattr(cuda_ops, name)
        assert isinstance(inspect.unwrap(other), FunctionType)
        # The layers call by position, so that a parameter's name is free.
        assert len(inspect.signature(other).parameters) == len(inspect.signature(reference).parameters), name

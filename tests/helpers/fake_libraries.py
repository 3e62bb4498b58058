"""Places of the built-in models, groups of ranks and modules of libraries that are not here, for tests of paths.

No GPU: shapes say "cuda", and what stands for a library computes with torch.
"""

from __future__ import annotations

import importlib.machinery
import sys
from dataclasses import replace
from types import ModuleType

import torch

from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
from fusionscope.fusion_runtime.comm.symmetric import SymmetricGroup
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.paths.base import SiteShape

BF16, T, H = torch.bfloat16, 3, 32
GPU = torch.device("cuda")
SHAPE = SiteShape(T, H, BF16, GPU, gamma_dtype=BF16, eps=1e-5)


JOINED = replace(SHAPE, hidden=4096, tokens=64, read=(1e-5, 1e-6, 20, 2.0))


def read_of(hidden):
    fn = torch.randn(24, 4 * hidden) / (4 * hidden) ** 0.5
    return HyperWeights(fn, torch.rand(3), torch.randn(24), torch.rand(hidden).to(BF16), 1e-5)


class Peers(SymmetricGroup):
    """Two ranks whose other one always has the same part."""

    kind, rank = "nccl", 0

    def __init__(self, size=2):
        self.size, self.device = size, GPU

    process_group = None

    def all_reduce(self, x):
        return x * self.size


class OverGloo(ProcessGroup):
    kind, rank = "gloo", 0

    def all_reduce(self, x):
        return x * self.size

    def __init__(self, size=2):
        self.size = size


def library(monkeypatch, **modules):
    """Puts modules of these contents in place; "." in names is "__"."""
    made = {}
    for name, contents in modules.items():
        dotted = name.replace("__", ".")
        module = ModuleType(dotted)
        module.__spec__ = importlib.machinery.ModuleSpec(dotted, None, is_package=True)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, dotted, module)
        made[dotted] = module
    return made


def tensors(dtype=BF16):
    return torch.randn(T, H).to(dtype), torch.randn(T, H).to(dtype), torch.randn(H).to(dtype)

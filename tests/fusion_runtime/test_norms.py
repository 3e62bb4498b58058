"""The hook that says which norms a path may take over."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusionscope.fusion_runtime import norms
from fusionscope.fusion_runtime.errors import BadNorm
from fusionscope.fusion_runtime.norms import GemmaRmsNorm, Norm, RmsNorm, apply, as_norm, register_norm

W = torch.linspace(-1, 1, 8)


def test_plain_and_gemma_are_read() -> None:
    plain, gemma = as_norm(RmsNorm(W, 1e-5)), as_norm(GemmaRmsNorm(W, 1e-6))
    assert plain is not None and (plain.eps, plain.weight_bias) == (1e-5, 0.0)
    assert gemma is not None and (gemma.eps, gemma.weight_bias) == (1e-6, 1.0)
    x = torch.randn(3, 8)
    unit = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(GemmaRmsNorm(W, 1e-6)(x), unit * (1 + W))
    torch.testing.assert_close(apply(Norm(W + 1, 1e-6, folded=True), x), unit * (1 + W))


def test_torch_s_own_norm_is_read_with_its_epsilon() -> None:
    module = torch.nn.RMSNorm(8, eps=1e-4)
    read = as_norm(module)
    assert read is not None and read.eps == 1e-4
    x = torch.randn(3, 8)
    torch.testing.assert_close(apply(read, x), module(x))
    read = as_norm(torch.nn.RMSNorm(8))
    assert read is not None and read.eps == torch.finfo(torch.float32).eps


class Scaled(RmsNorm):
    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "module",
    [torch.nn.Identity(), torch.nn.LayerNorm(8), Scaled(W, 1e-5), torch.nn.RMSNorm(8, elementwise_affine=False), None],
    ids=["Identity", "LayerNorm", "subclass", "no weight", "None"],
)
def test_everything_else_declines(module: Any) -> None:
    assert as_norm(module) is None


def test_a_norm_with_a_bias_declines() -> None:
    module = RmsNorm(W, 1e-5)
    module.bias = torch.nn.Parameter(W)
    assert as_norm(module) is None


def test_the_one_is_added_once_or_not_at_all() -> None:
    with pytest.raises(BadNorm, match="has 1 added already"):
        Norm(W + 1, 1e-6, weight_bias=1.0, folded=True)
    with pytest.raises(BadNorm, match="neither 0"):
        Norm(W, 1e-6, weight_bias=0.5)


def test_an_engine_registers_its_own_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class EngineNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = W, 1e-3

    class Subclass(EngineNorm):
        pass

    monkeypatch.setattr(norms, "_readers", dict(norms._readers))
    assert as_norm(EngineNorm()) is None
    register_norm(EngineNorm, lambda module: Norm(module.weight, module.variance_epsilon))
    read = as_norm(EngineNorm())
    assert read is not None and read.eps == 1e-3
    assert as_norm(Subclass()) is None

"""The split path under torch.compile(fullgraph=True): one graph, the same answers, the same rules.

The backends "eager" and "aot_eager" need no C++ compiler; what is tested is that the whole forward can be traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from compilers import needs_compiler

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.norms import GemmaRmsNorm, Norm
from fusionscope.fusion_runtime.ownership import Exit, FinalizeOperands, ForwardScope, PartialSum
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, InputQuant, QuantisedActivation
from fusionscope.fusion_runtime.residual_stream import AddStream, HyperStream

T, H = 3, 32
GROUP = SingleGroup()
# Made once and outside what is traced: making a context is collective.
CTX = DecodeContext(GROUP, reference_ops)
NORM = GemmaRmsNorm(torch.linspace(0, 1, H), 1e-5)
WEIGHT = torch.linspace(-1, 1, H * H).view(H, H) / H


class Consumer:
    input_quant = InputQuant(FP8_TOKEN_GROUP_128)


class Read:
    def read(self, streams: Any, ctx: Any) -> tuple[Any, Any, Any]:
        tokens = streams.shape[0]
        mix = torch.softmax(streams[:, :, :4], 1)
        return streams.mean(1), torch.full((tokens, 4), 0.5), mix


def experts(x: Any) -> FinalizeOperands:
    idx = torch.tensor([[0, 1], [2, -1], [-1, 1]], dtype=torch.int32)
    return FinalizeOperands(x @ WEIGHT, idx, torch.ones(T, 2), 2.5, x)


def add_forward(x: Any) -> Any:
    with ForwardScope():
        stream = AddStream(CTX, 2)
        update: Any = Exit(GROUP, "embedding", tokens=T).hand_on(x)
        for layer in range(2):
            y = stream.prepare_attn(update, NORM)
            update = stream.exit(f"{layer}.out").hand_on(y @ WEIGHT)
            y = stream.prepare_mlp(update, NORM)
            update = stream.exit(f"{layer}.down").hand_on_finalize(experts(y))
        return stream.finalize(update, Norm(torch.ones(H), 1e-5))


def hyper_forward(x: Any) -> Any:
    with ForwardScope():
        stream = HyperStream(CTX, 1)
        y = stream.prepare_attn(Exit(GROUP, "embedding", tokens=T).hand_on(x), Read())
        y = stream.prepare_mlp(stream.exit("out").hand_on(y @ WEIGHT), Read())
        return stream.finalize(stream.exit("down").hand_on_finalize(experts(y)), Norm(torch.ones(H), 1e-5))


def quantised_forward(x: Any) -> Any:
    stream = AddStream(CTX, 1)
    q = stream.prepare_attn(Exit(GROUP, "embedding", tokens=T).hand_on(x), Norm(torch.ones(H), 1e-5), Consumer())
    assert isinstance(q, QuantisedActivation)
    return q.data.float() * q.scale


forwards = pytest.mark.parametrize("forward", [add_forward, hyper_forward, quantised_forward])
backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=needs_compiler)])


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@forwards
@backends
def test_the_whole_forward_is_one_graph(forward: Callable[[Any], Any], backend: str) -> None:
    x = torch.randn((T, H), generator=torch.Generator().manual_seed(1))
    compiled = torch.compile(forward, fullgraph=True, backend=backend)
    want = forward(x.clone())
    for _ in range(2):
        torch.testing.assert_close(compiled(x.clone()), want, atol=1e-5, rtol=1e-5)


def test_a_lost_reduction_is_found_while_tracing() -> None:
    def forgetful(x: Any) -> Any:
        with ForwardScope():
            PartialSum(x, GROUP, "layer0.out")
            return x + 1

    with pytest.raises(Exception, match=r"still owed|Unconsumed"):
        torch.compile(forgetful, fullgraph=True, backend="eager")(torch.ones(T, H))


def test_a_sum_is_not_taken_twice_while_tracing() -> None:
    def greedy(x: Any) -> Any:
        owed = PartialSum(x, GROUP, "layer0.out")
        return owed.complete().tensor + owed.complete().tensor

    with pytest.raises(Exception, match=r"already consumed|ConsumedTwice"):
        torch.compile(greedy, fullgraph=True, backend="eager")(torch.ones(T, H))

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from counting import Counting

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.errors import BadOperands, ConsumedTwice, DeferredEmpty, UnaskedHandoff, Unconsumed
from fusionscope.fusion_runtime.ownership import (
    DeferredFinalize,
    Exit,
    FinalizeOperands,
    ForwardScope,
    Full,
    PartialSum,
)


def partial(what: str = "layer0.out") -> PartialSum:
    return PartialSum(torch.ones(2, 3), SingleGroup(), what)


def deferred() -> DeferredFinalize:
    operands = FinalizeOperands(torch.ones(4, 3), torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, 2), 1.0, None)
    return DeferredFinalize(operands, SingleGroup(), "layer3.experts")


def test_complete_reduces_over_its_own_group_once() -> None:
    class Doubling(SingleGroup):
        calls = 0

        def all_reduce(self, x: object) -> object:
            self.calls += 1
            return x + x  # type: ignore[operator]

    group = Doubling()
    full = PartialSum(torch.ones(2, 3), group).complete()
    assert isinstance(full, Full)
    assert torch.equal(full.tensor, torch.full((2, 3), 2.0))
    assert group.calls == 1


@pytest.mark.parametrize("first", ["take", "complete"])
@pytest.mark.parametrize("second", ["take", "complete"])
def test_second_consumption_names_the_sum(first: str, second: str) -> None:
    owed = partial()
    getattr(owed, first)()
    with pytest.raises(ConsumedTwice, match=r"layer0\.out was already consumed"):
        getattr(owed, second)()


def test_deferred_finalize_is_taken_once() -> None:
    owed = deferred()
    assert owed.take().scale == 1.0
    with pytest.raises(ConsumedTwice, match=r"layer3\.experts"):
        owed.take()


@pytest.mark.parametrize("make", [partial, deferred])
def test_scope_with_something_owed_raises(make: object) -> None:
    with pytest.raises(Unconsumed, match=r"1 reduction\(s\) still owed"), ForwardScope():
        make()  # type: ignore[operator]


def test_scope_in_which_all_is_consumed_passes() -> None:
    with ForwardScope() as scope:
        partial().complete()
        deferred().take()
    assert len(scope.owed) == 2


def test_inner_scope_owns_what_is_made_inside() -> None:
    with ForwardScope() as outer:
        with pytest.raises(Unconsumed), ForwardScope():
            partial()
        partial().complete()
    assert len(outer.owed) == 1


def test_an_error_inside_is_not_replaced() -> None:
    with pytest.raises(KeyError), ForwardScope():
        partial()
        raise KeyError("the real problem")


def test_without_a_scope_nothing_registers() -> None:
    owed = partial()
    with ForwardScope() as scope:
        pass
    assert scope.owed == [] and not owed.consumed


def test_an_exit_defers_where_somebody_takes_the_sum() -> None:
    group = SingleGroup()
    owed = Exit(group, "layer0.out", tokens=2).hand_on(torch.ones(2, 3))
    assert isinstance(owed, PartialSum) and owed.what == "layer0.out" and owed.group is group


@pytest.mark.parametrize(
    ("tokens", "options", "why"),
    [
        (0, {}, "an empty batch never defers"),
        (2, {"consumer": False}, "nobody downstream takes the sum"),
        (2, {"scattered": True}, "the residual is scattered over the ranks"),
    ],
)
def test_an_exit_that_reduces_at_once_says_why(tokens: int, options: dict[str, bool], why: str) -> None:
    group = Counting(2)
    exit = Exit(group, "layer0.out", tokens=tokens, **options)
    assert not exit.deferred and exit.why == why
    with ForwardScope():
        full = exit.hand_on(torch.ones(tokens, 3))
    assert isinstance(full, Full) and full.tensor.shape == (tokens, 3)
    assert group.reductions == (1 if tokens else 0)


def test_a_handoff_that_the_exit_did_not_ask_for_raises() -> None:
    operands = deferred().take()
    with pytest.raises(UnaskedHandoff, match=r"layer3\.down handed on a finalize .* \(nobody downstream"):
        Exit(SingleGroup(), "layer3.down", tokens=2, consumer=False).hand_on_finalize(operands)


def test_after_such_a_refusal_the_producer_sums_and_hands_on() -> None:
    exit = Exit(SingleGroup(), "layer3.down", tokens=2, consumer=False)
    with pytest.raises(UnaskedHandoff):
        exit.hand_on_finalize(deferred().take())
    assert isinstance(exit.hand_on(torch.ones(2, 3)), Full)


def test_what_was_taken_is_not_kept_until_the_forward_ends() -> None:
    import weakref

    with ForwardScope():
        x = torch.ones(2, 3)
        kept = weakref.ref(x)
        owed = PartialSum(x, SingleGroup())
        del x
        assert kept() is not None
        owed.take()
        assert kept() is None and owed.shape == (2, 3)


def test_an_exit_is_used_once() -> None:
    exit = Exit(SingleGroup(), "layer0.out", tokens=2)
    exit.hand_on(torch.ones(2, 3)).complete()  # type: ignore[union-attr]
    with pytest.raises(UnaskedHandoff, match="handed on before"):
        exit.hand_on(torch.ones(2, 3))


def test_nothing_is_owed_for_an_empty_batch() -> None:
    with pytest.raises(DeferredEmpty, match="an empty batch never defers"):
        PartialSum(torch.ones(0, 3), SingleGroup())
    empty = FinalizeOperands(torch.ones(4, 3), torch.zeros(0, 2, dtype=torch.int32), torch.ones(0, 2), 1.0, None)
    with pytest.raises(DeferredEmpty):
        DeferredFinalize(empty, SingleGroup())


def test_a_sum_is_completed_in_its_own_way() -> None:
    """A hybrid of expert and tensor parallelism sums over two groups, one after the other."""
    inner, outer = Counting(2), Counting(4)
    owed = PartialSum(torch.ones(1, 2), inner, "moe", lambda x: outer.all_reduce(inner.all_reduce(x)))
    assert owed.complete().tensor.tolist() == [[8.0, 8.0]]
    assert (inner.reductions, outer.reductions) == (1, 1)


def test_a_finalize_hands_its_completion_on() -> None:
    group = Counting(3)
    operands = deferred().take()
    owed = DeferredFinalize(operands, group, "moe", lambda x: x * 10)
    owed.take()
    assert owed.summed(torch.ones(1, 2)).complete().tensor.tolist() == [[10.0, 10.0]]
    assert group.reductions == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_replicated_shared_expert_is_there_on_one_rank(rank: int) -> None:
    group = Counting(2)
    group.rank = rank
    parts = deferred().take()
    whole = FinalizeOperands(parts.gemm2_out, parts.idx, parts.weights, 1.0, torch.ones(2, 3), replicated=True)
    assert (DeferredFinalize(whole, group).take().shared is None) == (rank != 0)


@pytest.mark.parametrize(
    ("idx", "weights"), [((4,), (4,)), ((2, 2), (4,)), ((2, 2), (2, 1))], ids=["flat", "flat weights", "other top-k"]
)
def test_indices_that_are_not_tokens_by_top_k_are_refused(idx: tuple[int, ...], weights: tuple[int, ...]) -> None:
    with pytest.raises(BadOperands, match="must both be"):
        FinalizeOperands(torch.ones(4, 3), torch.zeros(idx, dtype=torch.int32), torch.ones(weights), 1.0, None)


@pytest.mark.parametrize("consumer", [True, False])
def test_a_sum_has_two_dimensions(consumer: bool) -> None:
    """Engines pass [T, H] to fused boundaries, and a batch of sequences would be taken for tokens."""
    exit = Exit(SingleGroup(), "o_proj", tokens=2, consumer=consumer)
    with pytest.raises(BadOperands, match=r"o_proj is \(2, 3, 8\) and must be \[tokens, hidden\]"):
        exit.hand_on(torch.zeros(2, 3, 8))
    with pytest.raises(BadOperands, match="flatten it first"):
        PartialSum(torch.zeros(8), SingleGroup())
    assert exit.hand_on(torch.zeros(2, 8)) is not None

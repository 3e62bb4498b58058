"""Errors of the runtime's contract. They say which rule was broken and what to do about it."""

from __future__ import annotations


class RuntimeContractError(Exception):
    """Base of every error the fusion runtime raises on purpose."""


class ConsumedTwice(RuntimeContractError):
    """An owed reduction was taken a second time, so it would be summed over the ranks twice."""


class Unconsumed(RuntimeContractError):
    """A forward ended although somebody still owes an all-reduce."""


class WrongGroup(RuntimeContractError):
    """A boundary was given a partial sum that belongs to another tensor-parallel group."""


class NotReduced(RuntimeContractError):
    """An operation that needs the complete sum was given something else."""


class MixedWithScattered(RuntimeContractError):
    """A sum owed for every token met a residual that holds only this rank's share of the tokens, or the reverse."""


class DeferredEmpty(RuntimeContractError):
    """A reduction was deferred for a batch of no tokens, where a consumer might never run."""


class NoResidual(RuntimeContractError):
    """A partial sum reached the final norm without a residual."""


class UnaskedHandoff(RuntimeContractError):
    """A producer handed on something else than the exit had decided before it ran."""


class BadOperands(RuntimeContractError):
    """Operands whose shapes or dtypes a boundary cannot mean."""


class WrongQuantisation(RuntimeContractError):
    """A quantised activation met a linear that declares another key, or a width that its key does not divide."""


class BadNorm(RuntimeContractError):
    """A norm described in a way that would add Gemma's 1 twice, or with another epsilon than a path was built for."""


class RanksDisagree(RuntimeContractError):
    """The ranks of one group were given different paths or shapes, so they would wait for each other for ever."""


class NoSymmetricMemory(RuntimeContractError):
    """The ranks' GPUs cannot share memory, or the buffer that they share is full."""


class BadTuningTable(RuntimeContractError):
    """A table of measured times that cannot be read, or that belongs to another GPU."""


class BadPathChoice(RuntimeContractError):
    """`--paths` or FUSIONSCOPE_PATHS names a boundary, subtype or path that does not exist."""


class BadSpec(RuntimeContractError):
    """A model specification that cannot be built or split over the ranks as asked."""

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


class BadPathChoice(RuntimeContractError):
    """`--paths` or FUSIONSCOPE_PATHS names a boundary, subtype or path that does not exist."""


class BadSpec(RuntimeContractError):
    """A model specification that cannot be built or split over the ranks as asked."""

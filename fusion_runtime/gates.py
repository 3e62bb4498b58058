"""Gates: the conditions a path needs at a site, one code each, and the decline that names the one that failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Gate(StrEnum):
    """Reason codes. docs/gates.md says of each what fails it and what then runs."""

    NO_TOKENS = "no_tokens"
    ONE_RANK = "one_rank"
    LIBRARY_MISSING = "library_missing"
    OP_MISSING = "op_missing"
    LIBRARY_SIGNATURE = "library_signature"
    NO_DEVICE = "no_device"
    NO_COMPILER = "no_compiler"
    ARCH_UNSUPPORTED = "arch_unsupported"
    UNAVAILABLE_ON_A_RANK = "unavailable_on_a_rank"
    NOT_COVERED = "not_covered"
    GROUP_KIND = "group_kind"
    WORLD_SIZE = "world_size"
    PEER_MEMORY = "peer_memory"
    WORKSPACE_TOO_SMALL = "workspace_too_small"
    OWN_COMPLETION = "own_completion"
    TOKENS_OVER_CAP = "tokens_over_cap"
    TOKENS_UNDER_FLOOR = "tokens_under_floor"
    BYTES_OVER_CAP = "bytes_over_cap"
    HIDDEN_WIDTH = "hidden_width"
    ALIGNMENT = "alignment"
    NOT_CONTIGUOUS = "not_contiguous"
    DTYPE = "dtype"
    GAMMA_DTYPE = "gamma_dtype"
    NORM_UNSUPPORTED = "norm_unsupported"
    READ_UNSUPPORTED = "read_unsupported"
    NO_RESIDUAL = "no_residual"
    QUANT_UNSUPPORTED = "quant_unsupported"
    TOP_K = "top_k"


@dataclass(frozen=True)
class Decline:
    """A path steps back: the gate that failed and the reason, a sentence without its full stop."""

    gate: Gate
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} [{self.gate}]"

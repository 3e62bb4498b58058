"""run.json: everything about a run that is not a table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from fusionscope.profiler.errors import FusionScopeError

#: Raised by one when a field changes its meaning; new fields alone do not raise it.
SCHEMA_VERSION = 1

#: The labels that a number may carry, in the order in which they are shown.
LABELS = (
    "built-in model",
    "cpu",
    "emulated ranks",
    "scaled shapes",
    "truncated layers",
    "isolated bench",
    "modelled link",
    "graph mode",
    "eager",
    "incomplete",
)

#: Settings (`--set`) in which a run tells the graph size that its batch was padded to, and its tokens.
PADDED, TOKENS = ("graph_size", "padded"), ("tokens",)
#: Machine fact that tells the bandwidth that was measured of the GPU's memory, GB/s.
MEMORY_GBPS = "memory_gbps"

_PREFIXES = (
    "SGLANG_",
    "VLLM_",
    "FLASHINFER_",
    "AITER_",
    "NCCL_",
    "CUDA_",
    "TORCH_",
    "TRTLLM_",
    "FUSIONSCOPE_",
)
#: Where this tool keeps its files says nothing about a run.
_PLACES = ("FUSIONSCOPE_STORE", "FUSIONSCOPE_RULES")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


class BrokenRun(FusionScopeError):
    """A run folder whose run.json or tables are missing or damaged."""


class Decline(msgspec.Struct, kw_only=True):
    """A path that stepped back at one site, and which gate failed (`declined`, a sentence)."""

    boundary: str
    subtype: str = ""
    layer: int = -1
    path: str = ""
    declined: str = ""


class InputFile(msgspec.Struct, kw_only=True):
    """A file that a run was imported from. `path` is the file's name only: folders can be private.

    `modified` (ISO 8601, UTC) and `sha256` tell a leftover of an earlier recording from a new one.
    """

    path: str
    sha256: str
    bytes: int
    rank: int = -1
    modified: str = ""


class RunInfo(msgspec.Struct, kw_only=True):
    """What run.json holds. Unknown fields of a newer tool are ignored; a missing text is "", a number -1."""

    id: str = ""
    name: str = ""
    created: str = ""
    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    command: list[str] = []
    model: str = ""
    tp: int = -1
    batch: int = -1
    context: int = -1
    layers: int = -1
    #: "cuda", "cpu" or "" where unknown.
    device: str = ""
    profiler: str = ""
    tracing_mode: str = ""
    #: Boundary, or boundary:subtype, to the path that was asked for.
    paths: dict[str, str] = {}
    declines: list[Decline] = []
    #: GPU, driver, library versions, clocks and throttle reasons, as text.
    machine: dict[str, str] = {}
    #: Recorded environment variables of engines and libraries, without secrets.
    environment: dict[str, str] = {}
    labels: list[str] = []
    inputs: list[InputFile] = []
    #: Values that the user gave with `--set KEY=VALUE`.
    settings: dict[str, str] = {}
    #: How many of the trace's first replays are warm-up; -1 where the capture does not know.
    warmup_replays: int = -1
    emulated_ranks: bool = False
    imported: bool = False
    #: Ranks that the run should have; 0 where unknown.
    world_size: int = 0
    warnings: list[str] = []
    #: What the run answers to as `tag:NAME`; given after it was stored.
    tags: list[str] = []


def told_declines(info: RunInfo) -> list[str]:
    """One sentence for each reason for which a path stepped back, with the number of sites, most sites first."""
    counts = Counter(decline.declined for decline in info.declines)
    return [f"{count} {'site' if count == 1 else 'sites'}: {reason}" for reason, count in counts.most_common()]


def setting_number(settings: Mapping[str, str], *names: str) -> int:
    """The first of these settings that is a number without a sign; 0 where none is."""
    return next((int(settings[n]) for n in names if settings.get(n, "").isdecimal()), 0)


def tool_version() -> str:
    """Version of the installed package, "unknown" where it runs from loose files."""
    try:
        return version("fusionscope")
    except PackageNotFoundError:
        return "unknown"


def now() -> str:
    """The time as ISO text in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def recorded_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of the engines and libraries; names that look like secrets are dropped."""
    source = os.environ if environ is None else environ
    return {
        name: source[name]
        for name in sorted(source)
        if name.startswith(_PREFIXES) and name not in _PLACES and not any(word in name.upper() for word in _SECRET)
    }


def ordered_labels(labels: set[str] | list[str]) -> list[str]:
    """Known labels, once each, in the order in which they are shown.

    Raises ValueError for a label outside the vocabulary.
    """
    unknown = set(labels) - set(LABELS)
    if unknown:
        raise ValueError(f"unknown labels: {', '.join(sorted(unknown))}")
    return [label for label in LABELS if label in labels]


def encode(info: RunInfo) -> bytes:
    """run.json as bytes."""
    return msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n"


def read(folder: Path) -> RunInfo:
    """The run.json of a run folder.

    Raises BrokenRun where it is missing, damaged or written by a tool that this one cannot follow.
    """
    path = folder / "run.json"
    try:
        info = msgspec.json.decode(path.read_bytes(), type=RunInfo)
    except OSError as error:
        raise BrokenRun(
            f"{folder} has no readable run.json ({error.strerror}), so it is no run: make one of traces with "
            "`fusionscope import`, or see those that are with `fusionscope runs`."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenRun(
            f"{path} is damaged ({error}); capture or import the run again and delete this folder."
        ) from error
    if info.schema_version > SCHEMA_VERSION:
        raise BrokenRun(
            f"{path} has schema version {info.schema_version}, this tool reads up to {SCHEMA_VERSION}: "
            "update it with `pip install -U fusionscope`."
        )
    return info

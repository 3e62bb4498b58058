"""From what the user asked for to a plan: which device, which profiler, whether ranks are emulated."""

from __future__ import annotations

import importlib.util
from typing import Any

from fusionscope.profiler.capture import cupti, nsys, rocprof, wrappers
from fusionscope.profiler.capture.plan import DEVICES, PROFILERS, CaptureError, CapturePlan

#: Tokens in the cache of a sequence where the user names no number.
CONTEXT = {"cuda": 8192, "cpu": 1024}
#: Untraced timings: (blocks, replays in each). A step on the CPU takes long, so that there are fewer.
_TIMED = {"cuda": (8, 10), "cpu": (4, 6)}

_UNTRIED = "The built-in model under rocprofv3 has not been tried on an AMD GPU: please report what it does."


def make_plan(
    model: str,
    tp: int,
    batch: int = 4,
    context: int | None = None,
    paths: str | None = None,
    profiler: str = "auto",
    device: str = "auto",
    layers: int | None = None,
    replays: int = 12,
    graph_pass: bool = True,
) -> tuple[CapturePlan, list[str]]:
    """The plan, and sentences for the user about what was chosen.

    `paths` is BOUNDARY=PATH,… (None: $FUSIONSCOPE_PATHS). Raises CaptureError or a RuntimeContractError that names
    the next step where the machine, or the model, cannot do what was asked for.
    """
    for value, words, option in ((device, DEVICES, "--device"), (profiler, PROFILERS, "--profiler")):
        if value not in words:
            raise CaptureError(f"{option} takes one of {', '.join(words)}, not {value!r}.")
    for number, option in ((tp, "--tp"), (batch, "--batch"), (replays, "--replays")):
        if number < 1:
            raise CaptureError(f"{option} must be at least 1, not {number}.")
    if layers is not None and layers < 1:
        raise CaptureError(f"--layers must be at least 1, not {layers}; leave it out for all of them.")
    torch = need_torch()
    from fusionscope.fusion_runtime.context import PathChoice
    from fusionscope.profiler.capture.forward import spec_of

    on = device_of(torch, device)
    hip = bool(getattr(torch.version, "hip", None))
    chosen, notes = _hip_profiler(profiler) if on == "cuda" and hip else _profiler(profiler, on)
    if device == "auto" and on == "cpu":
        notes.append("device: cpu (torch sees no CUDA GPU)")
    spec = spec_of(model, on, layers or 0)
    if layers is not None and layers > (whole := spec_of(model, on, 0).layers):
        raise CaptureError(f"--layers {layers} is more than the {whole} of {model}; leave it out for all of them.")
    length = CONTEXT[on] if context is None else context
    if on == "cpu" and spec.is_scaled and length > spec.max_context:
        notes.append(f"context: {spec.max_context} in place of {length}, as the shapes are scaled for the CPU")
        length = spec.max_context
    spec.check(tp, batch, length)
    choice = PathChoice.from_environment() if paths is None else PathChoice.parse(paths)
    gpus = torch.cuda.device_count() if on == "cuda" else 0
    plan = CapturePlan(
        model=model,
        tp=tp,
        batch=batch,
        context=length,
        device=on,
        profiler=chosen,
        paths=dict(choice.chosen),
        layers=layers or 0,
        replays=replays,
        timed_blocks=_TIMED[on][0],
        timed_replays=_TIMED[on][1],
        graph_pass=graph_pass and chosen == "nsys",
        emulated=on == "cuda" and tp > gpus,
    )
    if plan.emulated:
        notes.append(f"ranks: rank 0 of {tp} with emulated peers, since the machine has {gpus} GPU(s)")
    return plan, notes


def need_torch() -> Any:
    """torch, which the base install does not bring. Raises CaptureError where it is missing."""
    if importlib.util.find_spec("torch") is None:
        raise CaptureError("Capturing needs PyTorch, which is not installed: pip install 'fusionscope[runtime]'.")
    import torch

    return torch


def device_of(torch: Any, asked: str) -> str:
    """The device that `--device` means here. Raises CaptureError where there is no GPU and one is asked for."""
    has_cuda = bool(torch.cuda.is_available())
    if asked == "cuda" and not has_cuda:
        raise CaptureError(
            "--device cuda needs a GPU that torch can use, and torch sees none: check `nvidia-smi` and that torch is "
            "a CUDA build, or use --device cpu."
        )
    if asked == "auto":
        return "cuda" if has_cuda else "cpu"
    return asked


def _profiler(asked: str, device: str) -> tuple[str, list[str]]:
    """The profiler, and sentences about the choice."""
    if device == "cpu":
        if asked in ("nsys", "cupti", "rocprofv3"):
            raise CaptureError(f"--profiler {asked} records GPUs only: use --profiler torch on the CPU.")
        return "torch", ["profiler: torch"]
    if asked == "rocprofv3":
        raise CaptureError("--profiler rocprofv3 needs a HIP build of torch; this is a CUDA build: use nsys or cupti.")
    if asked == "nsys":
        return asked, [f"profiler: nsys ({nsys.require()})"]
    if asked == "cupti":
        cupti.require()
        return asked, ["profiler: cupti"]
    if asked == "torch":
        return asked, ["profiler: torch"]
    without_nsys = nsys.unavailable()
    if not without_nsys:
        return "nsys", [f"profiler: nsys ({nsys.find()})"]
    without_cupti = cupti.unavailable()
    if not without_cupti:
        return "cupti", [f"profiler: cupti ({without_nsys})"]
    return "torch", [f"profiler: torch ({without_nsys}; {without_cupti})"]


def _hip_profiler(asked: str) -> tuple[str, list[str]]:
    """The same on a HIP build of torch."""
    if asked in ("nsys", "cupti"):
        raise CaptureError(f"--profiler {asked} records NVIDIA GPUs: use --profiler rocprofv3 or torch with ROCm.")
    found = rocprof.require() if asked == "rocprofv3" else wrappers.find_rocprofv3() if asked == "auto" else None
    if found is not None:
        return "rocprofv3", [f"profiler: rocprofv3 ({found})", _UNTRIED]
    return "torch", ["profiler: torch" if asked == "torch" else "profiler: torch (rocprofv3 is not installed)"]

"""From what the user asked for to a plan that measures two arms of the built-in model."""

from __future__ import annotations

from fusionscope.profiler.capture.arms import ArmsPlan
from fusionscope.profiler.capture.choose import make_plan
from fusionscope.profiler.capture.plan import CaptureError

SPLIT = "split"


def make_arms_plan(
    model: str,
    tp: int,
    base: str,
    candidate: str,
    batch: int = 4,
    context: int | None = None,
    layers: int | None = None,
    *,
    blocks: int = 12,
    replays: int = 5,
    seconds: float = 0.0,
) -> tuple[ArmsPlan, list[str]]:
    """The plan, and sentences for the user about what was chosen.

    `base` is `split` or "" for all split, else as --paths. Raises CaptureError where there is no GPU or the arms do not
    differ, and as `make_plan`.
    """
    if not candidate:
        raise CaptureError("--candidate is missing: name the paths to measure, as in --candidate mhc_post=triton.")
    require_gpu("Measuring the built-in model", "two commands can be measured anywhere: fusionscope ab -- A -- B")
    from fusionscope.fusion_runtime.context import PathChoice

    plan, notes = make_plan(model, tp, batch, context, "" if base == SPLIT else base, "torch", "cuda", layers)
    chosen = dict(PathChoice.parse(candidate).chosen)
    if chosen == plan.paths:
        raise CaptureError("--base and --candidate name the same paths: give the candidate a path of its own.")
    made = ArmsPlan(base=plan, candidate=chosen, blocks=blocks, replays=replays, seconds=seconds)
    return made, [note for note in notes if not note.startswith("profiler")]


def require_gpu(what: str, instead: str = "") -> None:
    """Raises CaptureError, with the next step, where torch sees no CUDA GPU."""
    import importlib.util

    missing = ""
    if importlib.util.find_spec("torch") is None:
        missing = "PyTorch is not installed (pip install 'fusionscope[runtime,cuda]')"
    else:
        import torch

        if not torch.cuda.is_available():
            missing = "torch sees no CUDA GPU on this machine"
    if missing:
        raise CaptureError(f"{what} needs a GPU, and {missing}{'; ' + instead if instead else ''}.")

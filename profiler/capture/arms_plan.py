"""From what the user asked for to a plan that measures two arms of the built-in model."""

from __future__ import annotations

from typing import Any

from fusionscope.profiler.capture.arms import ArmsPlan
from fusionscope.profiler.capture.choose import make_plan
from fusionscope.profiler.capture.plan import CaptureError
from fusionscope.profiler.store import Store

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
    captures: int = 4,
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
    if seconds and plan.processes > 1:
        raise CaptureError("--seconds ends real ranks at different blocks, and one would wait for ever: give --blocks.")
    made = ArmsPlan(base=plan, candidate=chosen, blocks=blocks, replays=replays, seconds=seconds, captures=captures)
    return made, [note for note in notes if not note.startswith("profiler")]


def make_knockout_plan(
    model: str,
    tp: int,
    boundaries: list[str],
    batch: int = 4,
    context: int | None = None,
    layers: int | None = None,
    paths: str = "",
    *,
    blocks: int = 12,
    replays: int = 5,
) -> tuple[ArmsPlan, list[str]]:
    """The plan, and sentences for the user; `boundaries` are KIND or KIND:SUBTYPE, none for every kind and subtype.

    Raises CaptureError where there is no GPU, the model lacks a boundary, or other ranks would wait for a disabled
    all-reduce for ever; and as `make_plan`.
    """
    require_gpu("A knock-out", "in your own process measure.knockout does it on your graph (docs/measuring.md)")
    from fusionscope.profiler.capture.forward import spec_of

    plan, notes = make_plan(model, tp, batch, context, paths, "torch", "cuda", layers)
    if plan.processes > 1:
        raise CaptureError(
            "A knock-out of several real ranks is not built: run it with one visible GPU, which emulates."
        )
    there = {(kind, subtype) for kind, subtype, _, _ in spec_of(model, "cuda", layers or 0).boundary_map()}
    chosen = boundaries or targets(there)
    for name in chosen:
        kind, _, subtype = name.partition(":")
        if not any(kind == k and subtype in ("", s) for k, s in there):
            raise CaptureError(f"{model} has 0 sites of {name}: choose {', '.join(targets(there))}.")
    made = ArmsPlan(base=plan, knockouts=chosen, blocks=blocks, replays=replays)
    return made, [note for note in notes if not note.startswith("profiler")]


def targets(there: set[tuple[str, str]]) -> list[str]:
    """Every kind, and every subtype of a kind that has several."""
    found = []
    for kind in sorted({k for k, _ in there}):
        subtypes = sorted(s for k, s in there if k == kind)
        found += [kind, *(f"{kind}:{s}" for s in subtypes if len(subtypes) > 1)]
    return found


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


def shape_of_run(what: str, asked: tuple[Any, ...], store: Store) -> tuple[str, tuple[Any, ...]]:
    """The model that `what` names, and (tp, batch, context, layers, paths): a run's own, else what was asked for.

    Raises CaptureError for a run of another engine, and as `Store.load` where `what` is neither model nor run.
    """
    import importlib.util

    if importlib.util.find_spec("torch") is not None:
        from fusionscope.fusion_runtime.decode.spec import MODELS

        if what in MODELS:
            return what, asked
    info = store.load(what).info
    if "built-in model" not in info.labels:
        raise CaptureError(
            f"{what} is a run of another engine, whose graph is not here: in the process that holds it, "
            "measure.knockout does this (docs/measuring.md)."
        )
    paths = ",".join(f"{site}={path}" for site, path in info.paths.items())
    layers = info.layers if "truncated layers" in info.labels else None
    return info.model, (info.tp, info.batch, info.context, layers, paths)

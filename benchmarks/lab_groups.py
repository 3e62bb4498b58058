"""The groups of the lab: cases that share one split graph, how each graph is built, and the order in which they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import lab_cases
import torch

from fusionscope.fusion_runtime.decode import graph as graphs

#: The first layers of a model that stand for it, enough for each kind of its layers.
SHALLOW = {"glm-5.3-flash": 12, "deepseek-v3": 6, "glm-5.2": 6, "qwen3.5-moe": 8, "llama": 8}
WHOLE = "glm-5.3-flash"


#: Captures a graph, its buffers behind others of so many bytes.
Capture = Callable[[Sequence[int]], lab_cases.Built]


@dataclasses.dataclass
class Candidate:
    """A case of a group: how its fused graph is built, and its sites in the split graph."""

    case: str
    boundary: str
    held_out: bool
    fused: Capture
    facts: dict[str, Any]
    #: Sites in the split graph and in the fused one.
    sites: Callable[[lab_cases.Built], list[tuple[int, int]]]
    moved: float = 0.0
    bench: lab_cases.Chain | None = None
    chain: lab_cases.Chain | None = None


@dataclasses.dataclass
class Group:
    """Cases that share one split graph."""

    name: str
    split: Capture
    candidates: list[Candidate]


Make = Callable[[lab_cases.Weights], Group]


def chain_group(case: lab_cases.Case, pool: lab_cases.Weights) -> Group:
    """A chain and its one candidate."""
    whole, bench = lab_cases.Chain(case, pool), lab_cases.Chain(case, pool, bench=True)
    facts = {**dataclasses.asdict(case), "kind": "chain"}
    one = Candidate(
        case.id, case.boundary, case.held_out, lambda padding: whole.build(True, padding), facts,
        lambda built: built.sites,
        moved(case), bench, whole,
    )  # fmt: skip
    return Group(case.id, lambda padding: whole.build(False, padding), [one])


def moved(case: lab_cases.Case) -> float:
    """Bytes that the fused boundary reads and writes at a site, at least."""
    shape = lab_cases.SHAPES[case.shape]
    row, inner = 2 * shape.hidden, 2 * shape.inner
    by = {
        "add_norm": 4 * row,
        "fi_add_norm": 4 * row,
        "norm_fp8": 3.5 * row,
        "fi_norm_fp8": 3.5 * row,
        "ar_norm": (lab_cases.TP + 4) * row,
        "pull_norm": (lab_cases.TP + 3) * row,
        "finalize_add": (lab_cases.TOP_K + 2) * row,
        "moe_finalize": (lab_cases.TOP_K + lab_cases.TP + 10) * row,
        "mhc_post": (lab_cases.TP + 10) * row,
        "silu_mul": 3 * inner,
        "silu_fp8": 2.5 * inner,
    }
    return case.batch * by[case.boundary]


#: Candidates of the built-in models by their short name: what is fused, as BOUNDARY or BOUNDARY:SUBTYPE.
MODEL_PATHS: dict[str, tuple[str, ...]] = {
    "mhc_post": ("mhc_post",),
    "attn_exit": ("mhc_post:attn_exit",),
    "ffn_exit": ("mhc_post:ffn_exit",),
    "moe_finalize": ("moe_finalize",),
    "ar_norm": ("ar_norm",),
    "attn_exit+moe_finalize": ("mhc_post:attn_exit", "moe_finalize"),
    "ar_norm+moe_finalize": ("ar_norm", "moe_finalize"),
}
#: Rows of hidden size that a fused site moves at least.
MODEL_ROWS = {"mhc_post": 14, "moe_finalize": 22, "ar_norm": 8}


def model_group(name: str, layers: int, batch: int, shorts: Sequence[str] = (), held_out: bool = True) -> Group:
    """The built-in forward: weights are made once, and captured with each choice of paths.

    `shorts` are keys of MODEL_PATHS, all that the model has if there are none.
    """
    from fusionscope.fusion_runtime.comm.loopback import Loopback
    from fusionscope.fusion_runtime.context import PathChoice
    from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
    from fusionscope.fusion_runtime.decode.spec import MODELS

    spec = MODELS[name].truncated(layers) if layers else MODELS[name]
    loop = Loopback(lab_cases.TP, "cuda")
    model = DecodeModel(spec, loop, batch, 8192, "cuda", make_context(loop, "cuda", PathChoice()))

    def captured(paths: str, padding: Sequence[int]) -> lab_cases.Built:
        model.ctx = make_context(loop, "cuda", PathChoice.parse(paths))
        made = graphs.capture(model, padding)
        for _ in range(3):
            made.replay()
        torch.cuda.synchronize()
        return lab_cases.Built(made.graph, made.site_rows, [made])  # type: ignore[arg-type]

    def candidate(short: str, fused: tuple[str, ...]) -> Candidate:
        paths = ",".join(f"{site}=triton" for site in fused)
        boundaries = [site.partition(":")[0] for site in fused]
        facts = {"kind": "model", "model": name, "layers": spec.layers, "batch": batch, "paths": paths,
                 "boundary": short, "shape": name, "streams": 1, "pdl": False}  # fmt: skip
        moves = 2 * spec.hidden * batch * sum(MODEL_ROWS[b] for b in boundaries) / len(boundaries)
        title = f"{name}.l{spec.layers}.{short}.b{batch}"
        return Candidate(
            title, "+".join(dict.fromkeys(boundaries)), held_out, lambda padding: captured(paths, padding), facts,
            lambda built: of_rows(built.sites, fused), moves,
        )  # fmt: skip

    chosen = [candidate(short, MODEL_PATHS[short]) for short in candidates_of(spec, shorts)]
    return Group(f"{name}.l{spec.layers}.b{batch}", lambda padding: captured("", padding), chosen)


def candidates_of(spec: Any, shorts: Sequence[str] = ()) -> list[str]:
    """The keys of MODEL_PATHS (of `shorts`, if there are any) whose boundaries a model has."""
    there = {site[0] for site in spec.boundary_map()}
    return [
        short
        for short, fused in MODEL_PATHS.items()
        if {site.partition(":")[0] for site in fused} <= there and (not shorts or short in shorts)
    ]


def of_rows(rows: Sequence[Any], fused: Sequence[str]) -> list[tuple[int, int]]:
    """Node ranges of the sites (rows of the recorder) that BOUNDARY or BOUNDARY:SUBTYPE name, none inside another."""
    ranges = [
        (row.first_node, row.last_node)
        for row in rows
        if row.boundary in fused or f"{row.boundary}:{row.subtype}" in fused
    ]
    return sorted(
        r for r in set(ranges) if not any(other != r and other[0] <= r[0] and r[1] <= other[1] for other in ranges)
    )


def groups(which: str) -> list[tuple[str, Make]]:
    """Every group of a set ("first" to "fourth") by name, in an order that any early end leaves mixed."""
    if which == "first":
        return _first()
    if which == "second":
        return _mixed(lab_cases.second_chains(), second_models())
    if which == "third":
        return _mixed(lab_cases.third_chains(), third_models())
    return _mixed(lab_cases.fourth_chains(), fourth_models())


def _chains(cases: Sequence[lab_cases.Case]) -> list[tuple[str, Make]]:
    return [(case.id, lambda pool, c=case: chain_group(c, pool)) for case in cases]  # type: ignore[misc]


def _model(name: str, layers: int, batch: int, shorts: Sequence[str] = (), held_out: bool = True) -> tuple[str, Make]:
    from fusionscope.fusion_runtime.decode.spec import MODELS

    made = f"{name}.l{layers or MODELS[name].layers}.b{batch}"
    return made, lambda pool: model_group(name, layers, batch, shorts, held_out)


def _first() -> list[tuple[str, Make]]:
    """The set of `h200_lab.jsonl`, the batches 1 and 16 last."""
    listed = lab_cases.chains()
    late = [case for case in listed if case.held_out and case.batch in (1, 16)]
    held = [case for case in listed if case.held_out and case not in late]
    models = [(name, SHALLOW[name]) for name in ("glm-5.3-flash", "deepseek-v3")]
    shorts = [s for s in MODEL_PATHS if "+" not in s]
    tuning = [_model(name, layers, 8, shorts, held_out=False) for name, layers in models]
    by_batch = {batch: [_model(name, layers, batch, shorts) for name, layers in models] for batch in (4, 64, 16, 1)}
    found = _chains([case for case in listed if not case.held_out]) + tuning + by_batch[4]
    return found + _chains(held) + _chains(late) + by_batch[64] + by_batch[16] + by_batch[1]


#: (model, layers or 0 for all, batch, candidates).
Model = tuple[str, int, int, list[str]]


def second_models() -> list[Model]:
    """Of batch 4 the first set had all but the pairs of two models; the whole model's mhc_post was known too."""
    found = models((16, 1, 64, 4), {4})
    found.insert(10, _whole(4))
    return found


def third_models() -> list[Model]:
    """Of batch 8 the first set had all but the pairs of two models, to tune on."""
    found = models((8, 32, 2), {8})
    found.insert(7, _whole(16))
    found.append(_whole(1))
    return found


def fourth_models() -> list[Model]:
    """Batches that no set held."""
    found = models((12, 48), set())
    found.insert(5, _whole(8))
    return found


def models(batches: Sequence[int], seen: set[int]) -> list[Model]:
    """The shallow models; of those that the first set had, only pairs at the batches it had seen."""
    from fusionscope.fusion_runtime.decode.spec import MODELS

    found = []
    for batch in batches:
        for name, layers in SHALLOW.items():
            pairs = batch in seen and name in ("glm-5.3-flash", "deepseek-v3")
            listed = candidates_of(MODELS[name].truncated(layers))
            found.append((name, layers, batch, [s for s in listed if "+" in s or not pairs]))
    return found


def _whole(batch: int) -> Model:
    from fusionscope.fusion_runtime.decode.spec import MODELS

    return WHOLE, 0, batch, [s for s in candidates_of(MODELS[WHOLE]) if s != "mhc_post"]


def _mixed(cases: Sequence[lab_cases.Case], listed_models: Sequence[Model]) -> list[tuple[str, Make]]:
    """Kinds of cases mixed evenly."""
    kinds: dict[tuple[Any, ...], list[lab_cases.Case]] = {}
    for case in cases:
        kinds.setdefault((case.boundary.startswith("fi_"), case.streams, case.pdl), []).append(case)
    listed = [_chains(mine) for mine in kinds.values()]
    listed.append([_model(*model) for model in listed_models])
    placed = [((k + 0.5) / len(mine), one) for mine in listed for k, one in enumerate(mine)]
    return [one for _, one in sorted(placed, key=lambda pair: pair[0])]

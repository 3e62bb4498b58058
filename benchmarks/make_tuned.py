"""From measured kernels to what people read and what `auto` reads: Markdown tables and the package's tuning table.

    python benchmarks/make_tuned.py [--tp benchmarks/results/h200_tp2_kernels.json] \\
        [--kernels benchmarks/results/h200_kernels.json] [--tuned benchmarks/results/h200_tuned.json] \\
        [--joined benchmarks/results/h200_mhc_post_pre.json]

Reads what benchmarks/tp.py, kernels.py, and (as --joined) mhc_post_pre.py and tp_post_pre.py wrote; writes a .md beside
each of the first two, and the rows of fusion_runtime/tuned/<gpu>.json. Of our kernels' arms the one counts that the
library itself would launch. Rows that `fusionscope tune --out` wrote come before theirs: every path is in them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusionscope.fusion_runtime import tuning
from fusionscope.fusion_runtime.comm.channel import default_block, row_block
from fusionscope.fusion_runtime.kernels.launch_mhc_pre import tile_for
from fusionscope.fusion_runtime.kernels.launch_norm import POST_BLOCK, POST_WARPS, row_warps
from fusionscope.fusion_runtime.paths.triton import MAX_JOINED_TOKENS
from fusionscope.fusion_runtime.tuning import Row, Table

RESULTS = Path(__file__).parent / "results"
VERSIONS = ("torch", "triton", "cuda", "hip")


def tp_rows(told: dict[str, Any]) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Rows over real GPUs: split is NCCL and the separate kernel."""
    tp = told["ranks"]
    for row in told["rows"]:
        if row["what"] not in ("ar_norm", "mhc_post"):
            continue
        normed = row["what"] == "ar_norm"
        block = row_block(row["hidden"]) if normed else default_block(row["hidden"])
        end = "norm" if normed else "post"
        us = {"split": row[f"nccl+{end}"], "triton": row[f"ours/{block}"]}
        if normed and "flashinfer" in row:
            us["flashinfer"] = row["flashinfer"]
        yield Row(row["what"], row["hidden"], tp, row["tokens"], rounded(us)), row | {"second": row[f"oneshot+{end}"]}


def emulated_rows(told: dict[str, Any]) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Rows of four ranks on one GPU, in place."""
    for row in told["rows"]:
        if not row["what"].startswith("loopback4"):
            continue
        normed = row["what"].endswith("norm")
        block = row_block(row["hidden"]) if normed else default_block(row["hidden"])
        us = {"split": row["split"], "triton": row[f"ours/{block}"]}
        boundary = "ar_norm" if normed else "mhc_post"
        yield Row(boundary, row["hidden"], 4, row["tokens"], rounded(us), emulated=True), row


def one_rank_rows(told: dict[str, Any]) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Rows of one rank, where split is our kernel too and FlashInfer's path copies the residual besides."""
    for row in told["rows"]:
        boundary = {"norm": "ar_norm", "post": "mhc_post"}.get(row["what"])
        if boundary is not None:
            us = {"split": own(row), "flashinfer": row["flashinfer"]}
            yield Row(boundary, row["hidden"], 1, row["tokens"], rounded(us)), row


def joined_rows(told: dict[str, Any]) -> Iterator[Row]:
    """Rows of mhc_post_pre: of real ranks, or of four on one GPU."""
    for row in told["rows"]:
        tile = tile_for(row.get("tokens", 1), told.get("hidden", 0))
        if row["what"] == "site":
            us = {"split": row["split"], "triton": row[f"joined/{tile.block}x{tile.rows}x{tile.warps}"]}
            yield Row("mhc_post_pre", told["hidden"], 4, row["tokens"], rounded(us), emulated=True)
        elif row["what"] == "mhc_post_pre" and row["tokens"] <= MAX_JOINED_TOKENS:
            us = {"split": row["nccl"], "triton": row["joined"]}
            yield Row("mhc_post_pre", row["hidden"], told["ranks"], row["tokens"], rounded(us))


def rounded(us: dict[str, float]) -> dict[str, float]:
    return {path: round(time, 3) for path, time in us.items()}


def own(row: dict[str, Any]) -> float:
    """Our arm of a row of one rank."""
    if row["what"] == "post":
        return float(row[f"ours/{POST_BLOCK}x{POST_WARPS}"])
    mode = {"norm": 0, "norm+fp8": 1, "norm+fp8_groups": 2}[row["what"]]
    return float(row[f"ours/{row_warps(row['hidden'], mode)}"])


def table(head: list[str], lines: list[list[Any]]) -> str:
    shown = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *shown]) + "\n"


def tp_markdown(told: dict[str, Any]) -> str:
    """Microseconds a site, net of the copies, and ratios."""
    head = ["boundary", "hidden", "tokens", "NCCL, then the kernel", "torch one-shot, then the kernel", "FlashInfer",
            "ours", "split / ours", "FlashInfer / ours"]  # fmt: skip
    lines = []
    for row, raw in tp_rows(told):
        ours, theirs = row.us["triton"], row.us.get("flashinfer")
        against = [theirs or "", ours, f"{row.us['split'] / ours:.2f} x", f"{theirs / ours:.2f} x" if theirs else ""]
        lines.append([row.boundary, row.hidden, row.tokens, row.us["split"], raw["second"], *against])
    lines.sort(key=lambda line: line[:3])
    said = (
        "Microseconds of one site, net of the copies that place its inputs; median of the replays, mean of the ranks."
    )
    return f"{said}\n\n{table(head, lines)}"


FLOOR = (
    "Microseconds of one site, net of the copies that place its inputs. Floor: a launch that does nothing, or the "
    "bytes over the {:.1f} TB/s that a large copy reached in the same run, whichever is longer; inputs that were just "
    "placed lie in the L2 cache, so that large sites can be faster than the second."
)


def kernels_markdown(told: dict[str, Any]) -> str:
    """One rank's kernels, then the emulated ranks."""
    head = ["kernel", "hidden", "tokens", "floor", "split", "FlashInfer", "ours", "split / ours", "FlashInfer / ours"]
    lines = []
    for row in told["rows"]:
        if row["what"].startswith("loopback"):
            continue
        ours, theirs, split = own(row), row.get("flashinfer"), row.get("split-2", row.get("split"))
        floor = max(row["floor_us"], row["launch"])
        ratios = [f"{other / ours:.2f} x" if other else "" for other in (split, theirs)]
        lines.append([row["what"], row["hidden"], row["tokens"], floor, split or "", theirs or "", ours, *ratios])
    lines.sort(key=lambda line: line[:3])
    emulated = [
        [raw["what"], row.hidden, row.tokens, raw["reduce"], raw["after"], row.us["split"], row.us["triton"],
         f"{row.us['split'] / row.us['triton']:.2f} x"]
        for row, raw in emulated_rows(told)
    ]  # fmt: skip
    emulated.sort(key=lambda line: line[:3])
    second = table(["4 emulated ranks, in place", "hidden", "tokens", "all-reduce alone", "norm or post alone", "split",
                    "ours", "split / ours"], emulated)  # fmt: skip
    said = FLOOR.format(told["bytes_per_second"] / 1e12)
    return f"{said} {told.get('note', '')}\n\n{table(head, lines)}\n{second}"


def main() -> None:
    """Write what the given results allow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=Path, nargs="*", default=[RESULTS / "h200_tp2_kernels.json"])
    parser.add_argument("--kernels", type=Path, nargs="*", default=[RESULTS / "h200_kernels.json"])
    joined = [RESULTS / "h200_mhc_post_pre.json", *RESULTS.glob("h200_tp*_post_pre.json")]
    parser.add_argument("--joined", type=Path, nargs="*", default=joined)
    parser.add_argument("--tuned", type=Path, nargs="*", default=sorted(RESULTS.glob("h200*_tuned.json")))
    options = parser.parse_args()
    tables: dict[str, Table] = {}
    for paths, markdown, rows_of in (
        (options.tp, tp_markdown, tp_rows),
        (options.kernels, kernels_markdown, lambda told: [*one_rank_rows(told), *emulated_rows(told)]),
    ):
        for path in paths:
            told = json.loads(path.read_text())
            path.with_suffix(".md").write_text(markdown(told))
            gpu = told["machine"]["gpu"]
            rows = [row for row, _ in rows_of(told)]
            before = tables.get(gpu, Table(gpu))
            versions = {key: told["machine"][key] for key in VERSIONS if told["machine"].get(key)}
            tables[gpu] = Table(gpu, tuning.merged(before.rows, rows), {**before.measured, **versions})
    for path in options.joined:
        told = json.loads(path.read_text())
        before = tables[told["machine"]["gpu"]]
        tables[before.gpu] = Table(before.gpu, tuning.merged(before.rows, joined_rows(told)), before.measured)
    for path in options.tuned:
        more = tuning.read(path)
        before = tables.get(more.gpu, Table(more.gpu))
        merged = tuning.merged(more.rows, before.rows)
        tables[more.gpu] = Table(more.gpu, merged, {**more.measured, **before.measured})
    for gpu, made in tables.items():
        tuning.write(made, tuning.SHIPPED / f"{tuning.slug(gpu)}.json")
        print("\n".join(made.gates()))


if __name__ == "__main__":
    main()

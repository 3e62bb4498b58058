"""Captures of real ranks: split against fused paths, every rank traced, predicted against measured. As JSON.

    python benchmarks/tp_captures.py --tp 2 --store STORE --out benchmarks/results/h200_tp2_captures.json
    python benchmarks/tp_captures.py --tp 2 --device cpu --models tiny --arms inductor --profilers torch --store … …

For every model and profiler one split run and one for each fused arm, of the first --layers layers. For each run, rank
by rank: launches, kernel time, span, all-reduces as transfer and wait, and whether the ranks' launches are equal. For
each fused arm: the saving that the split run and the fused site's time predict, and the difference of the untraced
medians, in percentage points of the step. A capture that fails is named and the others go on; exit code 1 if any did.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from batches import row
from ranks import described

from fusionscope.profiler.store import Run, Store

COMMAND = [sys.executable, "-c", "from fusionscope.cli.main import run; run()"]
#: The boundary whose fusion is looked at, by how the model carries its residual.
BOUNDARY = {"glm-5.3-flash": "mhc_post", "tiny": "mhc_post"}
#: Paths of a boundary that are one arm, where it is not one path for one boundary.
ARMS = {("ar_norm", "flashinfer"): "ar_norm=flashinfer,moe_finalize=flashinfer"}
MACHINE = ("gpu", "gpus", "driver", "cuda", "torch", "triton")


def main() -> int:
    """Capture, analyse, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--models", default="glm-5.3-flash,deepseek-v3")
    parser.add_argument("--arms", default="triton,flashinfer")
    parser.add_argument("--profilers", default="cupti,nsys")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    told: dict[str, Any] = {"what": "real ranks, times in ns", "runs": [], "predicted": [], "failed": []}
    for model in options.models.split(","):
        boundary = BOUNDARY.get(model, "ar_norm")
        for profiler in options.profilers.split(","):
            split = captured(options, told, model, profiler, f"{boundary}=split")
            for arm in options.arms.split(","):
                if boundary == "mhc_post" and arm == "flashinfer":
                    continue  # no fused operation below compute capability 10
                paths = ARMS.get((boundary, arm), f"{boundary}={arm}")
                fused = captured(options, told, model, profiler, paths)
                if split is not None and fused is not None:
                    told["predicted"].append(compared(split, fused, boundary, arm))
                options.out.write_text(json.dumps(told, indent=1) + "\n")
    errors = [abs(line["error_points"]) for line in told["predicted"]]
    if errors:
        told["mean_absolute_error_points"] = sum(errors) / len(errors)
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    for line in told["predicted"]:
        print(
            {key: line[key] for key in ("model", "profiler", "arm", "predicted_part", "measured_part", "error_points")}
        )
    print(*told["failed"], sep="\n")
    return 1 if told["failed"] else 0


def captured(options: argparse.Namespace, told: dict[str, Any], model: str, profiler: str, paths: str) -> Run | None:
    """One capture by the command itself, described; None where it failed."""
    chosen = {
        "--model": model,
        "--tp": options.tp,
        "--batch": options.batch,
        "--layers": options.layers,
        "--profiler": profiler,
        "--device": options.device,
        "--paths": paths,
        "--store": options.store,
    }
    line = [*COMMAND, "capture", "--json", *(str(part) for pair in chosen.items() for part in pair)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        told["failed"].append(f"{model} under {profiler} with {paths}: {last[0]}")
        return None
    run = Store(options.store).load(json.loads(done.stdout)["run"])
    told.setdefault("machine", {key: value for key, value in run.info.machine.items() if key in MACHINE})
    one = described(run)
    one["launches_equal"] = len({rank["launches"] for rank in one["ranks"]}) == 1
    told["runs"].append(one)
    return run


def compared(split: Run, fused: Run, boundary: str, arm: str) -> dict[str, Any]:
    """Predicted from the split run and the fused site's time; measured as the difference of untraced medians."""
    made = row(split.info.batch, split, fused, boundary)
    step = made["split"]["untraced_ns"]
    predicted, measured = made["predicted"]["saving_ns"] / step, made["measured"]["saving_ns"] / step
    return {
        "model": split.info.model,
        "profiler": split.info.profiler,
        "arm": arm,
        "boundary": boundary,
        "predicted_part": predicted,
        "measured_part": measured,
        "error_points": (predicted - measured) * 100,
        **made,
    }


if __name__ == "__main__":
    sys.exit(main())

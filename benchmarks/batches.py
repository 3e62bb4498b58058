"""How much fusing mhc_post saves at several batch sizes, predicted from the split run and measured: a table as JSON.

    python benchmarks/batches.py STORE... --out benchmarks/results/h200_glm_batches.json

Expects captures of all 45 layers under CUPTI, a split and a fused one for every batch B of 1, 4, 16, 64:

    fusionscope capture --model glm-5.3-flash --tp 4 --batch B --profiler cupti --paths mhc_post=split --store STORE
    fusionscope capture --model glm-5.3-flash --tp 4 --batch B --profiler cupti --paths mhc_post=triton --store STORE

The prediction knows the split run and one number of the fused one: the median time of a fused site in its graph.
Exit code 2 where a capture is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from stored import Missing, analysed, find, head, open_stores, times, write

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.compare import compare
from fusionscope.analysis.estimate import Fused, estimate
from fusionscope.profiler.store import Run

BOUNDARY = "mhc_post"
PREDICTION = (
    "analysis.estimate on the split run with the fused run's median site time (source candidate), carried to untraced "
    "time; measured is the difference of the two untraced medians, which come from two processes."
)


def main() -> int:
    """Write the table and print its lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+")
    parser.add_argument("--batches", default="1,4,16,64")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        runs = open_stores(options.stores)
        pairs = {
            int(batch): (find(runs, "cupti", int(batch), ()), find(runs, "cupti", int(batch), (BOUNDARY,)))
            for batch in options.batches.split(",")
        }
        document = head([run for pair in pairs.values() for run in pair])
    except Missing as error:
        print(error, file=sys.stderr)
        return 2
    document |= {"prediction": PREDICTION, "boundary": BOUNDARY, "batches": [row(b, *p) for b, p in pairs.items()]}
    write(options.out, document)
    for line in document["batches"]:
        predicted, measured = line["predicted"], line["measured"]
        print(
            f"batch {line['batch']:3}: site {line['fused_site_ns'] / 1e3:.3f} us, predicted "
            f"{predicted['saving_ns'] / 1e3:.1f} us {span(predicted)}, measured {measured['saving_ns'] / 1e3:.1f} us "
            f"{span(measured)} of {line['split']['untraced_ns'] / 1e3:.0f} us ({measured['part']:.2%}), "
            f"{'inside' if line['measured_in_predicted_interval'] else 'OUTSIDE'}"
        )
    return 0


def row(batch: int, split_run: Run, fused_run: Run, boundary: str = BOUNDARY) -> dict[str, Any]:
    """One batch: both runs, the predicted and the measured saving."""
    split, fused = analysed(split_run), analysed(fused_run)
    site = site_ns(fused, boundary)
    made = estimate(
        split.attribution, split.schedule(), boundary, "", Fused(time_ns=site, source="candidate"), split.untraced
    )
    both = compare(split, fused)
    assert both.measured_saving_ns is not None and both.measured_interval_ns is not None
    low, high = made.interval_ns
    return {
        "batch": batch,
        "sites": made.sites,
        "split": times(split),
        "fused": times(fused),
        "fused_site_ns": site,
        "predicted": {
            "saving_ns": round(made.saving_ns),
            "interval_ns": [round(low), round(high)],
            "traced_saving_ns": round(made.traced_saving_ns),
            "ceiling_ns": round(made.ceiling_ns),
            "amdahl_part": round(made.amdahl_gain, 5),
        },
        "measured": {
            "saving_ns": round(both.measured_saving_ns),
            "interval_ns": [round(end) for end in both.measured_interval_ns],
            "mde_ns": None if both.mde_ns is None else round(both.mde_ns),
            "part": round(both.measured_saving_ns / split.step_ns(), 5),
        },
        "measured_in_predicted_interval": low <= both.measured_saving_ns <= high,
    }


def site_ns(found: Analysed, boundary: str = BOUNDARY) -> float:
    """Median time of a fused site over sites and replays, ns."""
    sites = found.attribution.sites[boundary]
    return float(np.median([found.forward.duration[:, list(s.columns)].sum(axis=1) for s in sites]))


def span(part: dict[str, Any]) -> str:
    """[low, high] in us."""
    return "[{:.1f}, {:.1f}]".format(*(end / 1e3 for end in part["interval_ns"]))


if __name__ == "__main__":
    sys.exit(main())

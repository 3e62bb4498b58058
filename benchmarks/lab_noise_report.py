"""Judges what lab_noise.py left: false alarms, delays found, knock-outs, and what captures in drawn places differ by.

    python benchmarks/lab_noise_report.py FOLDER…     adds to results/h200_lab_noise.jsonl, and writes the .json
    python benchmarks/lab_noise_report.py             makes the .json again from the stored lines

FOLDER holds noise.jsonl, and in store/ runs of `fusionscope ab`. The lines keep the block values of every capture, so
that another rule can be tried on them. A comparison of three processes takes the comparison of the same number of each
of them; no capture is in two. Lines with `first` are rounds in which processes took turns, with delays that were chosen
from the A/A rounds before them; those without were measured before there were such rounds, and their delays were
chosen from another setting: only what they say of a program against itself is used.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lab import lines
from lab_noise_compare import compared
from scipy import stats

from fusionscope.analysis import ab
from fusionscope.profiler.store import Store

RESULTS = Path(__file__).parent / "results"
PROCESSES = 3
#: Medians of the sample's knockout.json, us.
SAMPLE = {"both": 952.27 - 812.54, "ar": 952.27 - 881.41, "norm": 952.27 - 903.14}
#: The GPU is in one of two states; in the slow one the graph's step takes longer than that, and a disabled node.
SLOW_STEP_NS, SLOW_NODE_NS = 1_000_000, 400
Rows = Sequence[dict[str, Any]]


def main(folders: list[str]) -> int:
    """Write both files and print the summary."""
    stored = RESULTS / "h200_lab_noise.jsonl"
    if folders:
        rows = [*lines(stored), *(_short(row) for folder in folders for row in collected(Path(folder)))]
        stored.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), encoding="utf-8")
    made = report(lines(stored))
    print(json.dumps(made, indent=1))
    (RESULTS / "h200_lab_noise.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


def collected(folder: Path) -> list[dict[str, Any]]:
    """The lines of a folder, and a line for each process of each run of `ab` in it."""
    rows = lines(folder / "noise.jsonl")
    store = folder / "store"
    listed = Store(store).list() if store.is_dir() else []
    for one in sorted(listed, key=lambda one: one.id):
        if one.info is None or "ab" not in one.info.settings:
            continue
        run = Store(store).load(one.id)
        timings = run.trace.timings
        for process in np.unique(timings["process"].to_numpy()):
            mine = timings[timings["process"] == process]
            values = {arm: ab.block_values(mine, arm).tolist() for arm in dict.fromkeys(mine["arm"].astype(str))}
            rows.append({"what": "ab", "run": run.info.name, "process": int(process), "blocks": values})
    return rows


def _short(row: dict[str, Any]) -> dict[str, Any]:
    if "blocks" not in row:
        return row
    return {**row, "blocks": {arm: [round(v) for v in values] for arm, values in row["blocks"].items()}}


def report(rows: Rows) -> dict[str, Any]:
    """Everything that the result file says; times in us."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["what"], []).append(row)
    same = [*kinds.get("aa", []), *(row for row in kinds.get("power", []) if "same" in row["blocks"])]
    found: dict[str, Any] = {"gpu": next(row["gpu"] for row in rows if "gpu" in row)}
    found["against_itself"] = {
        "one_process": told([compared([row], candidate=_alike(row)) for row in same]),
        "three_processes": told([compared(of, candidate=_alike(of[0])) for of in together(same)]),
    }
    found["rounds"] = rounds([row for row in rows if "first" in row])
    found["between_processes"] = between(rows)
    found["places"] = {f"{kind} {way}": places(kinds.get("place", []), kind, way)
                       for kind in ("split", "fused") for way in ("plain", "moved")}  # fmt: skip
    found["knockout"] = knockouts(kinds.get("knockout", []))
    found["ab"] = runs(kinds.get("ab", []))
    return found


def _alike(row: dict[str, Any]) -> str:
    """The arm that is the same program as the base."""
    return "same" if "same" in row["blocks"] else "candidate"


def together(rows: Rows) -> list[list[dict[str, Any]]]:
    """Trials of the same number from three processes each, each trial in one of them."""
    trials: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row.get("of", PROCESSES) == PROCESSES:
            trials.setdefault((row["what"], row.get("first"), row["trial"]), []).append(row)
    found = []
    for of_trial in trials.values():
        mine = sorted(of_trial, key=lambda row: int(row["process"]))
        found += [mine[k : k + PROCESSES] for k in range(0, len(mine) - PROCESSES + 1, PROCESSES)]
    return found


def rounds(rows: Rows) -> dict[str, Any]:
    """Delays of one and two noise floors of the A/A rounds before them, by the number of processes of a comparison."""
    found: dict[str, Any] = {}
    for of in sorted({row["of"] for row in rows}):
        mine = [row for row in rows if row["of"] == of]
        floors = {row["first"]: row["ns"] for row in mine if row["what"] == "mde"}
        trials: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in mine:
            if row["what"] == "power":
                trials.setdefault((row["first"], row["trial"]), []).append(row)
        whole = [of_trial for of_trial in trials.values() if len(of_trial) == of]
        injected = [{"first": first, "noise_floor_us": _us(ns), "trials": sum(t[0]["first"] == first for t in whole),
                     "comparisons_with_itself": next(r["comparisons"] for r in mine if r["what"] == "mde" and
                                                     r["first"] == first)} for first, ns in floors.items()]  # fmt: skip
        found[f"{of}_process{'es' if of > 1 else ''}"] = {
            "injected": injected,
            **{name: seen(whole, name) for name in ("once", "twice")},
        }
    return found


def between(rows: Rows) -> dict[str, Any]:
    """Whether processes differ in what they tell of two arms by more than captures in drawn places explain.

    `times` is the variance between processes over what captures explain of it: 1 where processes add nothing.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["what"] == "ab":
            runs.setdefault(row["run"], []).append(row)
        elif row["what"] == "place":
            # Ten numbers of processes are one run, on a GPU of its own.
            runs.setdefault(f"sample, processes from {row['process'] // 10 * 10}", []).append(row)
    found: dict[str, Any] = {}
    for name, mine in runs.items():
        savings, explained = [], []
        for row in mine:
            arms = [_times(row, "base"), _times(row, "candidate")]
            if row["what"] == "place":
                arms = [_times(row, "split moved "), _times(row, "fused moved ")]
            savings.append(float(arms[0].mean() - arms[1].mean()))
            explained.append(float(sum(arm.var(ddof=1) / len(arm) for arm in arms)))
        if len(mine) > 1:
            times = float(np.var(savings, ddof=1) / np.mean(explained))
            found[name] = {"processes": len(mine), "times": round(times, 2)}
    degrees = [one["processes"] - 1 for one in found.values()]
    if degrees:
        all_of = np.average([one["times"] for one in found.values()], weights=degrees)
        found["all"] = {"degrees_of_freedom": sum(degrees), "times": round(float(all_of), 2)}
    return found


def _times(row: dict[str, Any], arm: str) -> Any:
    return np.array([np.median(values) for name, values in row["blocks"].items() if name.startswith(arm)])


def told(made: list[ab.Comparison]) -> dict[str, Any]:
    """Comparisons of a program with itself."""
    classes = Counter(one.verdict.class_ for one in made)
    out = sum(not one.saving.interval_ns[0] <= 0 <= one.saving.interval_ns[1] for one in made)
    return {
        "comparisons": len(made),
        "classes": dict(sorted(classes.items())),
        "said_faster_or_slower": _part(sum(classes[name] for name in ab.DECIDED), len(made)),
        "interval_without_0": out,
        "median_noise_floor_us": _us(statistics.median([one.mde_ns or 0.0 for one in made])),
        "sd_of_the_saving_us": _us(float(np.std([one.saving.value_ns for one in made], ddof=1))),
    }


def seen(trials: list[list[dict[str, Any]]], name: str) -> dict[str, Any]:
    """Comparisons in which the candidate is later by a known delay."""
    made = [compared(of, candidate=name) for of in trials]
    delays = [float(np.mean([row["injected_ns"][name] for row in of])) for of in trials]
    ends = [one.saving.interval_ns for one in made]
    shown = sum(high < 0 for _, high in ends)
    held = sum(low <= -delay <= high for (low, high), delay in zip(ends, delays, strict=True))
    return {
        "trials": len(made),
        "delay_us": _us(statistics.median(delays or [0.0])),
        "median_noise_floor_us": _us(statistics.median([one.mde_ns or 0.0 for one in made] or [0.0])),
        "found": shown,
        "found_part": _part(shown, len(made)),
        "said_slower": sum(one.verdict.class_ == "slower" for one in made),
        "interval_holds_it": held,
        "holds_part": _part(held, len(made)),
        "mean_estimate_of_the_delay_us": _us(-float(np.mean([one.saving.value_ns for one in made] or [0.0]))),
    }


def _part(count: int, of: int) -> list[float]:
    """A part with its exact 95 % range (Clopper and Pearson)."""
    if not of:
        return []
    low = float(stats.beta.ppf(0.025, count, of - count + 1)) if count else 0.0
    high = float(stats.beta.ppf(0.975, count + 1, of - count)) if count < of else 1.0
    return [round(value, 3) for value in (count / of, low, high)]


def places(rows: Rows, kind: str, way: str) -> dict[str, Any]:
    """What captures of a process differ by, and the part of that variance that comes back in other processes."""
    if len(rows) < 2:
        return {}
    names = [name for name in rows[0]["blocks"] if name.startswith(f"{kind} {way} ")]
    times = np.array([[np.median(row["blocks"][name]) for name in names] for row in rows])
    within = float(times.var(axis=1, ddof=1).mean())
    apart = times - times.mean(axis=1, keepdims=True)
    lasting = float((apart.mean(axis=0) ** 2).sum() / (len(names) - 1))
    stays = (len(rows) * lasting - within) / (len(rows) - 1)
    return {
        "processes": len(rows),
        "captures": len(names),
        "sd_us": _us(within**0.5),
        "part_that_comes_back": round(stays / within, 2),
    }


def knockouts(rows: Rows) -> dict[str, Any]:
    """What goes with disabled nodes, by the way of launching and timing, in each of the two states of the GPU.

    `ours` is this project's procedure; `ours, idle` was it before its times left out what the host takes to launch.
    """
    if not rows:
        return {}
    found: dict[str, Any] = {"captures": len(rows), "sample_us": {k: round(v, 1) for k, v in SAMPLE.items()}}
    ways: dict[str, list[dict[str, tuple[float, float]]]] = {}
    for row in rows:
        ours = {name: (one["base"], one["raw"]) for name, one in row["ours"].items()}
        ways.setdefault("ours" if "node_ns" in row else "ours, idle", []).append(ours)
        sample = row["sample"]
        theirs = {name: (sample["split"], sample["split"] - sample[name]) for name in (*SAMPLE, "fused")}
        ways.setdefault("by the sample's procedure", []).append(theirs)
        launched = row.get("launched", {})
        for way in dict.fromkeys(arm.partition(": ")[0] for arm in launched):
            for base in ("split", "copy"):
                at = launched[f"{way}: {base}"]
                arms = [name for name in (*SAMPLE, "fused") if f"{way}: {name}" in launched]
                gains = {name: (at, at - launched[f"{way}: {name}"]) for name in arms}
                ways.setdefault(f"{way}, from {base}", []).append(gains)
    for state, slow in (("fast", False), ("slow", True)):
        found[state] = {way: _gains(of, slow) for way, of in ways.items()}
    hosts = [row["host_launch_ns"] for row in rows if "host_launch_ns" in row]
    if hosts:
        found["host_takes_us"] = {arm: _us(statistics.median(one[arm] for one in hosts)) for arm in hosts[0]}
    nodes = [row["disabled_node_ns"] for row in rows]
    found["disabled_node_ns"] = {"fast": _median([ns for ns in nodes if ns < SLOW_NODE_NS]),
                                 "slow": _median([ns for ns in nodes if ns >= SLOW_NODE_NS])}  # fmt: skip
    found["criticality"] = round(statistics.median(row["criticality"] for row in rows), 3)
    found["corrected_below_the_fusion"] = sum(
        row["ours"]["both"]["raw"] + row["ours"]["both"]["nodes"] * row["disabled_node_ns"]
        < row["sample"]["split"] - row["sample"]["fused"]
        for row in rows
    )
    return found


def _gains(captures: list[dict[str, tuple[float, float]]], slow: bool) -> dict[str, Any]:
    """Medians and ranges, us, of the captures whose base was measured in that state."""
    found: dict[str, Any] = {}
    for name in (*SAMPLE, "fused"):
        values = sorted(one[name][1] for one in captures if name in one and (one[name][0] > SLOW_STEP_NS) == slow)
        if values:
            found[name] = {
                "captures": len(values),
                "median": _us(statistics.median(values)),
                "range": [_us(values[0]), _us(values[-1])],
            }
            if name in SAMPLE:
                found[name]["of_the_sample"] = round(statistics.median(values) / 1e3 / SAMPLE[name], 3)
    return found


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values)) if values else None


def runs(rows: Rows) -> dict[str, Any]:
    """Each run of `ab`, and each of its processes alone."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(row["run"] for row in rows):
        mine = [row for row in rows if row["run"] == name]
        found[name] = {
            "processes": len(mine),
            "captures": sum(len(row["blocks"]) // 2 for row in mine),
            "all": _ab(compared(mine)),
            "each": [_ab(compared([row])) for row in mine],
        }
    return found


def _ab(made: ab.Comparison) -> dict[str, Any]:
    return {
        "base_us": _us(made.base_ns),
        "saving_us": _us(made.saving.value_ns),
        "interval_us": [_us(end) for end in made.saving.interval_ns],
        "noise_floor_us": _us(made.mde_ns or 0.0),
        "noise_floor_part": round((made.mde_ns or 0.0) / made.base_ns, 5),
        "class": made.verdict.class_,
        "unit": made.saving.unit,
    }


def _us(ns: float) -> float:
    return round(ns / 1e3, 2)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""The launches of a forward on the CPU: leaf operators, and each collective once from issue to completion."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from fusionscope.profiler.trace import table

FORWARD = "fusionscope.forward"
# torch.compile records its own steps as operators; the compiled code is "## Call CompiledFxGraph … ##".
#: Not work of the forward: torch.compile's own steps, and checks that aten::mm makes before it multiplies.
_BOOKKEEPING = re.compile(r"^(?:TorchDynamo |Pregraph bytecode|AOTDispatcher |aten::resolve_(?:conj|neg)$)")
_ISSUE = re.compile(r"^c10d::_?([a-z0-9_]+?)_?$")
_DONE = re.compile(r"^gloo:([a-z0-9_]+)$")


def leaf_operators(operators: pd.DataFrame, ranges: pd.DataFrame) -> pd.DataFrame:
    """KERNELS rows of kind "op" from operators and ranges (rank, process, thread, start_ns, end_ns, name).

    A leaf has no operator inside it on its thread. Where FORWARD ranges exist, only what starts inside one counts.
    A gloo collective is issued by c10d::* on one thread and done by gloo:* on another, where it opens a range and
    operators of its own: all of that is one row, named like the gloo range, from issue to completion.
    """
    operators = operators.astype({"name": "object"})
    ranges = ranges.astype({"name": "object"})
    operators = operators[~operators["name"].str.match(_BOOKKEEPING)]
    done = ranges[ranges["name"].str.match(_DONE)]
    done = pd.concat([done, operators[operators["name"].str.match(_DONE)]], ignore_index=True)
    operators = operators[~operators["name"].str.match(_DONE)].reset_index(drop=True)
    issued = operators[operators["name"].str.match(_ISSUE)]
    outside = operators[~_within(operators, pd.concat([issued, done])) | operators.index.isin(issued.index)]
    leaves = outside[_is_leaf(outside) | outside.index.isin(issued.index)].copy()
    leaves["raw_name"] = leaves["name"]
    for index, completion in _pairs(issued, done):
        leaves.at[index, "name"] = completion["name"]
        leaves.at[index, "end_ns"] = max(completion["end_ns"], leaves.at[index, "end_ns"])
    forwards = ranges[ranges["name"] == FORWARD]
    if len(forwards):
        leaves = leaves[_starts_in(leaves, forwards)]
    return table(
        "kernels",
        leaves[["rank", "process", "thread", "name", "raw_name", "start_ns"]].assign(
            device=0, stream=leaves["thread"], kind="op", duration_ns=leaves["end_ns"] - leaves["start_ns"]
        ),
    )


def _is_leaf(rows: pd.DataFrame) -> pd.Series[bool]:
    """No other row of the same thread inside: in order of start, the next one begins after this one ends."""
    order = rows.sort_values(["rank", "process", "thread", "start_ns", "end_ns"], ascending=[True] * 4 + [False])
    following = order.groupby(["rank", "process", "thread"])[["start_ns", "end_ns"]].shift(-1, fill_value=2**63 - 1)
    # Kineto's times on one thread may overlap by less than 1 us; a child also ends inside its parent.
    inside = (following["start_ns"] < order["end_ns"]) & (following["end_ns"] <= order["end_ns"])
    return (~inside).reindex(rows.index)


def _within(rows: pd.DataFrame, spans: pd.DataFrame) -> pd.Series[bool]:
    """Rows that lie inside a span of their own thread (spans of one thread do not overlap)."""
    return _covered(rows, spans, ["rank", "process", "thread"], whole=True)


def _starts_in(rows: pd.DataFrame, spans: pd.DataFrame) -> pd.Series[bool]:
    """Rows that start inside a span of their process, on any thread."""
    return _covered(rows, spans, ["rank", "process"], whole=False)


def _covered(rows: pd.DataFrame, spans: pd.DataFrame, by: list[str], whole: bool) -> pd.Series[bool]:
    inside = pd.Series(False, index=rows.index)
    groups = dict(list(spans.groupby(by)))
    for key, part in rows.groupby(by):
        if (owners := groups.get(key)) is None:
            continue
        owners = owners.sort_values("start_ns")
        at = np.searchsorted(owners["start_ns"].to_numpy(), part["start_ns"].to_numpy(), side="right") - 1
        # Spans may nest: what has started before and ends last decides.
        last_end = np.maximum.accumulate(owners["end_ns"].to_numpy())[np.maximum(at, 0)]
        end = part["end_ns"].to_numpy() if whole else part["start_ns"].to_numpy()
        inside.loc[part.index] = (at >= 0) & (end <= last_end)
    return inside


def _pairs(issued: pd.DataFrame, done: pd.DataFrame) -> list[tuple[int, pd.Series]]:
    """Completion of each issue: of one kind of collective, in order of issue (gloo's queue is first in, first out)."""
    names = {_DONE.sub(r"\1", name).replace("_", "") for name in done["name"].unique()}
    found = []
    for _, calls in issued.groupby(["rank", "process"]):
        mine = done[(done["rank"] == calls["rank"].iloc[0]) & (done["process"] == calls["process"].iloc[0])]
        queues = {
            kind: [row for _, row in part.sort_values("start_ns").iterrows()]
            for kind, part in mine.groupby(mine["name"].str.replace(r"gloo:|_", "", regex=True))
        }
        for index, call in calls.sort_values("start_ns").iterrows():
            kind = _ISSUE.sub(r"\1", call["name"]).replace("_", "")
            # c10d::_allgather_base_ is done by gloo:all_gather.
            match = max((name for name in names if kind.startswith(name)), key=len, default="")
            queue = queues.get(match, [])
            while queue and queue[0]["start_ns"] < call["start_ns"]:
                queue.pop(0)
            if queue:
                found.append((int(str(index)), queue.pop(0)))
    return found

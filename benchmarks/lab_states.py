"""What makes each node of every graph take longer on the GPU, and what ends it: probes between single steps.

    python benchmarks/lab_states.py OUT.jsonl --make FILE --seconds 14

FILE is make.py of the sample `h200_ar_norm`. A probe is a chain of 500 kernels of which 498 are disabled, the same
chain whole, and the sample's graph, all of which were launched before. Needs a CUDA GPU and cuda-bindings.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import runtime
from lab import add
from lab_noise import Bench, sample

from fusionscope.profiler.capture.graph_copies import CudaGraphs


class States:
    """Does one thing after the other, and leaves a line about the state after each."""

    def __init__(self, file: Path, bench: Bench) -> None:
        self._file, self._bench = file, bench
        self._on = CudaGraphs()
        self._chain = self.chain(500)
        self._disabled = self._on.without(self._chain, range(1, 499))
        self._graph, self._ranges = bench.capture("split")

    def chain(self, kernels: int) -> Any:
        """A chain that is instantiated."""
        graph = self._on.chain(kernels)
        graph.instantiate()
        return graph

    def say(self, what: str) -> None:
        """A line of what a node takes after this."""
        took = {}
        for name, launch in (("disabled", self._disabled), ("chain", self._chain.replay), ("step", self._graph.replay)):
            took[name] = round(statistics.median(self._on.timed(launch) for _ in range(11)))
        add(self._file, {"after": what, "ns": took})

    def turn(self) -> None:
        """Every step once."""
        on, stream = self._on, torch.cuda.current_stream().cuda_stream
        raw, copies = on._raw(self._graph), []
        for k in range(4):
            copies.append(on._instantiate(raw))
            self.say(f"instantiate copy {k}")
        for copy in copies:
            runtime.cudaGraphUpload(copy, stream)
        self._waited("upload copies")
        for copy in copies:
            runtime.cudaGraphLaunch(copy, stream)
        self._waited("launch copies")
        handles = on._handles(raw)
        for copy in copies[:2]:
            for node in (node for first, last in self._ranges for node in range(first, last)):
                runtime.cudaGraphNodeSetEnabled(copy, handles[node], 0)
        self.say("disable nodes of 2")
        for copy in copies[:2]:
            runtime.cudaGraphLaunch(copy, stream)
        self._waited("launch those")
        torch.zeros(1024, device="cuda").add_(1)
        self._waited("eager add")
        torch.cuda._sleep(1000)
        self._waited("sleep kernel")
        self.chain(100)
        self.say("chain of 100 captured")
        chain = self.chain(500)
        self.say("chain of 500 captured")
        without = on.without(chain, range(1, 499))
        self.say("copy of that chain")
        without()
        self._waited("launch that copy")
        late = on.delayed(self._graph, [last - 1 for _, last in self._ranges], 2000)
        self.say("delayed copy")
        late()
        self._waited("launch delayed copy")
        for copy in copies[:2]:
            runtime.cudaGraphExecDestroy(copy)
        self.say("destroy 2 copies")
        gc.collect()
        torch.cuda.empty_cache()
        self.say("empty cache")
        memory = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
        self.say("allocate 64 MiB")
        del memory
        torch.cuda.empty_cache()
        self.say("free it")
        weights = self._bench.weights
        for _ in range(3):
            (weights[2][0] @ weights[0][0]) @ weights[1][0]
        self._waited("eager products")
        self._bench.capture("fused")
        self.say("capture fused")
        for copy in copies[2:]:
            runtime.cudaGraphExecDestroy(copy)
        self.say("destroy the other copies")
        self._graph, self._ranges = self._bench.capture("split")
        self.say("capture split again")

    def _waited(self, what: str) -> None:
        torch.cuda.synchronize()
        self.say(what)


def main() -> int:
    """Turns until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--make", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=14)
    options = parser.parse_args()
    begin = time.monotonic()
    states = States(options.out, Bench(sample(options.make), 0))
    while time.monotonic() - begin < options.seconds:
        states.turn()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

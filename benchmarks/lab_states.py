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
        self._on, self._count = CudaGraphs(), 0
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
        self._count += 1
        took = {}
        for name, launch in (("disabled", self._disabled), ("chain", self._chain.replay), ("step", self._graph.replay)):
            took[name] = round(statistics.median(self._on.timed(launch) for _ in range(11)))
        add(self._file, {"count": self._count, "after": what, "gpu": torch.cuda.get_device_name(), "ns": took})

    def turn(self) -> None:
        """Every step once."""
        on, stream = self._on, torch.cuda.current_stream().cuda_stream
        raw = on._raw(self._graph)
        self.say("begin")
        copies = [on._instantiate(raw) for _ in range(4)]
        self.say("copies instantiated")
        for copy in copies:
            runtime.cudaGraphUpload(copy, stream)
        torch.cuda.synchronize()
        self.say("copies uploaded")
        for copy in copies:
            runtime.cudaGraphLaunch(copy, stream)
        torch.cuda.synchronize()
        self.say("copies launched")
        handles = on._handles(raw)
        for copy in copies[:2]:
            for first, last in self._ranges:
                for node in range(first, last):
                    runtime.cudaGraphNodeSetEnabled(copy, handles[node], 0)
            runtime.cudaGraphLaunch(copy, stream)
        torch.cuda.synchronize()
        self.say("nodes disabled and launched")
        plain = on.chain(500)
        self.say("chain captured")
        other = on.without(plain, range(1, 499))
        other()
        torch.cuda.synchronize()
        self.say("its copy launched")
        chains = [self.chain(100), self.chain(500)]
        self.say("chains instantiated")
        torch.zeros(1024, device="cuda").add_(1)
        self.say("small kernel")
        small = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
        torch.mm(small, small)
        self.say("small product")
        self.chain(500)
        self.say("another chain instantiated and let go of")
        chains[0].replay()
        self.say("first chain launched")
        for chain in chains:
            chain.replay()
        self.say("both chains launched")
        more = self.chain(500)
        self.say("one more chain instantiated")
        weights = self._bench.weights
        for _ in range(3):
            (weights[2][0] @ weights[0][0]) @ weights[1][0]
        self.say("products of the sample")
        for copy in copies:
            runtime.cudaGraphExecDestroy(copy)
        del chains, more, plain
        gc.collect()
        self.say("let go of all")


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

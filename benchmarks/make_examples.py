"""Makes the example runs that ship with the package from captures, without their machine's private details.

fusionscope capture --model glm-5.3-flash --tp 4 --batch 4 --profiler nsys --name split
fusionscope capture --model glm-5.3-flash --tp 4 --batch 4 --profiler nsys --paths mhc_post=triton --name fused
fusionscope capture --model glm-5.3-flash --tp 2 --layers 5 --profiler nsys --name tp2      (on two GPUs)
python benchmarks/make_examples.py example=split example-fused=fused example-tp2=tp2 [--store DIR]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import msgspec

from fusionscope.profiler.runinfo import encode, tool_version
from fusionscope.profiler.scrub import scrubbed
from fusionscope.profiler.store import EXAMPLES, Store

FOLDER = Path(__file__).parents[1] / "profiler" / "examples"

#: What an example tells of the machine that recorded it.
SHOWN = (
    "gpu", "profiler", "driver", "python", "torch", "triton", "nvidia-nccl-cu13", "gpus", "cuda", "sm_clock_mhz",
    "throttle_reasons",
)  # fmt: skip


def main() -> None:
    """Write the examples that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="EXAMPLE=RUN", help=f"EXAMPLE is one of {', '.join(EXAMPLES)}")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    for given in options.runs:
        name, _, ref = given.partition("=")
        if name not in EXAMPLES or not ref:
            parser.error(f"{given!r} is not EXAMPLE=RUN with one of {', '.join(EXAMPLES)}")
        write(name, ref, Store(options.store))


def write(name: str, ref: str, store: Store) -> None:
    """One run, scrubbed, under the name that opens it."""
    run = store.load(ref)
    made = scrubbed(run.info, run.trace)
    machine = {key: value for key, value in made.info.machine.items() if key in SHOWN}
    # The command is this project's own and names nothing of the machine.
    info = msgspec.structs.replace(
        made.info, name="", tags=[], command=run.info.command, machine=machine, tool_version=tool_version()
    )
    with tempfile.TemporaryDirectory() as folder:
        saved = Store(folder).save(info, made.trace)
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        shutil.copytree(saved.path, FOLDER / name)
    # The store refuses these names for a user's runs, so the name goes in afterwards.
    (FOLDER / name / "run.json").write_bytes(encode(msgspec.structs.replace(saved.info, id=name, name=name)))


if __name__ == "__main__":
    main()

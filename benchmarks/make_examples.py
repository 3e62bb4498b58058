"""Makes the example runs that ship with the package from two captures of one machine, without its private details.

fusionscope capture --model glm-5.3-flash --tp 4 --batch 4 --profiler nsys --name split
fusionscope capture --model glm-5.3-flash --tp 4 --batch 4 --profiler nsys --paths mhc_post=triton --name fused
python benchmarks/make_examples.py split fused [--store DIR]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec

from fusionscope.profiler.runinfo import encode, tool_version
from fusionscope.profiler.store import EXAMPLES, Store
from fusionscope.profiler.trace import TABLES

FOLDER = Path(__file__).parents[1] / "profiler" / "examples"
#: What a reader needs to judge the numbers; the rest of a machine is nobody's business.
KEPT = ("gpu", "gpus", "driver", "cuda", "python", "torch", "triton", "profiler", "sm_clock_mhz", "throttle_reasons")


def main() -> None:
    """Write both examples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, metavar="RUN")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    for name, ref in zip(EXAMPLES, options.runs, strict=True):
        write(name, ref, Store(options.store))


def write(name: str, ref: str, store: Store) -> None:
    """One run, scrubbed, under the name that opens it."""
    run = store.load(ref)
    tables = {
        table: frame.assign(process=1).astype({"process": "int64"}) if "process" in frame else frame
        for table in TABLES
        for frame in [getattr(run.trace, table)]
    }
    machine = {k: v for k, v in run.info.machine.items() if k in KEPT}
    info = msgspec.structs.replace(
        run.info, name="", machine=machine, environment={}, tool_version=tool_version(), inputs=[]
    )
    with tempfile.TemporaryDirectory() as folder:
        saved = Store(folder).save(info, replace(run.trace, **tables, machine={"gpu": machine.get("gpu", "")}))
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        shutil.copytree(saved.path, FOLDER / name)
    # The store refuses these names for a user's runs, so the name goes in afterwards.
    (FOLDER / name / "run.json").write_bytes(encode(msgspec.structs.replace(saved.info, id=name, name=name)))


if __name__ == "__main__":
    main()

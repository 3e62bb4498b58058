"""Makes the example runs that ship with the package from two captures of one machine, without its private details.

fusionscope capture --model glm-5.3-flash --tp 4 --batch 4 --profiler nsys --name split
fusionscope capture --model glm-5.3-flash --tp 4 --batch 4 --profiler nsys --paths mhc_post=triton --name fused
python benchmarks/make_examples.py split fused [--store DIR]
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
    made = scrubbed(run.info, run.trace)
    info = msgspec.structs.replace(made.info, name="", tags=[], tool_version=tool_version())
    with tempfile.TemporaryDirectory() as folder:
        saved = Store(folder).save(info, made.trace)
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        shutil.copytree(saved.path, FOLDER / name)
    # The store refuses these names for a user's runs, so the name goes in afterwards.
    (FOLDER / name / "run.json").write_bytes(encode(msgspec.structs.replace(saved.info, id=name, name=name)))


if __name__ == "__main__":
    main()

"""The command lines that put somebody's command under a profiler, and the files that it leaves."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from fusionscope.profiler.capture import nsys
from fusionscope.profiler.capture.plan import CaptureError

WRAPPERS = ("auto", "nsys", "rocprofv3", "torch")
#: What is recorded: between the command's own calls of the profiler's start and stop, or all of it.
RANGES = ("auto", "api", "all")


@dataclass(frozen=True)
class Wrapper:
    """One profiler around a command. `path` is its program, None for torch, which the command runs itself."""

    profiler: str
    path: Path | None

    def command(
        self, command: list[str], out: Path, recorded: str, *, repeat: bool = False, mode: str = "node"
    ) -> list[str]:
        """`command` under the profiler, with its files in `out`; `recorded` is "api" or "all".

        `repeat`: the command starts and stops the profiler several times, and goes on in between. `mode`: nsys records
        every kernel of a graph ("node"), or one row a replay ("graph").
        """
        if self.profiler == "nsys":
            return [str(self.path), *_nsys_options(out, recorded, repeat, mode), *command]
        if self.profiler == "rocprofv3":
            return [str(self.path), *_rocprof_options(out, recorded), "--", *command]
        return list(command)

    def environment(self, out: Path) -> dict[str, str]:
        """What the command's processes need in their environment."""
        found = {"FUSIONSCOPE_MARKS": f"{out}/marks-{{rank}}-{{pid}}.jsonl", "PYTHONUNBUFFERED": "1"}
        if self.profiler == "torch":
            # Where the engines look, each for its own name: SGLang, vLLM before 0.13, TensorRT-LLM.
            found |= {
                "SGLANG_TORCH_PROFILER_DIR": str(out),
                "SGLANG_PROFILE_WITH_STACK": "False",
                "VLLM_TORCH_PROFILER_DIR": str(out),
                "TLLM_TORCH_PROFILE_TRACE": str(out / "trtllm.trace.json"),
            }
        if self.profiler == "nsys":
            # vLLM's workers must not be forked from a process that nsys has already injected itself into.
            found["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        if self.profiler == "rocprofv3":
            # The ids of graph nodes are right with direct dispatch alone.
            found["AMD_DIRECT_DISPATCH"] = "1"
        return {key: value for key, value in found.items() if key == "FUSIONSCOPE_MARKS" or key not in os.environ}

    def files(self, out: Path) -> list[Path]:
        """The traces in `out`, one kind of them alone where the profiler wrote several."""
        for pattern in _WRITTEN[self.profiler]:
            found = sorted(path for path in out.rglob(pattern) if path.is_file() and path.stat().st_size)
            if found:
                return _decoding(found)
        return []

    def nothing(self, recorded: str) -> str:
        """What to do where the profiler recorded nothing."""
        if self.profiler == "nsys":
            if missing := nsys.missing_libraries(self.path or Path("nsys")):
                return (
                    f"Nsight Systems' importer lacks {', '.join(missing)}: `fusionscope doctor` says how to get them."
                )
            if recorded == "api":
                return (
                    "the command never called cudaProfilerStart and cudaProfilerStop: call torch.cuda.profiler.start() "
                    "and stop() around the decode steps, or record everything with --range all"
                )
            return "the command launched nothing on a GPU, or it left before its profiler could write"
        if self.profiler == "rocprofv3":
            if recorded == "api":
                return (
                    "the command never called roctxProfilerResume(0) and roctxProfilerPause(0): call them around the "
                    "decode steps, or record everything with --range all"
                )
            return "the command launched nothing on a GPU, or it was killed before rocprofv3 could write"
        return (
            "with --profiler torch the command itself must write torch.profiler traces into the folder named in "
            "$SGLANG_TORCH_PROFILER_DIR, $VLLM_TORCH_PROFILER_DIR or $TLLM_TORCH_PROFILE_TRACE: use --engine, or "
            "--profiler nsys or rocprofv3"
        )


_WRITTEN = {
    "nsys": ("*.sqlite", "*.nsys-rep"),
    "rocprofv3": ("*_results.json", "*.db", "*_kernel_trace.csv"),
    "torch": ("*.trace.json.gz", "*.trace.json", "trtllm*.json", "*.json.gz"),
}


def _nsys_options(out: Path, recorded: str, repeat: bool, mode: str) -> list[str]:
    options = [
        "profile",
        "--trace=cuda,nvtx",
        f"--cuda-graph-trace={mode}",
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
    ]
    if recorded == "api":
        end = "repeat" if repeat else "stop"
        options += ["--capture-range=cudaProfilerApi", f"--capture-range-end={end}"]
    return [*options, "--export=sqlite", "--force-overwrite=true", f"--output={out}/trace"]


def _rocprof_options(out: Path, recorded: str) -> list[str]:
    # %pid% so that workers do not overwrite each other's file; JSON since every rocprofv3 writes it, all in one file.
    regions = ["--selected-regions"] if recorded == "api" else []
    return [
        *("--kernel-trace", "--hip-trace", "--marker-trace", *regions),
        *("--output-format", "json", "-d", str(out), "-o", "%hostname%_%pid%"),
    ]


def _decoding(files: list[Path]) -> list[Path]:
    """Without the traces of prefill, where an engine wrote one file a stage."""
    decode = [path for path in files if re.search(r"[-_]decode\b|-DECODE\b", path.name)]
    return decode or files


def choose(asked: str) -> Wrapper:
    """The wrapper for `--profiler`. Raises CaptureError with what is missing and how to get it."""
    if asked not in WRAPPERS:
        raise CaptureError(f"--profiler takes one of {', '.join(WRAPPERS)} around a command, not {asked!r}.")
    if asked == "nsys":
        return Wrapper("nsys", nsys.require())
    if asked == "rocprofv3":
        return Wrapper("rocprofv3", require_rocprofv3())
    if asked == "torch":
        return Wrapper("torch", None)
    if not nsys.unavailable():
        return Wrapper("nsys", nsys.require())
    if found := find_rocprofv3():
        return Wrapper("rocprofv3", found)
    raise CaptureError(
        f"There is no profiler to put around the command ({nsys.unavailable()}; rocprofv3 is not installed): "
        "`fusionscope doctor` says how to get one, and --profiler torch uses what the engine has built in."
    )


def find_rocprofv3() -> Path | None:
    """rocprofv3 on PATH or in ROCm's folder."""
    on_path = shutil.which("rocprofv3")
    if on_path:
        return Path(on_path)
    folders = [Path(os.environ.get("ROCM_PATH", "/opt/rocm")), *sorted(Path("/opt").glob("rocm-*"), reverse=True)]
    return next((f / "bin" / "rocprofv3" for f in folders if os.access(f / "bin" / "rocprofv3", os.X_OK)), None)


def require_rocprofv3() -> Path:
    """rocprofv3. Raises CaptureError where there is none."""
    found = find_rocprofv3()
    if found is None:
        raise CaptureError(
            "--profiler rocprofv3 cannot be used: it is not on PATH nor in /opt/rocm/bin. It comes with ROCm 6.2 and "
            "later (package rocprofiler-sdk)."
        )
    return found

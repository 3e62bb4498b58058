"""What can be captured on this machine, what cannot, and how to get it. Looks and asks; changes nothing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fusionscope.profiler.capture import cupti, nsys, wrappers

OK, LIMITED, MISSING = "ok", "limited", "missing"
#: nsys records graphs node by node from this driver on (CUDA 11.7).
NODE_TRACE_DRIVER = (515, 43)
#: With CUPTI before this CUDA a second profile of a process with graphs can lose kernels or crash.
SAFE_CUPTI = (12, 6)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: its state, what was found, and what to do where something is missing."""

    name: str
    state: str
    found: str
    fix: str = ""

    def document(self) -> dict[str, str]:
        """The check as JSON."""
        return {"name": self.name, "state": self.state, "found": self.found, "fix": self.fix}


@dataclass(frozen=True)
class Examined:
    """Every check, and what follows: the profilers for the built-in model, and those for other commands."""

    checks: list[Check]
    built_in: list[str]
    commands: list[str]

    def state(self, name: str) -> str:
        """The state of a check, MISSING where there is none of that name."""
        return next((check.state for check in self.checks if check.name == name), MISSING)


def examine() -> Examined:
    """Look at everything. Whatever a library or a program does, it becomes a check and no error."""
    looked: list[tuple[str, Callable[[], Check]]] = [
        ("torch", _torch),
        ("gpu", _gpu),
        ("driver", _driver),
        ("graphs", _graphs),
        ("nsys", _nsys),
        ("cupti", _cupti),
        ("rocprofv3", _rocprofv3),
        ("permissions", _permissions),
        ("compiler", _compiler),
        ("perfetto", _perfetto),
        ("engines", _engines),
    ]
    checks = [_safely(name, look) for name, look in looked]
    found = Examined(checks, [], [])
    on_gpu = found.state("gpu") != MISSING and found.state("torch") != MISSING
    built_in, commands = [], ["torch"]
    if on_gpu:
        offered = ("rocprofv3",) if _torch_module().version.hip else ("nsys", "cupti")
        built_in += [p for p in offered if found.state(p) == OK]
    if found.state("torch") != MISSING:
        built_in.append("torch")
    commands = [p for p in ("nsys", "rocprofv3") if found.state(p) == OK] + commands
    return Examined(checks, built_in, commands)


def _safely(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except Exception as error:  # a broken driver or library raises what it likes
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Check(
            name,
            MISSING,
            f"looking at it failed: {said}",
            "Repair the installation, or send this line in a bug report.",
        )


def _torch_module() -> Any:
    if importlib.util.find_spec("torch") is None:
        return None
    return importlib.import_module("torch")


def _torch() -> Check:
    torch = _torch_module()
    if torch is None:
        return Check("torch", MISSING, "not installed", "pip install 'fusionscope[runtime]' for the built-in model.")
    build = (
        f"HIP {torch.version.hip}"
        if torch.version.hip
        else f"CUDA {torch.version.cuda}"
        if torch.version.cuda
        else "CPU"
    )
    state = OK if build != "CPU" or not _gpu_files() else LIMITED
    fix = "" if state == OK else "A GPU is here and torch is a CPU build: install one from https://pytorch.org."
    return Check("torch", state, f"{torch.__version__} ({build} build)", fix)


def _gpu_files() -> bool:
    return Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists()


def _gpu() -> Check:
    torch = _torch_module()
    if torch is not None and torch.cuda.is_available():
        names = [str(torch.cuda.get_device_name(k)) or "unnamed GPU" for k in range(torch.cuda.device_count())]
        return Check("gpu", OK, f"{len(names)} x {names[0]}")
    if _gpu_files():
        fix = "Check `nvidia-smi` or `rocminfo`, CUDA_VISIBLE_DEVICES, and that the container was given the GPU."
        return Check("gpu", LIMITED, "a GPU's device files are here, but torch sees none", fix)
    return Check(
        "gpu", MISSING, "none", "Only the built-in model on the CPU can be captured here; traces can be imported."
    )


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _driver() -> Check:
    if text := _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"):
        version = text.split()[0]
        numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
        if numbers < NODE_TRACE_DRIVER:
            return Check(
                "driver", LIMITED, f"NVIDIA {version}", "Update to 515.43 or later to trace graphs node by node."
            )
        return Check("driver", OK, f"NVIDIA {version}")
    amd = Path("/sys/module/amdgpu/version")
    if amd.is_file():
        return Check("driver", OK, f"amdgpu {amd.read_text(encoding='utf-8').strip()}")
    if Path("/dev/kfd").exists():
        return Check("driver", OK, "amdgpu of the kernel")
    return Check("driver", MISSING, "no GPU driver", "Install NVIDIA's driver, or ROCm's amdgpu.")


def _graphs() -> Check:
    """A graph of one kernel, captured with its nodes counted."""
    torch = _torch_module()
    if torch is None or not torch.cuda.is_available():
        return Check("graphs", MISSING, "no GPU that torch can use", "Graphs are captured on a GPU.")
    from fusionscope.fusion_runtime.graph_nodes import captured_nodes

    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        counted = captured_nodes()
    graph.replay()
    torch.cuda.synchronize()
    if counted is None:
        return Check(
            "graphs", LIMITED, "captured and replayed, nodes cannot be counted", "Boundaries are known by names."
        )
    return Check("graphs", OK, "captured and replayed, nodes counted")


def _nsys() -> Check:
    path = nsys.find()
    if path is None:
        return Check("nsys", MISSING, nsys.unavailable(), f"{nsys.HELP} (NVIDIA GPUs)")
    version = nsys.version(path) or "unknown version"
    if missing := nsys.missing_libraries(path):
        return Check("nsys", LIMITED, f"{version} at {path}; {nsys.unavailable()}", nsys.install(missing))
    return Check("nsys", OK, f"{version} at {path}")


def _cupti() -> Check:
    if reason := cupti.unavailable():
        return Check("cupti", MISSING, reason, "pip install 'fusionscope[cuda]' (NVIDIA GPUs)")
    torch = _torch_module()
    cuda = tuple(int(n) for n in str(getattr(getattr(torch, "version", None), "cuda", "") or "0").split(".")[:2])
    found = f"cupti-python {metadata.version('cupti-python')}"
    if (0,) < cuda < SAFE_CUPTI:
        fix = (
            "Set DISABLE_CUPTI_LAZY_REINIT=1 and TEARDOWN_CUPTI=0: before CUDA 12.6 a second profile can lose kernels."
        )
        return Check("cupti", LIMITED, f"{found}, CUDA {cuda[0]}.{cuda[1]}", fix)
    return Check("cupti", OK, found)


def _rocprofv3() -> Check:
    path = wrappers.find_rocprofv3()
    if path is None:
        fix = "It comes with ROCm 6.2 and later (package rocprofiler-sdk). (AMD GPUs)"
        return Check("rocprofv3", MISSING, "not on PATH nor in /opt/rocm/bin", fix)
    match = re.search(r"\d+\.\d+(\.\d+)?", _said(str(path), "--version"))
    return Check("rocprofv3", OK, f"{match[0] if match else 'unknown version'} at {path}")


def _permissions() -> Check:
    kfd = Path("/dev/kfd")
    if kfd.exists() and not os.access(kfd, os.R_OK | os.W_OK):
        fix = "Add yourself to the groups render and video: sudo usermod -aG render,video $USER, then log in again."
        return Check("permissions", LIMITED, "/dev/kfd cannot be opened by this user", fix)
    # Kernel times need no special right; hardware counters (Nsight Compute) do, and they are not used here.
    return Check("permissions", OK, "kernel times need no special right")


def _compiler() -> Check:
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), "")
    if not found:
        fix = "apt-get install g++: the path `inductor` needs one on the CPU, and Triton a C compiler."
        return Check("compiler", MISSING, "no C++ compiler", fix)
    return Check("compiler", OK, str(shutil.which(found)))


def _perfetto() -> Check:
    binary = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    found = f"package {metadata.version('perfetto')}"
    if binary is None:
        return Check("perfetto", OK, f"{found}; no trace_processor, which is not needed to read .pftrace files")
    return Check("perfetto", OK, f"{found}, {binary}")


def _engines() -> Check:
    found = []
    for engine, package in (("sglang", "sglang"), ("vllm", "vllm"), ("trtllm", "tensorrt-llm")):
        try:
            found.append(f"{engine} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    if not found:
        fix = f"Install FusionScope into an engine's environment (here: {sys.prefix}), or put the command after `--`."
        return Check("engines", MISSING, "none in this environment", fix)
    return Check("engines", OK, ", ".join(found))

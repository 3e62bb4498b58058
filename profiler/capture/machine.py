"""What machine a capture ran on: GPU, driver, clocks, library versions."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = (
    "torch",
    "triton",
    "flashinfer-python",
    "cupti-python",
    "cuda-bindings",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "amd-aiter",
    "numpy",
)


def describe(device: str, index: int = 0) -> dict[str, str]:
    """Facts as text; what cannot be found out is left out."""
    facts = {"python": platform.python_version(), "system": platform.platform(), "cpu": _cpu()}
    for name in _LIBRARIES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if device == "cuda":
        import torch

        facts["gpu"] = str(torch.cuda.get_device_name(index))
        facts["gpus"] = str(torch.cuda.device_count())
        facts["cuda"] = str(torch.version.cuda)
        facts.update(_nvml(index))
    return {name: value for name, value in facts.items() if value}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _nvml(index: int) -> dict[str, str]:
    """Driver, clocks, power and throttle reasons, where nvidia-ml-py is installed."""
    try:
        import pynvml
        import torch
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        # The order of NVML's devices is not torch's where CUDA_VISIBLE_DEVICES is set: the UUID is the same.
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        return _ask(pynvml, handle)
    except (pynvml.NVMLError, AttributeError):
        return {}


def _ask(nvml: Any, handle: Any) -> dict[str, str]:
    reasons: Any = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    questions: dict[str, Callable[[], Any]] = {
        "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: f"0x{reasons(handle):x}",
    }
    facts = {}
    for name, ask in questions.items():
        try:
            answer = ask()
        except nvml.NVMLError:
            continue
        facts[name] = answer.decode() if isinstance(answer, bytes) else str(answer)
    return facts

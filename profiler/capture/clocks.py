"""What the GPU's clocks did while something was measured: a differing clock is a differing machine."""

from __future__ import annotations

from typing import Any

import msgspec


class Reading(msgspec.Struct, kw_only=True):
    """One look at the GPU; -1 where NVML does not tell. `reasons` is NVML's bit set of throttle reasons."""

    sm_mhz: int = -1
    memory_mhz: int = -1
    temperature_c: int = -1
    reasons: int = 0


#: Bits of NVML's clocks event reasons that mean that something held the clocks down.
HELD_DOWN = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


class Clocks:
    """Reads clocks and throttle reasons of a torch device, and never sets one."""

    def __init__(self, index: int = 0) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml
            import torch

            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._nvml = pynvml
        except Exception:  # no NVML, no such device, no CUDA: nothing is known then, and nothing breaks
            self._nvml = None

    def read(self) -> Reading:
        """Clocks, temperature and throttle reasons now."""
        nvml = self._nvml
        if nvml is None:
            return Reading()
        reasons: Any = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        try:
            return Reading(
                sm_mhz=int(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)),
                memory_mhz=int(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM)),
                temperature_c=int(nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)),
                reasons=int(reasons(self._handle)),
            )
        except nvml.NVMLError:
            return Reading()


def summary(readings: list[Reading]) -> dict[str, str]:
    """The readings as facts of a run's `machine`: range of the SM clock, hottest, and what held the clocks down."""
    known = [r for r in readings if r.sm_mhz >= 0]
    if not known:
        return {}
    seen = 0
    for reading in known:
        seen |= reading.reasons
    held = [name for bit, name in HELD_DOWN.items() if seen & bit]
    clocks = [r.sm_mhz for r in known]
    return {
        "sm_clock_mhz_measured": f"{min(clocks)} to {max(clocks)}",
        "temperature_c_measured": f"{min(r.temperature_c for r in known)} to {max(r.temperature_c for r in known)}",
        "throttle_reasons_measured": f"0x{seen:x}" + (f" ({', '.join(held)})" if held else ""),
    }

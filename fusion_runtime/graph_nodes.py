"""How many nodes the graph under capture has: the count before and after a boundary brackets its nodes.

CUDA's driver and HIP's runtime have the same two calls; they are taken from the library that the process has loaded
anyway, so that nothing has to be installed beside PyTorch. Importing this module imports nothing else.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from fusionscope.fusion_runtime.errors import RuntimeContractError

_ACTIVE = 1


@dataclass(frozen=True)
class Api:
    """Where the calls of one vendor are."""

    libraries: tuple[str, ...]
    #: (stream, status*, id*, graph*, dependencies**, count*)
    capture_info: str
    #: (graph, nodes*, count*): the count alone where nodes is null.
    get_nodes: str


#: cuStreamGetCaptureInfo_v2 is in every driver since CUDA 11.3 and kept in later ones.
CUDA = Api(("libcuda.so.1", "nvcuda.dll"), "cuStreamGetCaptureInfo_v2", "cuGraphGetNodes")
#: HIP since ROCm 5.2.
HIP = Api(
    ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "amdhip64.dll"),
    "hipStreamGetCaptureInfo_v2",
    "hipGraphGetNodes",
)


class CaptureCounter:
    """Counts the nodes of graphs under capture through one vendor's library."""

    def __init__(self, api: Api, library: Any = None) -> None:
        """Raises RuntimeContractError where the library, or a call in it, is missing."""
        loaded = load(api.libraries) if library is None else library
        try:
            self._info = getattr(loaded, api.capture_info)
            self._nodes = getattr(loaded, api.get_nodes)
        except AttributeError as error:
            raise RuntimeContractError(
                f"{api.libraries[0]} has no {error.args[0].split()[-1]}: nodes of graphs cannot be counted with this "
                "driver, so boundaries are marked by ranges alone."
            ) from error
        self._name = api.get_nodes
        for call in (self._info, self._nodes):
            call.restype = ctypes.c_int
        word = ctypes.c_void_p
        self._info.argtypes = [word] * 6
        self._nodes.argtypes = [word] * 3

    def count(self, stream: int) -> tuple[int, int] | None:
        """(id of the capture, nodes so far) of the graph that `stream` (its handle) is capturing; None if it is not.

        Raises RuntimeContractError where the library refuses to count.
        """
        status, number = ctypes.c_int(0), ctypes.c_ulonglong(0)
        graph, waits = ctypes.c_void_p(), ctypes.c_void_p()
        size = ctypes.c_size_t(0)
        by = ctypes.byref
        if self._info(stream, by(status), by(number), by(graph), by(waits), by(size)) or status.value != _ACTIVE:
            return None
        code = self._nodes(graph, None, by(size))
        if code:
            raise RuntimeContractError(f"{self._name} failed with {code} during capture.")
        return int(number.value), int(size.value)


def load(names: tuple[str, ...]) -> Any:
    """The first of these libraries that loads. Raises RuntimeContractError where none does."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeContractError(f"{names[0]} cannot be loaded: graphs under capture cannot be looked into here.")


def captured_nodes(strict: bool = False) -> tuple[int, int] | None:
    """(id of the capture, nodes so far) of torch's current stream; None where torch captures nothing.

    A library that cannot count makes it None as well, so that somebody's capture goes on; `strict` raises its
    RuntimeContractError instead.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return None
    try:
        return _counter("hip" if torch.version.hip else "cuda").count(torch.cuda.current_stream().cuda_stream)
    except RuntimeContractError:
        if strict:
            raise
        return None


@cache
def _counter(vendor: str) -> CaptureCounter:
    return CaptureCounter(HIP if vendor == "hip" else CUDA)

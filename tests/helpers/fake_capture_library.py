"""A shared library with the two calls of HIP's (and CUDA's) graph capture, compiled from a few lines of C.

`set_state(status, id, nodes, code)` says what the calls answer.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_SOURCE = """
#include <stddef.h>
static int status_, code_; static unsigned long long id_; static size_t nodes_; static int graph_;
void set_state(int status, unsigned long long id, size_t nodes, int code) {
  status_ = status; id_ = id; nodes_ = nodes; code_ = code;
}
int INFO(void *stream, int *status, unsigned long long *id, void **graph, void **waits, size_t *count) {
  if (stream == NULL) return 400;
  *status = status_; *id = id_; *graph = &graph_; *waits = NULL; *count = 1;
  return 0;
}
int NODES(void *graph, void **nodes, size_t *count) {
  if (graph != &graph_ || nodes != NULL) return 1;
  *count = nodes_;
  return code_;
}
"""


def build(folder: Path, info: str, nodes: str) -> Any:
    """The library with its calls under these names; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake library with")
    source, made = folder / "fake.c", folder / "libfake.so"
    source.write_text(_SOURCE)
    line = [compiler, "-shared", "-fPIC", f"-DINFO={info}", f"-DNODES={nodes}", "-o", str(made), str(source)]
    subprocess.run(line, check=True)
    library = ctypes.CDLL(str(made))
    library.set_state.argtypes = [ctypes.c_int, ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_int]
    return library

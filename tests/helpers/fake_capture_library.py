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


_GRAPH = """
#include <stddef.h>
#define N 4
static char nodes_[N]; static int fails_;
void set_fails(int code) { fails_ = code; }
int hipGraphGetNodes(void *graph, void **nodes, size_t *count) {
  if (graph != (void *)7) return 1;
  if (nodes) for (size_t k = 0; k < N; k++) nodes[k] = &nodes_[k];
  *count = N;
  return 0;
}
int hipGraphNodeGetType(void *node, int *type) {
  *type = (char *)node == &nodes_[1] ? 1 : 0;  /* the second is a copy */
  return fails_;
}
int hipGraphGetEdges(void *graph, void **from, void **to, size_t *count) {
  if (graph != (void *)7) return 1;
  if (from) for (size_t k = 0; k + 1 < N; k++) { from[k] = &nodes_[N - 2 - k]; to[k] = &nodes_[N - 1 - k]; }
  *count = N - 1;
  return 0;
}
static unsigned long long calls_;
unsigned long long calls(void) { return calls_; }
int roctxProfilerResume(unsigned long long thread) { calls_ = calls_ * 10 + 1 + thread; return 0; }
int roctxProfilerPause(unsigned long long thread) { calls_ = calls_ * 10 + 2 + thread; return 0; }
"""


def build_hip(folder: Path) -> Any:
    """A HIP runtime that knows one graph (handle 7): kernel, copy, kernel, kernel in a chain; and roctx's two calls."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake library with")
    source, made = folder / "hip.c", folder / "libhip.so"
    source.write_text(_GRAPH)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))

"""Stand-ins for nsys, rocprofv3 and the engines: they check how they are called and write real formats.

`install` puts them into a folder for PATH and PYTHONPATH. A fake engine that calls its profiler appends to the file
`calls` in $FAKE_STATE, as cudaProfilerStart would tell nsys; every program appends its arguments to `arguments`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HELPERS = Path(__file__).parent

_COMMON = '''
import json, os, signal, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {helpers!r})
import fake_traces
STATE = Path(os.environ["FAKE_STATE"])

def note(name, what):
    with (STATE / name).open("a") as file:
        file.write(json.dumps(what) + "\\n")

def refuse(why):
    print("refused:", why)
    sys.exit(64)

def run(command):
    """The command's exit code; an interrupt ends it, as it ends what a profiler has started."""
    child = subprocess.Popen(command)
    interrupted = []
    signal.signal(signal.SIGINT, lambda *_: (interrupted.append(1), child.terminate()))
    note("pids", [os.getpid(), child.pid])
    code = child.wait()
    return 0 if interrupted else code

def ranks():
    """Pids of the ranks that the engine told of."""
    path = STATE / "ranks"
    return json.loads(path.read_text()) if path.exists() else [os.getpid()]
'''

_NSYS = """
if sys.argv[1:] == ["--version"]:
    print("NVIDIA Nsight Systems version 2026.2.1.100-0")
    sys.exit()
if sys.argv[1] != "profile":
    refuse("not profile")
options = [a for a in sys.argv[2:] if a.startswith("--")]
command = sys.argv[2:]
while command and command[0].startswith("--"):
    command.pop(0)
given = dict(a.removeprefix("--").split("=", 1) for a in sys.argv[2:len(sys.argv) - len(command)])
note("arguments", ["nsys", *sys.argv[1:]])
if given.get("cuda-graph-trace") not in ("node", "graph"):
    refuse("cuda-graph-trace")
write = fake_traces.nsys if given["cuda-graph-trace"] == "node" else fake_traces.nsys_graphs
for key, value in (("trace", "cuda,nvtx"), ("export", "sqlite"),
                   ("trace-fork-before-exec", "true"), ("force-overwrite", "true")):
    if given.get(key) != value:
        refuse(key)
code = run(command)
if "capture-range" not in given or (STATE / "calls").exists():
    repeated = given.get("capture-range-end") == "repeat"
    write(Path(given["output"] + (".1.sqlite" if repeated else ".sqlite")), ranks())
sys.exit(code)
"""

_ROCPROF = """
at = sys.argv.index("--")
options, command = sys.argv[1:at], sys.argv[at + 1:]
note("arguments", ["rocprofv3", *sys.argv[1:]])
for flag in ("--kernel-trace", "--hip-trace", "--marker-trace"):
    if flag not in options:
        refuse(flag)
if "%pid%" not in options[options.index("-o") + 1]:
    refuse("all workers would write one file")
code = run(command)
out = Path(options[options.index("-d") + 1])
if "--selected-regions" not in options or (STATE / "calls").exists():
    for rank, pid in enumerate(ranks()):
        name = options[options.index("-o") + 1].replace("%hostname%", "h").replace("%pid%", str(pid))
        fake_traces.rocprofv3(out / f"{name}_results.json", pid, rank)
sys.exit(code)
"""

_BENCH = """
import argparse
parser = argparse.ArgumentParser()
for name in ("--model-path", "--profile-stage", "--result-filename"):
    parser.add_argument(name)
for name in ("--tp", "--batch-size", "--input-len", "--output-len", "--profile-steps"):
    parser.add_argument(name, type=int)
parser.add_argument("--profile", action="store_true")
parser.add_argument("--profile-activities", nargs="+", default=[])
parser.add_argument("--trust-remote-code", action="store_true")
given = parser.parse_args()
note("arguments", ["sglang", *sys.argv[1:]])
(STATE / "ranks").write_text(json.dumps([os.getpid() + k for k in range(given.tp)]))
if given.profile and given.profile_steps >= given.output_len - given.output_len // 2:
    refuse("the profile would not end")
if given.profile_activities == ["CUDA_PROFILER"]:
    note("calls", "start")
if given.profile_activities == ["CPU", "GPU"]:
    for stage in ("prefill", "decode"):
        name = f"profile_batch{given.batch_size}_input{given.input_len}_output{given.output_len}_{stage}.trace.json.gz"
        fake_traces.kineto(Path(os.environ["SGLANG_TORCH_PROFILER_DIR"]) / name, os.getpid(), 0)
print("Benchmark ...")
"""

_SERVER = """
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
note("arguments", [NAME, *sys.argv[1:]])
port = int(sys.argv[sys.argv.index("--port") + 1])
tp = int(sys.argv[sys.argv.index("--tp" if NAME == "sglang" else "--tensor-parallel-size") + 1])
(STATE / "ranks").write_text(json.dumps([os.getpid() + k for k in range(tp)]))
config = json.loads(sys.argv[sys.argv.index("--profiler-config") + 1]) if NAME == "vllm" else {}
profiling = {}
started = time.monotonic()

def write():
    if profiling.get("cuda"):
        note("calls", "start")
    elif NAME == "sglang":
        for rank in range(tp):
            fake_traces.kineto(Path(profiling["dir"]) / f"17-TP-{rank}.trace.json.gz", os.getpid() + rank, rank)
    else:
        for rank in range(tp):
            name = f"dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.17.pt.trace.json.gz"
            fake_traces.kineto(Path(profiling["dir"]) / name, os.getpid() + rank, rank)

class Handler(BaseHTTPRequestHandler):
    def answer(self, code):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(b"{}")
    def do_GET(self):
        # A server is not ready at once.
        self.answer(200 if time.monotonic() - started > 0.3 else 503)
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note("requests", [self.path, {k: v for k, v in body.items() if k not in ("prompt", "input_ids")}])
        if self.path == "/start_profile":
            if os.environ.get("FAKE_REFUSES"):
                return self.answer(500)
            if NAME == "sglang":
                profiling.update(cuda=body["activities"] == ["CUDA_PROFILER"], dir=body["output_dir"])
                threading.Timer(0.02, write).start()
            else:
                profiling.update(cuda=config["profiler"] == "cuda", dir=config.get("torch_profiler_dir"))
        elif self.path == "/stop_profile":
            write()
        elif body.get("stream"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"data: {}\\n\\n")
            self.wfile.flush()
            note("requests", ["first token", {}])
            time.sleep(0.3)
            return self.wfile.write(b"data: [DONE]\\n\\n")
        else:
            time.sleep(0.2)
        self.answer(200)
    def log_message(self, *_):
        pass

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
signal.signal(signal.SIGINT, lambda *_: os._exit(0))
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

_TRTLLM = """
note("arguments", ["trtllm", *sys.argv[1:]])
if sys.argv[sys.argv.index("--warmup") + 1] != "0":
    refuse("the warm-up would be recorded")
tp = int(sys.argv[sys.argv.index("--tp") + 1])
rows = [json.loads(line) for line in Path(sys.argv[sys.argv.index("--dataset") + 1]).read_text().splitlines()]
first, last = map(int, os.environ["TLLM_PROFILE_START_STOP"].split("-"))
if min(row["output_tokens"] for row in rows) <= last or len({row["task_id"] for row in rows}) != len(rows):
    refuse("the dataset ends before the profile")
(STATE / "ranks").write_text(json.dumps([os.getpid() + k for k in range(tp)]))
if "TLLM_TORCH_PROFILE_TRACE" in os.environ:
    for rank in range(tp):
        base, extension = os.path.splitext(os.environ["TLLM_TORCH_PROFILE_TRACE"])
        fake_traces.kineto(Path(f"{base}-rank-{rank}{extension}"), os.getpid() + rank, rank)
else:
    note("calls", "start")
"""


def install(folder: Path, state: Path) -> dict[str, str]:
    """Write the programs into `folder` -> the environment in which they are found."""
    common = _COMMON.replace("{helpers!r}", repr(str(HELPERS)))
    programs = {
        "nsys": common + _NSYS,
        "rocprofv3": common + _ROCPROF,
        "vllm": common + "\nNAME = 'vllm'\n" + _SERVER,
        "trtllm-bench": common + _TRTLLM,
    }
    folder.mkdir(parents=True, exist_ok=True)
    state.mkdir(parents=True, exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)
    package = folder / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "bench_one_batch.py").write_text(common + _BENCH)
    (package / "launch_server.py").write_text(common + "\nNAME = 'sglang'\n" + _SERVER)
    return {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "FAKE_STATE": str(state),
        "NSYS": str(folder / "nsys"),
    }

"""How each engine is started so that it decodes one batch from graphs and profiles that: commands and requests.

Flags as the engines documented them in 2026 (SGLang 0.5, vLLM 0.13 and later, TensorRT-LLM 1.x); with other versions
put the command after `--` yourself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusionscope.profiler.capture.plan import CaptureError

#: Tokens of each prompt where the user names no number.
CONTEXT = 1024
#: The first iteration that TensorRT-LLM records: graphs are captured and the batch is decoding by then.
_TRTLLM_FIRST = 100


@dataclass(frozen=True)
class Job:
    """What is to be recorded."""

    model_path: str
    tp: int
    batch: int
    context: int
    #: Decode forwards to record.
    steps: int
    #: The profiler: nsys, rocprofv3 or torch.
    profiler: str
    out: Path
    #: Where a server listens.
    port: int = 0
    #: More options of the user's for the engine.
    more: tuple[str, ...] = ()

    @property
    def output(self) -> int:
        """Tokens to generate, so that the recorded steps lie in the second half."""
        return max(16, 2 * self.steps + 8)


@dataclass(frozen=True)
class Request:
    """One POST to a server. `times`: so many at once."""

    path: str
    body: dict[str, Any]
    times: int = 1


@dataclass(frozen=True)
class Server:
    """How a server is led to profile itself: wait until it is ready, warm it, then profile under load."""

    ready: str
    load: Request
    start: Request
    stop: Request | None
    #: The profile starts before the load comes, and skips its prefill itself.
    start_first: bool = False


@dataclass(frozen=True)
class Recipe:
    """One engine's command. `recorded`: what calls the profiler, "api" the engine, "all" nobody."""

    command: list[str]
    recorded: str
    env: dict[str, str] = field(default_factory=dict)
    server: Server | None = None
    repeat: bool = False
    #: Files to write before the start: name in the folder of the capture, and text.
    files: dict[str, str] = field(default_factory=dict)


def _activities(profiler: str) -> list[str]:
    return ["CPU", "GPU"] if profiler == "torch" else ["CUDA_PROFILER"]


def sglang(job: Job) -> Recipe:
    """`sglang.bench_one_batch`: no server and no scheduler, one static batch."""
    command = [
        *(sys.executable, "-m", "sglang.bench_one_batch", "--model-path", job.model_path, "--tp", str(job.tp)),
        *("--batch-size", str(job.batch), "--input-len", str(job.context), "--output-len", str(job.output)),
        # It would append to result.jsonl in the user's folder.
        *("--result-filename", str(job.out / "result.jsonl")),
    ]
    # rocprofv3 does not listen to the profiler calls of HIP: there the whole batch is recorded.
    if job.profiler != "rocprofv3":
        command += ["--profile", "--profile-activities", *_activities(job.profiler), "--profile-stage", "decode"]
        command += ["--profile-steps", str(job.steps)]
    return Recipe([*command, *job.more], "all" if job.profiler == "rocprofv3" else "api")


def sglang_server(job: Job) -> Recipe:
    """`sglang.launch_server` and POST /start_profile."""
    command = [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", job.model_path, "--tp", str(job.tp)),
        *("--host", "127.0.0.1", "--port", str(job.port), "--max-running-requests", str(job.batch)),
    ]
    prompt = [1 + k % 1000 for k in range(job.context)]
    # Long enough that the batch still decodes when the profile starts.
    sampling = {"max_new_tokens": 1024 + job.output, "temperature": 0, "ignore_eos": True}
    load = Request("/generate", {"input_ids": [prompt] * job.batch, "sampling_params": sampling, "stream": True})
    body = {
        "output_dir": str(job.out),
        "num_steps": job.steps,
        "activities": _activities(job.profiler),
        "merge_profiles": False,
        "with_stack": False,
    }
    start = Request("/start_profile", body)
    return Recipe([*command, *job.more], _recorded(job), server=Server("/health", load, start, None))


def vllm_server(job: Job) -> Recipe:
    """`vllm serve` with --profiler-config, POST /start_profile and /stop_profile."""
    config: dict[str, Any] = {"profiler": "cuda"}
    if job.profiler == "torch":
        config = {"profiler": "torch", "torch_profiler_dir": str(job.out), "torch_profiler_with_stack": False}
    # The first iterations after the start are the batch's prefill.
    config |= {"delay_iterations": 16, "max_iterations": job.steps, "ignore_frontend": True}
    command = [
        *("vllm", "serve", job.model_path, "--tensor-parallel-size", str(job.tp), "--host", "127.0.0.1"),
        *("--port", str(job.port), "--max-num-seqs", str(job.batch), "--profiler-config", json.dumps(config)),
    ]
    body = {
        "model": job.model_path,
        "prompt": [1 + k % 1000 for k in range(job.context)],
        "max_tokens": 64 + job.output,
        "temperature": 0,
        "ignore_eos": True,
    }
    server = Server(
        "/health",
        Request("/v1/completions", body, times=job.batch),
        Request("/start_profile", {}),
        Request("/stop_profile", {}),
        start_first=True,
    )
    return Recipe([*command, *job.more], _recorded(job), server=server, repeat=True)


def trtllm(job: Job) -> Recipe:
    """`trtllm-bench throughput` on a batch of equal prompts; its executor profiles iterations that are named."""
    rows = [
        {
            "task_id": k,
            "input_ids": [1 + n % 1000 for n in range(job.context)],
            "output_tokens": 2 * _TRTLLM_FIRST + job.output,
        }
        for k in range(job.batch)
    ]
    dataset = "dataset.jsonl"
    command = [
        *("trtllm-bench", "--model", job.model_path, "--model_path", job.model_path, "throughput"),
        *("--backend", "pytorch", "--tp", str(job.tp), "--dataset", str(job.out / dataset)),
        *("--num_requests", str(job.batch), "--concurrency", str(job.batch), "--max_batch_size", str(job.batch)),
        # Iterations are counted from the start: a warm-up of two requests would be what is recorded.
        *("--warmup", "0"),
    ]
    env = {
        "TLLM_PROFILE_START_STOP": f"{_TRTLLM_FIRST}-{_TRTLLM_FIRST + job.steps}",
        "TLLM_LLMAPI_ENABLE_NVTX": "1",
    }
    if job.profiler == "torch":
        env["TLLM_TORCH_PROFILE_TRACE"] = str(job.out / "trtllm.trace.json")
    return Recipe(
        [*command, *job.more],
        "all" if job.profiler == "rocprofv3" else "api",
        env=env,
        files={dataset: "".join(json.dumps(row) + "\n" for row in rows)},
    )


def _recorded(job: Job) -> str:
    return "all" if job.profiler == "rocprofv3" else "api"


#: Engine -> how it runs a batch without a server, and with one; None where there is no such way here.
ENGINES: dict[str, tuple[Callable[[Job], Recipe] | None, Callable[[Job], Recipe] | None]] = {
    "sglang": (sglang, sglang_server),
    "vllm": (None, vllm_server),
    "trtllm": (trtllm, None),
}


def recipe(engine: str, job: Job, serve: bool) -> Recipe:
    """The recipe for `--engine`, with a server where `serve` says so or there is no other way.

    Raises CaptureError for an engine that is not known, or has no server recipe.
    """
    if engine not in ENGINES:
        raise CaptureError(f"--engine takes one of {', '.join(ENGINES)}, not {engine!r}; or put a command after `--`.")
    offline, server = ENGINES[engine]
    if serve and server is None:
        raise CaptureError(f"--engine {engine} has no server recipe: leave --serve out.")
    chosen = server if serve or offline is None else offline
    assert chosen is not None
    return chosen(job)

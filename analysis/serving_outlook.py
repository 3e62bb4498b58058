"""What a saving per forward makes of a server that nobody has benchmarked: time per token and tokens a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusionscope.analysis.serving import Serve, StepSaving, predicted_part


@dataclass(frozen=True)
class Forecast:
    """One batch whose requests all decode. Times in ms a token, throughput in output tokens a second."""

    batch: int
    tpot_ms: tuple[float, float]
    throughput: tuple[float, float]
    #: Part of the time per token that goes, with its interval.
    predicted: float
    predicted_interval: tuple[float, float]
    #: What it would be if the boundary cost nothing; None where the ceiling is not known.
    ceiling: float | None

    def sentence(self) -> str:
        """The forecast in words."""
        low, high = self.predicted_interval
        change = f"{-self.predicted:+.2%}"
        change += f" [{-high:+.2%}, {-low:+.2%}]" if low < high else ""
        return (
            f"Batch {self.batch}: {self.tpot_ms[0]:.3f} -> {self.tpot_ms[1]:.3f} ms a token ({change}), "
            f"{self.throughput[0]:,.1f} -> {self.throughput[1]:,.1f} tokens a second."
        )


def forecasts(savings: Mapping[int, StepSaving], serve: Serve) -> list[Forecast]:
    """A forecast for each batch: a step is the forward and the host's time, and yields the acceptance length a request.

    Where decode steps are only a part of the time per token, the rest is as long as before. None for a part of 0.
    """
    found = []
    for batch, known in sorted(savings.items()):
        step = known.step_ns + (serve.host_ns or 0.0)
        if not step or not serve.decode_share:
            continue
        own = Serve(serve.host_ns or 0.0, serve.accept_length or 1.0, serve.decode_share)
        part = predicted_part(known, known.saving_ns, own)
        before = step / (own.accept_length or 1.0) / own.decode_share / 1e6
        after = before * (1 - part)
        low, high = (predicted_part(known, ns, own) for ns in known.interval_ns)
        ceiling = None if known.ceiling_ns is None else predicted_part(known, known.ceiling_ns, own)
        throughput = (1000 * batch / before, 1000 * batch / after)
        found.append(Forecast(batch, (before, after), throughput, part, (low, high), ceiling))
    return found


def assumed(serve: Serve) -> str:
    """What the forecasts rest on, in one sentence."""
    host = "no host time (give --host-us)" if serve.host_ns is None else f"{serve.host_ns / 1000:g} us of the host's"
    tokens = "one token" if serve.accept_length is None else f"{serve.accept_length:g} tokens"
    share = f"{serve.decode_share:.0%} of the time per token is such steps"
    return f"Without serving results: a step is the forward and {host}, and gives a request {tokens}; {share}."

"""A process group whose GPUs also reach each other's memory: torch's symmetric memory, without multicast.

All-reduces that stand alone go through the process group (NCCL, RCCL). The one-shot kernels write into the peers'
inboxes themselves (kernels/allreduce.py). All inboxes lie in one symmetric buffer of a fixed size; they are cut from it
in the order in which channels are first used, which must be the same on every rank (RanksDisagree). Numbers of tokens
up to the same power of two share their inboxes. What no longer fits declines.
"""

from __future__ import annotations

import itertools
import json
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from fusionscope.fusion_runtime.comm.channel import Channel, ExchangeGroup, counters, inbox_bytes, power_of_two
from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
from fusionscope.fusion_runtime.errors import NoSymmetricMemory, RanksDisagree

CAPACITY = 64 << 20
"""Bytes of the symmetric buffer of each rank: 128 tokens of hidden 7168 take 7 MiB at 2 ranks and 28 MiB at 8."""

_setups: Counter[str] = Counter()
"""Groups made so far, by process group: ranks may be members of different numbers of them."""


@dataclass(frozen=True)
class Place:
    """Where a rank runs, and the bytes that it asks for.

    reachable: GPUs of this machine whose memory its own can reach, None where it cannot tell.
    """

    rank: int
    host: str
    device: str
    gpu: str = ""
    name: str = ""
    reachable: tuple[str, ...] | None = None
    capacity: int = CAPACITY


def place_of(rank: int, device: Any, capacity: int = CAPACITY) -> Place:
    """This rank's place, as the driver tells it."""
    host = socket.gethostname()
    if device.type != "cuda":
        return Place(rank, host, device.type, capacity=capacity)
    # None but the own GPU is visible where a launcher gave every rank one: then nothing is known about the others.
    visible = range(torch.cuda.device_count())
    own = torch.cuda.get_device_properties(device)
    reachable = tuple(
        str(torch.cuda.get_device_properties(i).uuid)
        for i in visible
        if i != device.index and torch.cuda.can_device_access_peer(device.index, i)
    )
    return Place(rank, host, "cuda", str(own.uuid), own.name, reachable if len(visible) > 1 else None, capacity)


def refusal(places: Sequence[Place]) -> str:
    """ "" if ranks at these places can share memory, else why not and what to do, the same on every rank."""
    for place in places:
        if place.device != "cuda":
            return (
                f"Symmetric memory needs a GPU on every rank and rank {place.rank} is on {place.device}: "
                "use a ProcessGroup there."
            )
    for before, place in itertools.combinations(places, 2):
        if before.capacity != place.capacity:
            return (
                f"Rank {before.rank} asks for {before.capacity} bytes of symmetric memory and rank {place.rank} for "
                f"{place.capacity}: give every rank the same capacity."
            )
        if before.host != place.host:
            return (
                f"Symmetric memory joins the GPUs of one host; rank {before.rank} is on {before.host} and rank "
                f"{place.rank} on {place.host}: use a ProcessGroup over hosts."
            )
        if before.gpu == place.gpu:
            return (
                f"Ranks {before.rank} and {place.rank} are on one GPU ({place.name}), and symmetric memory takes one "
                "a rank: start as many ranks as there are GPUs, or emulate them in one process with Loopback."
            )
        for one, other in ((before, place), (place, before)):
            if one.reachable is not None and other.gpu not in one.reachable:
                return (
                    f"The GPU of rank {one.rank} cannot reach the memory of rank {other.rank}'s (no NVLink and no "
                    "peer access; see `nvidia-smi topo -m`): leave the boundaries to split, or choose other GPUs."
                )
    return ""


def _meeting(group: Any) -> Any:
    """Where the ranks of one set-up tell each other things; a collective would fail on what is to be reported."""
    name = group.group_name
    setup, _setups[name] = _setups[name], _setups[name] + 1
    return dist.PrefixStore(f"fusionscope/symmetric/{name}/{setup}", dist.distributed_c10d._get_default_store())


def _told(store: Any, what: str, rank: int, size: int, mine: Any) -> list[Any]:
    """What every rank tells under `what`, in rank order, as JSON has it; waits for the last of them."""
    store.set(f"{what}/{rank}", json.dumps(mine))
    return [json.loads(store.get(f"{what}/{one}")) for one in range(size)]


def _everybody(store: Any, place: Place, size: int) -> list[Place]:
    told = _told(store, "place", place.rank, size, asdict(place))
    return [Place(**{**one, "reachable": one["reachable"] and tuple(one["reachable"])}) for one in told]


def check_same_channel(store: Any, rank: int, size: int, number: int, wanted: Sequence[Any]) -> None:
    """Raises RanksDisagree, on every rank, unless all of them make the same channel, their `number`-th.

    Otherwise they would write into each other's inboxes at places that mean something else there.
    """
    mine = [str(part) for part in wanted]
    for other, theirs in enumerate(_told(store, f"channel/{number}", rank, size, mine)):
        if theirs != mine:
            raise RanksDisagree(
                f"rank {rank} exchanges [{mine[0]}, {mine[1]}] of {mine[2]} in blocks of {mine[3]} and rank {other} "
                f"[{theirs[0]}, {theirs[1]}] of {theirs[2]} in blocks of {theirs[3]}: run the same batch and the same "
                "sites, in the same order, on every rank."
            )


class SymmetricGroup(ProcessGroup, ExchangeGroup):
    """Wraps a process group (the default one if none is given) of GPUs of one host, `capacity` bytes a rank.

    Making one is collective. Raises NoSymmetricMemory, on every rank alike, where the ranks' GPUs cannot share memory.
    """

    def __init__(self, group: Any = None, *, device: Any = None, capacity: int = CAPACITY) -> None:
        ProcessGroup.__init__(self, group)
        ExchangeGroup.__init__(self)
        self._shared: dict[tuple[int, int, int, Any], Channel] = {}
        group = group if group is not None else dist.group.WORLD
        self.device = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
        self.capacity, self._used = capacity, 0
        self._store = _meeting(group)
        why = refusal(_everybody(self._store, place_of(self.rank, self.device, capacity), self.size))
        if why:
            raise NoSymmetricMemory(why)
        self._buffer, self._addresses, self._handle = _allocate(capacity, self.device, group)
        # No rank may write into an inbox that its owner has not emptied yet.
        torch.cuda.synchronize(self.device)
        dist.barrier(group=group)

    def _lacks(self, wanted: int) -> str | None:
        if self._used + wanted <= self.capacity:
            return None
        return (
            f"the symmetric buffer of {self.capacity} bytes has {self.capacity - self._used} left and the exchange "
            f"takes {wanted}"
        )

    def _wanted(self, tokens: int, width: int, block: int, dtype: Any) -> int:
        rows = power_of_two(tokens)
        return 0 if (rows, width, block, dtype) in self._shared else inbox_bytes(self.size, rows, width, dtype)

    def _make(self, tokens: int, width: int, dtype: Any, block: int) -> Channel:
        """A view of the inboxes for the next power of two of tokens.

        Every place of a view has its own slots and epoch, the same in all views, so it does not matter which of them a
        launch takes: exchanges of one place still follow each other, and a launch without it is one that waits more.
        """
        lacking = self._lacks(self._wanted(tokens, width, block, dtype))
        if lacking:
            raise NoSymmetricMemory(f"{lacking[0].upper()}{lacking[1:]}: give SymmetricGroup a larger capacity.")
        self._check_same(tokens, width, dtype, block)
        key = (power_of_two(tokens), width, block, dtype)
        if key not in self._shared:
            self._shared[key] = self._cut(*key)
        return replace(self._shared[key], tokens=tokens)

    def _cut(self, rows: int, width: int, block: int, dtype: Any) -> Channel:
        """Empty inboxes for `rows` tokens out of the buffer."""
        addresses = [address + self._used for address in self._addresses]
        self._used += inbox_bytes(self.size, rows, width, dtype)
        inboxes = torch.tensor(addresses, dtype=torch.int64, device=self.device)
        epochs, sums = counters(1, rows, -(-width // block), self.device)
        return Channel(
            self.size, rows, width, block, dtype, self.rank, False, inboxes, epochs, sums, self._buffer, rows
        )

    def _check_same(self, tokens: int, width: int, dtype: Any, block: int) -> None:
        check_same_channel(self._store, self.rank, self.size, len(self._channels), (tokens, width, dtype, block))


def _allocate(capacity: int, device: Any, group: Any) -> tuple[Any, list[int], Any]:
    """(this rank's empty buffer, every rank's address of its own, torch's handle)."""
    try:
        import torch.distributed._symmetric_memory as symmetric

        buffer = symmetric.empty(capacity, dtype=torch.int8, device=device)
        buffer.fill_(-1)
        handle = symmetric.rendezvous(buffer, group)
    except (ImportError, RuntimeError) as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        raise NoSymmetricMemory(
            f"torch {torch.__version__} could not set up symmetric memory ({said}): leave the boundaries to split."
        ) from error
    return buffer, [int(address) for address in handle.buffer_ptrs], handle

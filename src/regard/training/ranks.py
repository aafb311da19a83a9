"""Several processes that train one model together (data parallelism).

An update consists of the same micro-batches, whatever the number of processes. Process r of N computes those with the numbers
r, r + N, …; then the sums of the gradients are added up over all processes, so that every process makes the same update.
Process 0 prints, validates and writes files; the others follow it (`training.follower`).

The processes are started by `regard train --processes N`, on one machine, or by torchrun, on any number of machines that share
the folder of the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined]

from regard.core.devices import num_cores
from regard.errors import UserError, plural
from regard.training.settings import RunSettings, TrainSettings

PATIENCE = timedelta(days=7)
"""How long a process waits for the others, which may read the data or validate. A process that ends is noticed at once."""
_LOOPBACK = "127.0.0.1"


class Ranks:
    """The processes of a run, as one of them sees them: its rank, and how many there are. By default, there is only one.

    store: where process 0 leaves a message for the others.
    children: the processes that this one has started.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        store: Store | None = None,
        children: Sequence[subprocess.Popen[bytes]] = (),
    ) -> None:
        self.rank, self.size, self._store, self._children = rank, size, store, children

    def announce(self, facts: Mapping[str, Any]) -> None:
        """Announces to the others that training begins, with what they need to know. For process 0."""
        if self._store:
            self._store.set("run", json.dumps(facts))

    def announced(self) -> dict[str, Any]:
        """Waits for `announce` and returns its facts. Raises UserError if process 0 ended before."""
        assert self._store
        with self.others_alive():
            facts: dict[str, Any] = json.loads(self._store.get("run"))
        return facts

    def total(self, number: float) -> float:
        """Returns the sum of a number over all processes."""
        if self.size == 1:
            return number
        sum_1 = torch.tensor([number], dtype=torch.float64)
        with self.others_alive():
            dist.all_reduce(sum_1)
        return sum_1.item()

    def of_first(self, number: float) -> float:
        """Returns the number of process 0."""
        return self.total(number if self.rank == 0 else 0.0)

    def add_up(self, parameters: Iterable[nn.Parameter], loss: float, stop: bool) -> tuple[float, bool]:
        """Replaces the gradients by their sums over all processes, in one exchange. A parameter that no process used keeps no
        gradient. Returns the sum of the losses, and whether any process is to stop."""
        if self.size == 1:
            return loss, stop
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        used = [float(parameter.grad is not None) for parameter in trained]
        figures = torch.tensor([loss, float(stop), *used], dtype=trained[0].dtype, device=trained[0].device)
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in trained]
        sums = torch.cat([figures, *(gradient.flatten() for gradient in gradients)])
        with self.others_alive():
            dist.all_reduce(sums)
        added, *parts = sums.split([len(figures), *(parameter.numel() for parameter in trained)])
        loss, stops, *uses = added.tolist()
        for parameter, number, part in zip(trained, uses, parts, strict=True):
            parameter.grad = part.view_as(parameter) if number else None
        return loss, stops > 0

    def check(self, settings: RunSettings) -> None:
        """Raises UserError if the processes cannot share out the updates of a run."""
        if self.size == 1:
            return
        train = settings.train
        if train.accumulate < self.size:
            parts = plural(train.accumulate, "micro-batch", "micro-batches")
            raise UserError(
                f"train.accumulate is {train.accumulate}, so an update has {parts} for {self.size} processes; "
                f"set train.accumulate={self.size} or more, and train.batch_tokens to a part of {train.batch_tokens} if "
                "updates shall stay as large as they are"
            )
        if settings.model.traits.sampled_attention and train.policy_gradient and train.baseline == "moving":
            raise UserError(
                "train.baseline is moving, an average that each micro-batch hands on to the next, so processes cannot share "
                "out the micro-batches; set train.samples=4 and train.baseline=leave_one_out, or train with one process"
            )

    def share(self, device: str, threads: int | None) -> tuple[str, int | None]:
        """Returns the device and the number of threads of this process, as far as they are not given: a GPU of its own, or its
        share of the cores."""
        if self.size == 1:
            return device, threads
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        if device in ("auto", "cuda") and torch.cuda.is_available():
            device = f"cuda:{os.environ.get('LOCAL_RANK', self.rank)}"
        return device, threads or max(1, num_cores() // here)

    @contextmanager
    def others_alive(self) -> Iterator[None]:
        """Turns the error of a lost connection into a UserError."""
        try:
            yield
        except RuntimeError as error:  # gloo and nccl have no type of their own
            codes = [code for child in self._children if (code := _ended(child)) is not None]
            how = f" with the exit code {codes[0]}" if codes else ""
            raise UserError(
                f"one of the {self.size} processes of this run ended{how}, so the others stopped, too; perhaps it ran out of "
                "memory. Run the same command to continue from the last checkpoint",
                details=str(error),
            ) from error


def num_restarts() -> int:
    """Returns how often torchrun has started the processes again because one of them ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def shared_out(train: TrainSettings, size: int) -> TrainSettings:
    """Returns settings whose updates are about as large, but have a micro-batch for each of `size` processes."""
    return replace(train, accumulate=size, batch_tokens=max(1, train.batch_tokens * train.accumulate // size))


@contextmanager
def several(processes: int) -> Iterator[Ranks]:
    """Starts the other processes of a run, which repeat the command line of this one, unless torchrun has done it; yields the
    ranks. The processes that were started here end with the block."""
    if dist.is_torchelastic_launched():
        if processes > 1:
            raise UserError("torchrun sets the number of processes; leave out --processes")
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        store = PrefixStore(f"restart {num_restarts()}", store)  # the store still has the entries of the processes that ended
        with connected(store, rank, size):
            yield Ranks(rank, size, store)
    elif "REGARD_RANK" in os.environ:
        rank, size, port = (int(os.environ[f"REGARD_{name}"]) for name in ("RANK", "PROCESSES", "PORT"))
        store = TCPStore(_LOOPBACK, port, size, is_master=False, timeout=PATIENCE)
        with connected(store, rank, size):
            yield Ranks(rank, size, store)
    elif processes > 1:
        store = TCPStore(_LOOPBACK, 0, processes, is_master=True, wait_for_workers=False, timeout=PATIENCE)
        with ExitStack() as stack:
            children = [stack.enter_context(_child(rank, processes, store.port)) for rank in range(1, processes)]
            stack.enter_context(connected(store, 0, processes))
            yield Ranks(0, processes, store, children)
    else:
        yield Ranks()


@contextmanager
def connected(store: Store, rank: int, size: int) -> Iterator[None]:
    """Connects the processes with each other inside the block."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _child(rank: int, size: int, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process that repeats this command line with another rank, and ends it with the block."""
    environment = {"REGARD_RANK": str(rank), "REGARD_PROCESSES": str(size), "REGARD_PORT": str(port)}
    command = [sys.executable, "-m", "regard", *sys.argv[1:]]
    child = subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
        child.kill()
        child.wait()


GRACE = 5
"""Seconds that the other processes have to end by themselves."""


def _ended(child: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code of a process that ends now; None if it goes on."""
    try:
        return child.wait(0.5)
    except subprocess.TimeoutExpired:
        return None

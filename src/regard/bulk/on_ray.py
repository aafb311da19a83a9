"""Translates shards on a Ray cluster, through Ray Data: one actor per group of cores, which loads the model once.

Ray starts the actors, hands them shards as they become free, restarts those that end, and shows the progress. All machines must
see the same files: the model, the input and the output.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.bulk.shards import Done, Shard, num_broken_off, translate_shard
from regard.core.devices import num_cores
from regard.errors import UserError
from regard.pipeline.translator import Translator

RETRIES = 3
"""How often a shard is tried again after its actor ended unexpectedly. Ray itself starts actors again without end."""


class Actor:
    """Translates shards in a process that Ray starts."""

    def __init__(self, load: Callable[[], Translator], threads: int, search: Mapping[str, Any], columns: Sequence[str]) -> None:
        import torch

        torch.set_num_threads(threads)
        self.translator, self.search, self.columns = load(), search, columns

    def __call__(self, row: dict[str, str]) -> dict[str, Any]:
        shard = Shard(Path(row["source"]), Path(row["output"]))
        if (number := num_broken_off(shard)) > RETRIES:
            raise UserError(
                f"{shard.source}: the actor that translated it ended unexpectedly {number} times, perhaps for lack of memory; "
                "split the file, or give each actor more of the machine with --threads"
            )
        return asdict(translate_shard(self.translator, shard, self.search, self.columns))


def translate_on_ray(
    address: str,
    load: Callable[[], Translator],
    shards: Sequence[Shard],
    search: Mapping[str, Any],
    columns: Sequence[str] = (),
    threads: int = 1,
) -> Iterator[Done]:
    """Yields each shard when it is translated. address: of the cluster; "local" starts one on this machine. load: returns the
    model, in any process. threads: the cores of each actor. Raises UserError."""
    if importlib.util.find_spec("ray") is None:
        raise UserError('--ray needs Ray; type: pip install "regard[scale]"')
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use over the network
    ray: Any = importlib.import_module("ray")
    importlib.import_module("ray.data")
    try:
        ray.init(
            None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False, include_dashboard=False
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"--ray {address}: cannot connect to this Ray cluster: {error}") from None
    try:
        cores = int(ray.cluster_resources().get("CPU", num_cores()))
        rows = [{"source": str(shard.source.resolve()), "output": str(shard.output.resolve())} for shard in shards]
        number = max(1, min(cores // threads, len(rows)))
        data = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            Actor,
            fn_constructor_args=(load, threads, dict(search), tuple(columns)),
            compute=ray.data.ActorPoolStrategy(size=number),
            num_cpus=threads,
        )
        for row in data.iter_rows():
            yield Done(**row)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise cause from None
        last = str(error).strip().splitlines()[-1]
        raise UserError(f"a Ray actor failed: {last}. Run the same command to go on with the files that are left") from None
    finally:
        ray.shutdown()

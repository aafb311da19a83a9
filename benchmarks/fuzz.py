"""Runs thousands of cases of hostile input: each must give the right result or an error message of one clear line.

    python benchmarks/fuzz.py [--cases 2000] [--seed 1] [--workers 2] [--area table] [--only 17]

Each area (hostile/) is one kind of input: model folders, source files, tables, texts, commands and their options, run files,
calls of the Python API. A case is a function of (area, seed, number), so any case can be run again alone with --area and
--only. One process imports everything and forks workers, which run a chunk of cases each, with a limit on memory and a limit
on the time of a case; a worker that crashes or hangs is replaced. To add an area, subclass `Area` and enter it in AREAS.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from hostile.area import Area, Wrong
from hostile.calls import Calls
from hostile.commands import Commands
from hostile.folders import Folders, Sources
from hostile.runs import RunFiles
from hostile.tables import Tables
from hostile.texts import Texts

SECONDS = 10.0
"""Time limit of a case. A case that takes longer is run once more, because a busy machine can be slow once."""
MEMORY = 1 << 30
"""Bytes that a case may allocate in addition to the memory of a worker after its imports."""
CHUNK = 50
"""Cases per worker."""

FINE = ("ok", "clear line")
"""Outcomes that are allowed. The others: "wrong result", "unclear line" (several lines, too long, or not printable),
"traceback" (an error that was not raised deliberately), "memory", "crash", "hang"."""

AREAS: dict[str, tuple[Area, int]] = {
    "folder": (Folders(), 6),
    "source": (Sources(), 2),
    "table": (Tables(), 4),
    "text": (Texts(), 2),
    "command": (Commands(), 3),
    "run file": (RunFiles(), 1),
    "call": (Calls(), 2),
}
"""The areas, each with its share of all cases."""


@dataclass(frozen=True)
class Outcome:
    area: str
    number: int
    kind: str
    change: str
    """How the valid input was changed."""
    said: str
    """The error message, or the end of the traceback."""


# --- known outcomes, for the test of this file -------------------------------------------------------------------------------


def _refuse(text: str) -> None:
    from regard.errors import UserError

    raise UserError(text)


def _give_wrong_result() -> None:
    raise Wrong("1 + 1 is 3")


class Probe(Area):
    """An area of cases with known outcomes, for the test of this file."""

    uses: tuple[tuple[str, Callable[[], object]], ...] = (
        ("ok", lambda: None),
        ("clear line", lambda: _refuse("a/very/long/path" * 99 + ": wrong, make it right")),
        ("unclear line", lambda: _refuse("two\nlines")),
        ("unclear line", lambda: _refuse("a long line " * 99)),
        ("wrong result", _give_wrong_result),
        ("traceback", lambda: [][1]),
        ("memory", lambda: bytearray(8 << 30)),
        ("hang", lambda: time.sleep(99)),
        ("ok", lambda: None),
        ("crash", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
        ("ok", lambda: None),
    )

    def prepare(self, root: Path) -> None:
        pass

    def change(self, rng: Random, root: Path, folder: Path) -> str:
        (folder / "number").write_text(rng.seeded.split()[-1])  # type: ignore[attr-defined]
        return "nothing"

    def use(self, folder: Path) -> None:
        self.uses[int((folder / "number").read_text())][1]()


class SeededRandom(Random):
    """A random generator that remembers its seed."""

    def __init__(self, seeded: str) -> None:
        super().__init__(seeded)
        self.seeded = seeded


def area_of(name: str) -> Area:
    return Probe() if name == "probe" else AREAS[name][0]


# --- one case, in a worker ---------------------------------------------------------------------------------------------------

Case = tuple[str, int]
"""The name of an area, and a number."""


def run_case(case: Case, seed: int, root: Path) -> Outcome:
    name, number = case
    area, folder = area_of(name), root / f"case-{os.getpid()}"
    folder.mkdir()
    change = "?"
    try:
        change = area.change(SeededRandom(f"{name} {seed} {number}"), root / name, folder)
        area.use(folder)
        kind, said = "ok", ""
    except Exception as error:
        kind, said = classify(error, area.longest_line)
    except BaseException as error:  # a Rust panic is not an Exception
        kind, said = "traceback", f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(name, number, kind, change, said)


def classify(error: Exception, longest_line: int) -> tuple[str, str]:
    """Returns the kind of outcome and its message. longest_line: see `Area.longest_line`."""
    from regard.errors import UserError

    text = str(error)
    if isinstance(error, Wrong):
        return "wrong result", text
    if isinstance(error, UserError):
        bare = " ".join(word for word in text.split(" ") if "/" not in word)
        clear = text.isprintable() and 0 < len(bare) <= longest_line
        return "clear line" if clear else "unclear line", text
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "memory", text
    return "traceback", "".join(traceback.format_exception(error)[-3:])


# --- all cases, in a process that forks the workers --------------------------------------------------------------------------


@dataclass
class Worker:
    """A forked process that runs some cases and writes one line of JSON for each outcome."""

    cases: deque[Case]
    seed: int
    root: Path
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.handle, writing = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.close(self.handle)
            self._work(writing)
        os.close(writing)
        self.unread = b""

    def _work(self, writing: int) -> None:
        """Never returns."""
        import torch

        try:
            os.setsid()  # processes that a case starts are killed with it
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            for case in self.cases:
                torch.set_num_threads(1)
                outcome = run_case(case, self.seed, self.root)
                os.write(writing, json.dumps(asdict(outcome)).encode() + b"\n")
            os._exit(0)
        finally:
            os._exit(1)

    def read(self) -> Iterator[Outcome]:
        """Yields the outcomes that have arrived."""
        self.unread += os.read(self.handle, 1 << 16)
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            self.cases.popleft()
            self.since = time.monotonic()
            yield Outcome(**json.loads(line))

    def end(self) -> int:
        """Kills the process; returns its exit code, or the negative number of the signal that ended it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.close(self.handle)
        shutil.rmtree(self.root / f"case-{self.process}", ignore_errors=True)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def serve(cases: Sequence[Case], seed: int, workers: int, seconds: float, root: Path) -> Iterator[Outcome]:
    """Runs all cases in forked workers; yields the outcomes as they arrive."""
    waiting = deque(deque(cases[at : at + CHUNK]) for at in range(0, len(cases), CHUNK))
    running: dict[int, Worker] = {}
    slow: set[Case] = set()

    def replace(worker: Worker) -> int:
        code = running.pop(worker.handle).end()
        if worker.cases:
            waiting.appendleft(worker.cases)
        return code

    def ended(worker: Worker) -> Iterator[Outcome]:
        """Handles a worker whose pipe has closed: it is done, or one of its cases crashed it."""
        bad = worker.cases.popleft() if worker.cases else None
        code = replace(worker)
        if bad:
            yield Outcome(*bad, "crash", "run it alone to see", f"exit code {code}")

    while waiting or running:
        while waiting and len(running) < workers:
            worker = Worker(waiting.popleft(), seed, root)
            running[worker.handle] = worker
        for handle in select.select(list(running), [], [], 0.1)[0]:
            found = list(running[handle].read())
            yield from found
            if not found and not running[handle].unread:
                yield from ended(running[handle])
        for worker in list(running.values()):
            if time.monotonic() - worker.since > seconds and worker.cases:
                if worker.cases[0] in slow:
                    yield Outcome(*worker.cases.popleft(), "hang", "run it alone to see", f"no result in {seconds:g} seconds")
                else:
                    slow.add(worker.cases[0])
                replace(worker)


def prepare(areas: Sequence[str], root: Path) -> None:
    """Writes valid input in a separate process, so that threads which libraries start are not forked."""
    if not (process := os.fork()):
        code = 1
        try:
            for name in areas:
                (root / name).mkdir()
                area_of(name).prepare(root / name)
            code = 0
        finally:
            traceback.print_exc() if code else None
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        sys.exit("the valid input could not be written")


def main_of_server(seed: int, workers: int, seconds: float) -> None:
    """Reads cases from standard input; writes one line of JSON for each outcome."""
    import gc
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = [(name, number) for name, number in json.load(sys.stdin)]
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print to standard output
    names = list(dict.fromkeys(name for name, _ in cases))
    for name in names:
        area_of(name).load_modules()
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
        prepare(names, Path(folder))
        gc.freeze()
        for outcome in serve(cases, seed, workers, seconds, Path(folder)):
            print(json.dumps(asdict(outcome)), file=results, flush=True)


# --- the command -------------------------------------------------------------------------------------------------------------


def shares(num_cases: int) -> list[Case]:
    """Returns this many cases of all areas, mixed, by the shares of the areas."""
    total = sum(share for _, share in AREAS.values())
    sizes = {name: num_cases * share // total for name, (_, share) in AREAS.items()}
    sizes[next(iter(AREAS))] += num_cases - sum(sizes.values())
    return sorted(
        ((name, number) for name, size in sizes.items() for number in range(size)), key=lambda case: case[1] / sizes[case[0]]
    )


def fuzz(cases: Sequence[Case], seed: int, workers: int = 2, seconds: float = SECONDS) -> Iterator[Outcome]:
    """Yields the outcome of each case, in any order."""
    command = [sys.executable, __file__, "--serve", str(seconds), "--seed", str(seed), "--workers", str(workers)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "80"}
    errors = sys.stderr if len(cases) == 1 else subprocess.DEVNULL  # show all messages of a single case
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
    ) as server:
        assert server.stdin
        assert server.stdout
        json.dump(cases, server.stdin)
        server.stdin.close()
        for line in server.stdout:
            yield Outcome(**json.loads(line))


def report(outcomes: Sequence[Outcome], seed: int = 1) -> str:
    """Counts the outcomes of each kind in each area; lists those that are not allowed, with the command that repeats them."""
    lines = []
    for area in dict.fromkeys(one.area for one in outcomes):
        counts = Counter(one.kind for one in outcomes if one.area == area)
        lines.append(f"{area}: " + ", ".join(f"{kind}: {number:,}" for kind, number in counts.most_common()))
    for one in outcomes:
        if one.kind not in FINE:
            again = f"python benchmarks/fuzz.py --seed {seed} --area {one.area!r} --only {one.number}"
            lines += ["", f"{one.kind}: {one.change!a}", f"    {one.said}", f"    {again}"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--area", choices=AREAS, default=None, help="one area; by default all, each with its share of the cases"
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, default=None, help="the number of one case, with --area")
    parser.add_argument("--write", action="store_true", help="write the result to a dated file in the folder of this script")
    parser.add_argument("--serve", type=float, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        main_of_server(options.seed, options.workers, options.serve)
        return
    start = time.monotonic()
    if options.only is not None:
        cases = [(options.area, options.only)]
    else:
        cases = [(options.area, number) for number in range(options.cases)] if options.area else shares(options.cases)
    outcomes = sorted(fuzz(cases, options.seed, options.workers), key=lambda one: (one.area, one.number))
    bad = [one for one in outcomes if one.kind not in FINE]
    found = report(outcomes, options.seed)
    title = f"{len(outcomes):,} cases, seed {options.seed}, {time.monotonic() - start:.0f} s: {len(bad):,} findings"
    print(f"{title}\n{found}")
    if options.write:
        from dated import write_result

        write_result(__file__, [title, found])
    sys.exit(bool(bad) or len(outcomes) < len(cases))


if __name__ == "__main__":
    main()

"""One rank of a synchronous training job in real PyTorch (gloo, CPU): tensor and data groups, buckets, a loader's worker.

What lies on a node is a bare copy of diary.py, rank.py and this file in one (`plan.bare_source`), started by the launcher with an
environment like torchrun's. From rank.py come the orders on stdin, the step records and the FIFO; everything that hangs,
fails or is recorded here is PyTorch's own.

gloo behaves in some ways unlike NCCL (notes/flight-recorder.md 0.3, 2.1, 5): it makes no FIFO and no dump at a time-out,
so a thread here does what NCCL's monitor thread does, with PyTorch's own dump; it records no send and no receive; and
when a process ends, its peers fail within milliseconds instead of waiting ("Connection closed by peer"). Such a failure
is caught, logged and sat out, as by scripts that keep a broken job for inspection: were it not, all ranks would end at
once and nothing would be frozen. What the program itself raises is not caught: traceback, exit code 1.

Plan (first line): {"rank", "world", "ranks_per_node", "listen_fd", "report_fd", "store", "compute_ms", "data_ms",
"path"}; rank 0 serves the store on its listen_fd. Later lines, heeded at the next step's start:
{"early": true} (broadcast before the gradients), {"skip": true} (one gradient bucket left out), {"reshape": true} and
{"retype": true} (another size or type in one bucket), {"enter": true} (a barrier of the evaluation group alone),
{"save": true} (a checkpoint with a barrier of its own, alone), {"leave": true} (no more batches), {"raise": true} (an
exception of its own), {"neglect": true} (no exchange with the neighbour), {"evaluate": true} (a silent phase without
end), {"linger": true} (the same, before the exchange with the neighbour), {"starve": true} (nothing to read for the
loader's worker), {"seize": true} (a C call that keeps the GIL).
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

from triage.drill.diary import ITERATIONS, Diary
from triage.drill.rank import answer_pipe, end_with_parent, follow, rest

TIMEOUT = datetime.timedelta(minutes=10)
TENSOR, DATA, CHECKPOINT, EVALUATION = (
    f"{kind}_GROUP" for kind in ("TENSOR_MODEL_PARALLEL", "DATA_PARALLEL", "CHECKPOINT", "EVALUATION")
)
BUCKETS = 3
ACTIVATIONS = 1 << 16  # more than a socket buffers: a send without its receive does not return
FOR_EVER_S = 1 << 20
LAST_S = 0.5  # what comes after the last batch, so that all have written their line of the last step


class Shards:
    """The data set: a byte of a pipe a batch stands for a read from the job's file system, where the worker waits."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def __len__(self) -> int:
        return ITERATIONS

    def __getitem__(self, index: int) -> int:
        os.read(self.reading, 1)
        return index

    def supply(self) -> None:
        os.write(self.writing, b"x")

    def begin(self, number: int) -> None:
        """In the worker: end with the rank, and hear of its end."""
        end_with_parent()
        os.close(self.writing)


class Trainer:
    """The rank's process groups and one step of training on them."""

    def __init__(self, plan: dict[str, Any], torch: Any, store: Any) -> None:
        self.rank, self.world, self.compute_s = plan["rank"], plan["world"], plan["compute_ms"] / 1000
        self.torch, self.dist = torch, torch.distributed
        self.dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world, timeout=TIMEOUT)
        per, everybody = plan["ranks_per_node"], list(range(self.world))
        self.groups: dict[str, Any] = {}
        for desc, sets in (
            (TENSOR, [everybody[at : at + per] for at in range(0, self.world, per)]),
            (DATA, [everybody[at::per] for at in range(per)]),
            (CHECKPOINT, [everybody]),
            (EVALUATION, [everybody]),
        ):
            for ranks in sets:  # every rank makes every group, also those without it
                group = self.dist.new_group(ranks, group_desc=desc)
                if self.rank in ranks:
                    self.groups[desc] = group
        # Evaluated once before, never saved: gloo's records tell the members of a group only by who was in it.
        self.dist.barrier(group=self.groups[EVALUATION])

    def compute(self, wish: dict[str, Any]) -> None:
        time.sleep(self.compute_s)
        if "evaluate" in wish:
            evaluate()
        if "seize" in wish:
            tokenize()

    def communicate(self, wish: dict[str, Any]) -> None:
        """Sums in the tensor and data groups, the gradients of all, then something to the neighbour.

        The exchange comes last, where all have just met: before the sums, a rank that waits in it for one that hangs would
        look as that one does, since gloo records neither.
        """
        torch, dist = self.torch, self.dist
        if "save" in wish:
            self.save_checkpoint()
        if "enter" in wish:
            dist.barrier(group=self.groups[EVALUATION])
        dist.all_reduce(torch.ones(8, 4), group=self.groups[TENSOR])
        dist.all_reduce(torch.ones(4), group=self.groups[DATA])
        if "early" in wish:
            self.agree()
        for bucket in range(BUCKETS):
            if bucket == 1 and "skip" in wish:
                continue
            gradient = torch.ones(64, 4)
            if bucket == 1 and "reshape" in wish:
                gradient = torch.ones(128, 4)
            elif bucket == 1 and "retype" in wish:
                gradient = gradient.double()
            dist.all_reduce(gradient)
        if "early" not in wish:
            self.agree()
        if "linger" in wish:
            evaluate()
        if "neglect" not in wish:
            self.exchange()

    def exchange(self) -> None:
        """Ranks 0 and 1, 2 and 3, ... are neighbours; of an odd number the last has none."""
        if self.rank ^ 1 < self.world:
            activations = self.torch.ones(ACTIVATIONS)
            if self.rank % 2:
                self.dist.recv(activations, self.rank - 1)
            else:
                self.dist.send(activations, self.rank + 1)

    def agree(self) -> None:
        """Rank 0 tells whether training goes on."""
        self.dist.broadcast(self.torch.ones(1), 0)

    def save_checkpoint(self) -> None:
        folder = os.path.join(os.path.dirname(os.environ["TORCHINDUCTOR_CACHE_DIR"]), "checkpoints")
        os.makedirs(folder, exist_ok=True)
        self.torch.save({"weights": self.torch.ones(1 << 18)}, os.path.join(folder, f"rank_{self.rank}.pt"))
        self.dist.barrier(group=self.groups[CHECKPOINT])


def evaluate() -> None:
    time.sleep(FOR_EVER_S)


def tokenize() -> None:
    """A C extension that does not release the GIL: no Python thread of this process runs any more."""
    ctypes.PyDLL(None).sleep(FOR_EVER_S)


def check_labels(step: int) -> None:
    raise ValueError(f"batch {step}: label 50304 is outside of the vocabulary of 50304 tokens")


def fit(plan: dict[str, Any], trainer: Trainer, shards: Shards, batches: Any, asked: list[dict[str, Any]]) -> None:
    """Step after step: data, compute, communication, one record. Returns when the data are used up."""
    diary, starved = Diary(plan), False
    if diary.last:
        print(f"[before the start of training step] datetime: {now()}")
    for step in range(1, ITERATIONS + 1):
        wish: dict[str, Any] = {}
        while asked:
            wish |= asked.pop(0)
        if "leave" in wish:
            time.sleep(LAST_S)
            return
        began, at_start = time.time(), time.perf_counter()
        starved = starved or "starve" in wish
        if not starved:
            shards.supply()
        next(batches)
        at_data = time.perf_counter()
        if "raise" in wish:
            check_labels(step)
        trainer.compute(wish)
        at_compute = time.perf_counter()
        trainer.communicate(wish)
        diary.keep(step, began, at_start, at_data, at_compute, time.perf_counter())


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())


def log_error(rank: int) -> None:
    """A caught error as loggers of training jobs write it: the rank before each line."""
    lines = traceback.format_exc().splitlines()
    os.write(2, "".join(f"[rank{rank}]: {line}\n" for line in lines).encode())


def serve_records(rank: int) -> Any:
    """The FIFO of NCCL's monitor thread, and PyTorch's control plane where the environment asks for it.

    Without stacks: the first dump with stacks imports modules for seconds (notes/flight-recorder.md 2.2), which NCCL's
    thread, being C++, does not do.
    """
    import torch._C._distributed_c10d as c10d

    def dump() -> bytes:
        raw: bytes = c10d._dump_fr_trace(includeCollectives=True, includeStackTraces=False, onlyActive=False)
        return raw

    pipe, file = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"), os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
    if pipe and file:
        threading.Thread(target=answer_pipe, args=(pipe, file, rank, dump), daemon=True).start()
    address = os.environ.get("TORCH_WORKER_SERVER_SOCKET")
    return c10d._WorkerServer(address) if address else None


def main() -> None:
    end_with_parent()
    source = sys.stdin.buffer
    first = source.readline()
    if not first:
        return
    plan = json.loads(first)
    rank, world = plan["rank"], plan["world"]
    sys.path[:0] = plan["path"]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nodes of processes have no other
    import torch
    import torch.distributed
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    shards = Shards()
    # Forked before any thread of ours or gloo's runs; the worker wears the rank's environment, as in every job.
    batches = iter(
        DataLoader(
            shards, batch_size=None, num_workers=1, worker_init_fn=shards.begin, multiprocessing_context="fork"
        )
    )  # fmt: skip
    asked: list[dict[str, Any]] = []
    threading.Thread(target=follow, args=(source, asked), daemon=True).start()
    listener = plan["listen_fd"] if rank == 0 else None
    store = torch.distributed.TCPStore(
        *plan["store"], world, is_master=rank == 0, timeout=TIMEOUT, master_listen_fd=listener
    )
    trainer = Trainer(plan, torch, store)
    kept = serve_records(rank)  # noqa: F841
    try:
        fit(plan, trainer, shards, batches, asked)
        print(f"[rank{rank}]: [after training is done] datetime: {now()}")
        store.set(f"left/{rank}", "1")
        store.wait([f"left/{other}" for other in range(world)], datetime.timedelta(seconds=FOR_EVER_S))
    except RuntimeError:  # a peer is gone: kept for whoever wants to look
        log_error(rank)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # torch's own, which names the rank
        os._exit(1)
    rest()


if __name__ == "__main__":
    main()

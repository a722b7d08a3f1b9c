"""How old is the last complete checkpoint of a folder, and how was the job that saves there laid out? Pure but for reading.

    /ckpt/latest_checkpointed_iteration.txt  "1000", and /ckpt/iter_0001000      Megatron: written when all ranks are through
    /ckpt/latest  "global_step1000", and /ckpt/global_step1000                   DeepSpeed: by rank 0, perhaps before the others
    /ckpt/step-1000/.metadata                                                    torch DCP: renamed into place at the very end
    --tensor-model-parallel-size 8 --num-layers=96 …                             -> {"tp": 8, "layers": 96}
Fooled by   a copy, which has new times; a tracker that names what was deleted (not told); a tracker that is empty or torn
            (not told); a folder that several jobs save to; DeepSpeed's `latest`, so its folder's newest file counts, and
            nothing is told while that is younger than SETTLE_S; names of one's own.
The newest folder is never believed for being the newest: it may be half-written.

(A file with a leading underscore is no probe; it travels in the payload, and the operator's side reads with it too.)
"""

import itertools
import os
import re
import stat

MOST = 4096
SETTLE_S = 60.0
GAPS = 5
NUMBER = re.compile(r"(\d{1,12})\D*$")
FLAGS = {
    "tensor_model_parallel_size": "tp", "tensor_parallel_degree": "tp", "pipeline_model_parallel_size": "pp",
    "pipeline_parallel_degree": "pp", "context_parallel_size": "cp", "context_parallel_degree": "cp",
    "num_layers": "layers", "global_batch_size": "global_batch", "micro_batch_size": "micro_batch",
}  # fmt: skip


def launch_of(argv):
    """{tp pp cp layers global_batch micro_batch: number} as a command line names them, and `order` where it is told."""
    found = {}
    for at, word in enumerate(argv):
        option, mark, value = word.partition("=")
        name = option.lstrip("-").replace("-", "_").rpartition(".")[2]
        value = value if mark else argv[at + 1] if at + 1 < len(argv) else ""
        if name in FLAGS and value.isdigit() and 0 < int(value[:9]) < 10**6:
            found[FLAGS[name]] = int(value[:9])
        elif option == "--use-tp-pp-dp-mapping":
            found["order"] = "tp-pp-dp"
    return found


def number_in(name):
    found = NUMBER.search(name)
    return int(found.group(1)) if found else None


def changed(path, kind=stat.S_ISREG):
    """mtime of a file (or folder) that is there, else None. Links are followed: trackers may be links."""
    try:
        seen = os.stat(path)
    except (OSError, ValueError):
        return None
    return seen.st_mtime if kind(seen.st_mode) else None


def names_in(folder):
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, MOST)]
    except (OSError, ValueError):
        return []


def first_word(path):
    """The text of a tracker file; "" if it is no plain file, empty, or more than a name."""
    if changed(path) is None:
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return ""
    try:
        text = os.read(fd, 512).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)
    return "" if len(text) > 255 or "/" in text or not text.isprintable() or text.startswith(".") else text


def gap_of(times):
    """(median, least, most) seconds between the last complete checkpoints; None of fewer than three."""
    kept = sorted(times)[-GAPS - 1 :]
    gaps = sorted(b - a for a, b in zip(kept, kept[1:]))
    return [round(gaps[len(gaps) // 2], 3), round(gaps[0], 3), round(gaps[-1], 3)] if len(gaps) > 1 else None


def told(kind, step, at, times=(), why=""):
    return {"kind": kind, "step": step, "at": at and round(at, 3), "gap_s": gap_of(times), "why": why}


def last(folder, now):
    """{kind, step, at epoch s, gap_s, why} of a folder that a job saves to; `at` null where no checkpoint is surely whole.

    now   the clock of whoever reads; it only tells a folder that is still being written from one that is not
    """
    names = names_in(folder)

    def inside(*parts):
        return os.path.join(folder, *parts)

    if "latest_checkpointed_iteration.txt" in names:
        tracker = inside("latest_checkpointed_iteration.txt")
        word = first_word(tracker)
        step = int(word) if word.isdigit() and len(word) < 13 else None
        if step is None:
            return told("megatron", None, None, why="the tracker names no iteration")
        mine = [name for name in ("iter_%07d" % step, "global_step_%d" % step) if name in names]
        if not mine:
            return told("megatron", None, None, why="the tracker names iteration %d, which is not there" % step)
        others = [changed(inside(name), stat.S_ISDIR) for name in names if name.startswith(mine[0].rstrip("0123456789"))
                  and (number_in(name) or 0) <= step]  # fmt: skip
        return told("megatron", step, changed(tracker), [at for at in others if at])
    if "latest" in names and changed(inside("latest")) is not None:
        tag = first_word(inside("latest"))
        if not tag or changed(inside(tag), stat.S_ISDIR) is None:
            return told("deepspeed", None, None, why="`latest` names no folder that is there")
        files = [changed(inside(tag, name)) for name in names_in(inside(tag))]
        at = max([changed(inside("latest")) or 0.0] + [one for one in files if one])
        if not any(files) or now - at < SETTLE_S:
            return told("deepspeed", None, None, why="%s may still be written" % tag)
        stem = tag.rstrip("0123456789")
        others = [changed(inside(name), stat.S_ISDIR) for name in names if stem and name.startswith(stem)]
        return told("deepspeed", number_in(tag), at, [one for one in others if one and one <= at])
    whole = [(at, name) for name in ["."] + sorted(names, key=lambda n: number_in(n) or 0)[-256:]
             for at in [changed(inside(name, ".metadata"))] if at]  # fmt: skip
    if not whole:
        return told("", None, None, why="no tracker and no .metadata in it")
    at, name = max(whole)
    return told("dcp", number_in(name if name != "." else os.path.basename(folder)), at, [one for one, _ in whole])

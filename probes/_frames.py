"""Python stacks as py-spy and faulthandler print them, cut down to what a report needs: shared with the operator's side.

    py-spy dump --json      [{"thread_id": …, "thread_name": "MainThread", "os_thread_id": 4242, "active": false,
                              "owns_gil": false, "frames": [{"name": "save", "filename": "/job/train.py", "line": 41}]}]
    py-spy dump             Thread 4242 (idle): "MainThread"
                                save (train.py:41)
    faulthandler            Thread 0x00007f3c (most recent call first):
                              File "/job/train.py", line 41 in save

A thread is {"tid", "name", "main", "gil", "active", "frames", "cut"}; a frame is [function, file, line, is it the job's own],
the innermost first. Files are told without the folder of the installation: "torch/serialization.py", "lib:threading.py".
Never a local variable: py-spy is not asked for them, and what it might tell is not read.
Trust    all of it comes from a process that we do not trust: bounded and cleaned.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import json
import re

MOST_THREADS = 7  # of a rank: the main thread and six others
MOST_FRAMES, INNERMOST, FEW = 32, 24, 10  # of the main thread; of them from the inner end; of another thread
MOST_TEXT = 2 << 20
MOST_LINES = 40000
LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages)/(.+)")
STANDARD = re.compile(r"(?:^|/)lib(?:64)?/python3\.\d{1,2}/(.+)")
THREAD = re.compile(r'Thread (\d{1,20}|0x[0-9A-Fa-f]{1,16}) \(([a-z+ ]{1,24})\)(?:: "(.{0,64})")?\s*$')
FRAME = re.compile(r"\s{2,8}(\S.{0,200}?) \(([^()]{1,400}?)(?::(\d{1,9}))?\)\s*$")
FAULT_THREAD = re.compile(
    r"(Current thread|Thread) 0x([0-9A-Fa-f]{1,16}) (?:\[(.{0,64})\] )?\(most recent call first\)"
)
FAULT_FRAME = re.compile(r'\s{2}File "(.{1,400})", line (\d{1,9}|\?\?\?) in (.{1,200})$')


def clean(text, limit):
    text = str(text)[:limit]
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def place_of(filename):
    """(how a file is told, whether it is the job's own code) of a full file name."""
    name = clean(filename, 400)
    found = LIBRARY.search(name)
    if found:
        return found.group(1)[-96:], False
    found = STANDARD.search(name)
    if found:
        return "lib:" + found.group(1)[-92:], False
    if name.startswith("<"):
        return name[:96], name.startswith("<string>") or name.startswith("<stdin>")
    # The last folders are enough to find it, and a home folder's name is nobody's business.
    return "/".join(name.rsplit("/", 4)[-4:]).lstrip("/")[-96:], True


def frame_of(function, filename, line):
    told, own = place_of(filename)
    return [clean(function, 96), told, line if isinstance(line, int) and 0 <= line < 10**9 else 0, own]


def thread_of(tid, name, main, gil, active, frames):
    """A thread with all its frames; `chosen` cuts them."""
    return {
        "tid": tid, "name": clean(name or "", 48), "main": bool(main), "gil": bool(gil), "active": bool(active),
        "frames": frames, "cut": 0,
    }  # fmt: skip


def parse_json(text, pid):
    """Threads of `py-spy dump --json`; ValueError where it is none."""
    rows = json.loads(text)
    if not isinstance(rows, list):
        raise ValueError("no list of threads")
    threads = []
    for row in rows[:512]:
        if not isinstance(row, dict) or not isinstance(row.get("frames"), list):
            raise ValueError("no thread")
        frames = [
            frame_of(f.get("name") or "?", f.get("filename") or "?", f.get("line"))
            for f in row["frames"][:1000]
            if isinstance(f, dict)
        ]
        tid = row.get("os_thread_id")
        tid = tid if isinstance(tid, int) and 0 < tid < 1 << 31 else None
        main = row.get("thread_name") == "MainThread" or tid == pid
        made = thread_of(tid, row.get("thread_name"), main, row.get("owns_gil"), row.get("active"), frames)
        first = row["frames"][0] if row["frames"] and isinstance(row["frames"][0], dict) else {}
        made["path"] = first.get("filename") if isinstance(first.get("filename"), str) else ""  # never sent
        threads.append(made)
    return mark_main(threads)


def parse_text(text):
    """Threads of either printed form; [] where it holds none."""
    threads, frames, kind, paths = [], None, "", {}
    for line in text[:MOST_TEXT].splitlines()[:MOST_LINES]:
        found = THREAD.match(line)
        if found:
            frames, kind = [], "spy"
            tid, state = found.group(1), found.group(2)
            number = int(tid) if tid.isdigit() and int(tid) < 1 << 31 else None
            threads.append([number, found.group(3) or "", "gil" in state, "active" in state, frames])
            continue
        found = FAULT_THREAD.match(line)
        if found:
            frames, kind = [], "fault"
            threads.append([None, found.group(3) or "", False, False, frames])
            paths[id(frames)] = ""
            continue
        found = FAULT_FRAME.match(line) if kind == "fault" else FRAME.match(line) if kind == "spy" else None
        if not found or len(frames) >= 1000:
            continue
        if kind == "fault":
            number = int(found.group(2)) if found.group(2).isdigit() else 0
            paths[id(frames)] = paths[id(frames)] or found.group(1)
            frames.append(frame_of(found.group(3), found.group(1), number))
        else:
            told, line_no = found.group(2), found.group(3)
            frames.append(short_frame(found.group(1), told, int(line_no) if line_no else 0))
    made = []
    for tid, name, gil, active, inner in threads[:512]:
        thread = thread_of(tid, name, name == "MainThread", gil, active, inner)
        if id(inner) in paths:
            thread["path"] = paths[id(inner)]  # never sent
        made.append(thread)
    return mark_main(made)


def short_frame(function, told, line):
    """A frame of py-spy's text, which shortens files itself: a bare name may be of the job or of the library."""
    name, own = place_of(told)
    if own and told in SHORT_STANDARD:
        name, own = "lib:" + told, False
    elif own and told.startswith(SHORT_PACKAGES):
        name, own = clean(told, 96), False
    elif told.startswith("lib:"):
        name, own = clean(told, 96), False  # as we tell it ourselves
    return [clean(function, 96), name, line, own]


SHORT_PACKAGES = (
    "torch/", "multiprocessing/", "concurrent/", "asyncio/", "importlib/", "numpy/", "transformers/", "datasets/",
    "lightning/", "deepspeed/", "triton/", "pyarrow/", "fsspec/", "aiohttp/", "urllib3/", "botocore/", "accelerate/",
)  # fmt: skip
SHORT_STANDARD = frozenset(
    "threading.py queue.py selectors.py socket.py ssl.py subprocess.py pickle.py contextlib.py runpy.py".split()
)


def mark_main(threads):
    """faulthandler names no thread: it tells the oldest last, and that is the main one."""
    if threads and not any(thread["main"] for thread in threads):
        threads[-1]["main"] = True
    return threads


def chosen(threads):
    """The main thread, the one with the interpreter lock, those that talk to other ranks, and some that run; never an idle
    pool of a hundred."""

    def weight(thread):
        own = any(frame[3] for frame in thread["frames"])
        talks = any("torch/distributed/" in frame[1] for frame in thread["frames"][:FEW])
        return not thread["main"], not thread["gil"], not talks, not thread["active"], not own

    return [shorter(t) for t in sorted((t for t in threads if t["frames"]), key=weight)[:MOST_THREADS]]


def shorter(thread):
    """The main thread's frames cut in the middle where they are many (both ends tell something), the others' at FEW."""
    frames = thread["frames"]
    if not thread["main"]:
        return dict(thread, frames=frames[:FEW], cut=max(0, len(frames) - FEW))
    if len(frames) <= MOST_FRAMES:
        return thread
    return dict(thread, frames=frames[:INNERMOST] + frames[INNERMOST - MOST_FRAMES :], cut=len(frames) - MOST_FRAMES)


def alike(first, second):
    """Do two dumps show the main thread at the same place? None where one has no main thread."""
    a = [t["frames"] for t in first if t["main"]]
    b = [t["frames"] for t in second if t["main"]]
    return a[0] == b[0] if a and b else None

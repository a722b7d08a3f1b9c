"""The job log as our own machine sees it: what a login node that shares the job's storage can read without any node.

It may be the very storage that froze the job: read by a child that is not waited for beyond its deadline (ownfiles.py).
What can fool it: a log of the same path that is another file here. Nodes are asked where our machine has none.
"""

from __future__ import annotations

import json
import time

from triage import ownfiles
from triage.model import Sample

PATIENCE_S = 4.0  # reading and reducing 8 MiB takes longer than a touch


def readable(path: str) -> Sample | None:
    """Nothing to say where we can read it; else why not, as the record of look A (absent, or timeout)."""
    try:
        if path and ownfiles.opens_plain(path):
            return None
        return _sample("A", "absent", {}, f"{path}: no file that we may read" if path else "")
    except ownfiles.TooSlow as error:
        return _sample("A", "timeout", {}, str(error))


def read(path: str, look: str, since: float | None, *, stood_still: bool = False) -> Sample:
    """One reading, reduced as the probe `joblog` does on a node; `since` as there. Known to stall: with less patience."""
    from triage.probes import joblog
    from triage.readers.signatures import for_probe

    signatures = for_probe("joblog")

    def work() -> bytes:
        return json.dumps(joblog.read_log(path, signatures, since=since)).encode()

    try:
        data = json.loads(ownfiles.compute(work, path, None if stood_still else PATIENCE_S))
        return _sample(look, "ok", data, "")
    except ownfiles.TooSlow as error:
        return _sample(look, "timeout", {}, str(error))
    except OSError as error:
        return _sample(look, "absent", {}, f"{path}: {error.strerror or error}")


def _sample(look: str, status: str, data: dict[str, object], note: str) -> Sample:
    return Sample("joblog", "", look, status, data, received=time.time(), notes=(note,) if note else ())

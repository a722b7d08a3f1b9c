"""Process groups of one rank's flight record while it is read: their configuration, their status, their entries so far.

Input    `pg_config` {"0": {"name", "desc", "ranks": "[0, 1]"}} and `pg_status` {"0": {"last_enqueued_collective": 3, ...}}.
Fooled by   pg_status by local id and pg_config by name: only entries that carry both bridge them (notes/flight-recorder.md 0).
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

if __package__:  # read as a part of triage: the operator's side reads files by the same code
    from ._signed import parse_members
    from ._unpickle import clean, whole
else:  # beside a probe, or in the payload
    from _signed import parse_members
    from _unpickle import clean, whole


class Group(object):
    """What one rank's entries say of one process group, while they are read."""

    __slots__ = (
        "batch",
        "batched",
        "counts",
        "desc",
        "done",
        "first_seq",
        "members",
        "name",
        "p2p",
        "partial",
        "pg_id",
        "seqs",
        "starts_whole",
        "unsure",
        "upto",
    )

    def __init__(self, name, desc, members):
        self.name, self.desc, self.members = name, desc, members
        self.seqs, self.done, self.upto = [], [], []  # one per collective unit: number, finished?, (first, last) entry
        self.p2p, self.pg_id, self.unsure = False, None, None
        self.first_seq, self.starts_whole = None, False
        self.partial = set()  # numbers of units whose entries are not all in the dump
        self.batched = False  # does it show that its sends and receives go in batches?
        self.batch = None  # the newest exchange
        self.counts = {}  # how many sends and receives of a pair since the last collective


class Batch(object):
    """One exchange: a single send or receive, or all parts of a batch with the entry that closes it."""

    __slots__ = ("closed", "count", "epoch", "first", "last", "number", "parts")

    def __init__(self, at, number, epoch):
        self.first = self.last = at
        self.number, self.epoch = number, epoch
        self.parts, self.count = [], 0
        self.closed = None  # None: no closing entry seen; else whether it is over


class Pair(object):
    """Sends (or receives) between two ranks in one group, counted so that both sides' counts can be compared."""

    __slots__ = ("done", "enq", "open")

    def __init__(self):
        self.enq, self.done, self.open = None, None, None


def read_config(obj, cache):
    """name -> (desc, members)."""
    told = obj.get("pg_config")
    config = {}
    for key, value in list(told.items())[:4096] if isinstance(told, dict) else ():
        if isinstance(value, dict):
            name = value.get("name", key)
            name = name if isinstance(name, str) else str(key)
            config[clean(name)] = (clean(value.get("desc") or ""), parse_members(value.get("ranks"), cache))
    # gloo writes one config entry without a name, for what its entries call ("0", "default_pg"); it forgets the ranks
    # once there are more groups (notes/flight-recorder.md 3.1).
    if "" in config and not config[""][0]:
        config["default_pg"] = ("default_pg", config.pop("")[1])
    return config


def read_status(obj, config):
    """({local id: (enqueued, completed)}, {local id: name} where creation order gives the bridge)."""
    told = obj.get("pg_status")
    status = {}
    for key, value in list(told.items())[:4096] if isinstance(told, dict) else ():
        number = whole(key)
        if number is not None and isinstance(value, dict):
            enq = whole(value.get("last_enqueued_collective"))
            done = whole(value.get("last_completed_collective"))
            if enq is not None and done is not None:
                status[number] = (enq, done)
    # Local ids and numeric names both count up as groups are made: if every name is a number and there are as many
    # of one as of the other, sorted order pairs them (it held for all 64 real dumps; entries may still contradict it).
    bridge = {}
    if status and len(status) == len(config) and all(n.isdigit() for n in config):
        bridge = dict(zip(sorted(status), sorted(config, key=int)))
    return status, bridge

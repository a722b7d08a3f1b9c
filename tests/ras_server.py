"""NCCL's RAS as a test can bend it: reports as src/ras/client_support.cc prints them, and a server that tells them.

`Report.json()` and `Report.text()` follow the code of 2.24.3, 2.28.9 and 2.30.7; nothing of triage is imported here. As a
script it listens on a port that several of its kind share, as the processes of a node do, until its standard input ends.
"""

import os
import socket
import sys
import threading
from collections import Counter

OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ERRORS = {1: "Unhandled CUDA error", 2: "System error", 6: "Remote process error"}
ORDER = ("NOCOMM", "INIT", "RUNNING", "FINALIZE", "ABORT")


class Comm:
    """A communicator of `size` ranks, two to a node, that all have launched `counts`; a test changes what it likes.

    members  which processes these are: rank r of it is process members[r] of the job
    """

    def __init__(self, ident=0xA1, size=8, counts=(0, 0, 12, 0, 42), members=None, per_node=2, pid=40):
        self.ident, self.size = ident, size
        members = list(range(size)) if members is None else members
        self.where = {r: (f"10.0.0.{11 + m // per_node}", pid + m, m % per_node) for r, m in enumerate(members)}
        self.counts = {r: list(counts) for r in range(size)}
        self.status = dict.fromkeys(range(size), "RUNNING")
        self.asynchronous, self.init = {}, {}
        self.missing = {}  # rank -> (unresponsive, considered dead)

    def more(self, rank, op="AllReduce", by=1):
        self.counts[rank][OPS.index(op)] += by
        return self

    def lose(self, *ranks, dead=False, unresponsive=True):
        for rank in ranks:
            self.missing[rank] = (unresponsive, dead)
        return self

    @property
    def present(self):
        return [r for r in range(self.size) if r not in self.missing]

    def code(self, rank):
        return self.init.get(rank, 7 if self.status[rank] == "INIT" else 0)

    def errors(self):
        words = []
        if any(unresponsive for unresponsive, _ in self.missing.values()):
            words.append("INCOMPLETE")
        if self.asynchronous or self.init:
            words.append("ERROR")
        left = any(not unresponsive for unresponsive, _ in self.missing.values())
        told = {tuple(self.counts[r]) for r in self.present}
        if len(told) > 1 or len(self.states()) > 1 or left:
            words.append("MISMATCH")
        return ",".join(words) or "OK"

    def states(self):
        found = {self.status[r] for r in self.present}
        return found | ({"NOCOMM"} if any(not gone for gone, _ in self.missing.values()) else set())

    def highest(self):
        return max(self.states(), key=ORDER.index)

    def nodes(self):
        return len({self.where[r][0] for r in self.present})


class Report:
    def __init__(self, *comms, version="2.30.7", timeouts=0):
        self.comms, self.version, self.timeouts = list(comms), version, timeouts

    @property
    def release(self):
        return tuple(int(part) for part in self.version.split("+")[0].split("."))

    # ------------------------------------------------------------ JSON

    def json(self):
        commas = "" if self.release in ((2, 28, 7), (2, 28, 9)) else ","
        out = [
            "{\n",
            f'  "nccl_version": "{self.version}",\n  "cuda_runtime_version": 12090,\n  "cuda_driver_version": 13000,\n',
            '  "timestamp": "2026-12-01 02:10:11",\n',
            f'  "communicators_count": {len(self.comms)},\n  "communicators": [\n',
            ",\n".join(self._json_comm(comm, commas) for comm in self.comms),
            f'\n  ],\n  "ras": {{\n    "collection_time_sec": 0.012,\n    "timeouts_count": {self.timeouts}\n  }}\n}}\n',
        ]
        return "".join(out).encode()

    def _json_comm(self, comm, comma):
        def ident(rank):
            host, pid, dev = comm.where[rank]
            head = f'        {{\n          "rank": {rank},\n          "host": "{host}",\n          "pid": {pid},\n'
            return head + f'          "cuda_dev": {dev},\n          "nvml_dev": {dev}'

        def flag(value):
            return "true" if value else "false"

        ranks, missing = [], []
        for rank in comm.present:
            state = comm.status[rank]
            counts = ",\n".join(f'            "{op}": {n}' for op, n in zip(OPS, comm.counts[rank]))
            ranks.append(
                f"{ident(rank)},\n"
                f'          "status": {{\n            "init_state": {comm.code(rank)},\n'
                f'            "async_error": {comm.asynchronous.get(rank, 0)},\n'
                f'            "finalize_called": {flag(state == "FINALIZE")},\n            "destroy_flag": false,\n'
                f'            "abort_flag": {flag(state == "ABORT")}\n          }},\n'
                f'          "collective_counts": {{\n{counts}\n          }}\n        }}'
            )
        for rank, (unresponsive, dead) in sorted(comm.missing.items()):
            missing.append(
                f'{ident(rank)}{comma}\n          "status": {{\n            "unresponsive": {flag(unresponsive)},\n'
                f'            "considered_dead": {flag(dead)}\n          }}\n        }}'
            )
        return (
            f'    {{\n      "hash": "0x{comm.ident:x}",\n      "secondary_hash": "0x1f:0x2e",\n      "size": {comm.size},\n'
            f'      "ranks_count": {len(ranks)},\n      "missing_ranks_count": {len(missing)},\n      "ranks": [\n'
            + ",\n".join(ranks)
            + '\n      ],\n      "missing_ranks": [\n'
            + ",\n".join(missing)
            + "\n      ]\n    }"
        )

    # ------------------------------------------------------------ text

    def text(self, verbose=True):
        """As a (VERBOSE) STATUS prints it: groups of equal communicators, then the errors, then the warnings."""
        self.verbose = verbose
        old = self.release < (2, 26)
        self.sorted = sorted(
            self.comms, key=lambda c: (c.size, c.nodes(), ORDER.index(c.highest()), c.errors()), reverse=True
        )
        groups, numbers = [], {}
        for comm in self.sorted:
            key = (comm.size, comm.nodes(), comm.highest(), comm.errors())
            if not groups or groups[-1][0] != key:
                groups.append((key, []))
            numbers[id(comm)] = (len(groups) - 1, len(groups[-1][1]))
            groups[-1][1].append(comm)
        out = [
            f"NCCL version {self.version} compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 13000\n\n",
            "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n",
            "(total)   per node  per process    (total)  (total)\n      4          2            1          8        8\n",
            f"\nCommunicators... (0.01{'' if old else '0'}s)\n=============\n\n",
        ]
        if groups:
            out.append("Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n")
            out.append("    #  in group  per comm  per node  per comm  in group\n")
        else:
            out.append("No communicator data collected!\n")
        for index, ((size, nodes, status, errors), comms) in enumerate(groups):
            word = "UNKNOWN" if old and status == "NOCOMM" else status
            here = len({c.where[r][:2] for c in comms for r in c.present})
            out.append(
                f"{index:5d}  {len(comms):8d}  {nodes:8d}  {'1-2':>8}  {size:8d}  {here:8d}  {word:>8}  {errors:>6}\n"
            )
        out.append("\nErrors\n======\n\n")

        def name(comm):
            group, place = numbers[id(comm)]
            return f"#{group}-{place} ({comm.ident:016x})"

        gone = sorted({c.where[r] for c in self.comms for r, (silent, _) in c.missing.items() if silent})
        dead = sorted({c.where[r] for c in self.comms for r, (_, dead) in c.missing.items() if dead})
        if gone:
            out.append(f"INCOMPLETE\n  Missing communicator data from {self._n(len(gone), 'job process')}\n")
            out += [*map(self._process, gone), "\n"]
        if dead:
            are = "es are" if len(dead) > 1 else " is"
            out.append(f"DEAD\n  {len(dead)} job process{are} considered dead (unreachable via the RAS network)\n")
            out += [*map(self._process, dead), "\n"]
        for comm in self.sorted:
            out += self._errors(comm, name(comm), old)
        out.append("Warnings\n========\n\n")
        if self.timeouts:
            out.append(
                f"TIMEOUT\n  Encountered {self.timeouts} communication timeout while gathering communicator data\n\n"
            )
        for comm in self.sorted:
            if "MISMATCH" in comm.errors():
                out.append(f"{name(comm)} MISMATCH\n")
                out += self._statuses(comm, old)
                out += self._launches(comm, old)
        return "".join(out).encode()

    def _n(self, count, what):
        return f"{count} {what}{('es' if what.endswith('process') else 's') if count > 1 else ''}"

    def _process(self, where):
        return f"  Process {where[1]} on node {where[0]} managing GPU {where[2]}\n"

    def _gpu(self, comm, rank):
        host, pid, dev = comm.where[rank]
        return f"-- GPU {dev} managed by process {pid} on node {host}\n"

    def _listed(self, count, size=None):
        """rasCountIsOutlier."""
        if count == 1:
            return True
        if self.verbose:
            return size is None or count < size * 0.5
        return count <= 10 and (size is None or count <= size * 0.25)

    def _errors(self, comm, head, old):
        out = []
        silent = [r for r, (unresponsive, _) in sorted(comm.missing.items()) if unresponsive]
        if silent:
            out.append(f"{head} INCOMPLETE\n  Missing communicator data from {self._n(len(silent), 'rank')}\n")
            if self._listed(len(silent)) and old:
                plural = "s" if len(silent) > 1 else ""
                out.append(f"  The missing rank{plural}: {','.join(map(str, silent))}\n")
            elif self._listed(len(silent)):
                out += [f"  Rank {r} {self._gpu(comm, r)}" for r in silent]
            out.append("\n")
        if "ERROR" in comm.errors():
            out.append(f"{head} ERROR\n")
            for name, found in (("Initialization", comm.init), ("Asynchronous", comm.asynchronous)):
                if found:
                    plural = "s" if len(found) > 1 else ""
                    out.append(f"  {name} error{plural} on {self._n(len(found), 'rank')}\n")
                for code, count in Counter(found.values()).most_common():
                    ranks = sorted(r for r in found if found[r] == code)
                    if count > 1:
                        out.append(f"  {count} ranks reported {ERRORS[code]}\n")
                        out += [f"  Rank {r} {self._gpu(comm, r)}" for r in ranks if self._listed(count)]
                    else:
                        out.append(f"  Rank {ranks[0]} reported {ERRORS[code]} {self._gpu(comm, ranks[0])}")
            out.append("\n")
        return out

    def _groups(self, comm, values, words):
        """One heading per value, the most frequent first (of equals the larger), with the ranks of the few."""
        out, counted = [], Counter(values.values())
        for value, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]), reverse=False):
            ranks = sorted(r for r in values if values[r] == value)
            if count > 1:
                out.append(f"  {count} ranks {words(value, True)}\n")
                if self._listed(count, comm.size):
                    out += [f"  Rank {r} {self._gpu(comm, r)}" for r in ranks]
            else:
                out.append(f"  Rank {ranks[0]} {words(value, False)} {self._gpu(comm, ranks[0])}")
        return out

    def _statuses(self, comm, old):
        if len(comm.states()) < 2:
            return []
        values = {r: comm.status[r] for r in comm.present}
        # 2.24 cannot tell who left from who is silent, and lists both here whenever it lists states at all.
        left = [r for r, (unresponsive, _) in sorted(comm.missing.items()) if old or not unresponsive]
        out = ["  Communicator ranks have different status\n"]
        if old and left:
            out += self._groups(comm, values, lambda v, many: f"{'have' if many else 'has'} status {v}")
            names = ",".join(map(str, left))
            if len(left) > 1:
                return [*out, f"  {len(left)} ranks have status UNKNOWN\n  The unknown ranks: {names}\n"]
            return [*out, f"  Rank {names} has status UNKNOWN\n"]
        values.update(dict.fromkeys(left, "NOCOMM"))
        return out + self._groups(comm, values, lambda v, many: f"{'have' if many else 'has'} status {v}")

    def _launches(self, comm, old):
        def words(value, many):
            have = "have" if many else "has"
            if value or old:
                return f"{have} launched up to operation {value}"
            return f"{have} not launched any operations"

        out = []
        for name, values in (
            [("collective", {r: sum(comm.counts[r]) for r in comm.present})]
            if old
            else [(op, {r: comm.counts[r][i] for r in comm.present}) for i, op in enumerate(OPS)]
        ):
            if len(set(values.values())) > 1:
                out.append(f"  Communicator ranks have different {name} operation counts\n")
                out += [*self._groups(comm, values, words), "\n"]
        return out


# ---------------------------------------------------------------- a server


class Server:
    """Tells its reports in turn (the last one for ever); `ways` says how each connection is treated, the last one for ever.

    ways   answer silent close endless line binary stall half
    heard  all commands, in order
    """

    def __init__(self, *reports, ways=("answer",), family=socket.AF_INET, port=0, share=False):
        self.reports, self.ways, self.heard, self.connections = list(reports), list(ways), [], 0
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if share:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.socket.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", port))
        self.socket.listen(64)
        self.port = self.socket.getsockname()[1]
        self.over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self):
        self.over.set()
        self.socket.close()

    def _accept(self):
        while not self.over.is_set():
            try:
                line, _ = self.socket.accept()
            except OSError:
                return
            way = self.ways[min(self.connections, len(self.ways) - 1)]
            self.connections += 1
            threading.Thread(target=self._serve, args=(line, way), daemon=True).start()

    def _serve(self, line, way):
        with line:
            try:
                if way != "close":
                    self._speak(line, way)
            except OSError:
                pass

    def _speak(self, line, way):
        if way == "silent":
            self.over.wait(60)
        while way == "line":
            line.sendall(b"x" * 4096)
        if way == "binary":
            line.sendall(bytes(range(256)) * 16)
            self.over.wait(60)
        form, held, version = "text", b"", getattr((self.reports or [None])[0], "release", (2, 30, 7))
        while True:
            piece = line.recv(4096)
            if not piece:
                return
            held += piece
            while b"\n" in held:
                command, held = held.split(b"\n", 1)
                said = command.decode().strip().lower()
                self.heard.append(said)
                if said.startswith("client protocol"):
                    line.sendall(b"SERVER PROTOCOL 2\n")
                elif said.startswith("timeout "):
                    line.sendall(b"OK\n")
                elif said.startswith("set format ") and version >= (2, 28, 7):
                    form = said.split()[-1]
                    line.sendall(b"OK\n")
                elif said in ("status", "verbose status"):
                    self._report(line, way, form, said.startswith("verbose"))
                    return
                else:
                    line.sendall(f"ERROR: Unknown command {said}\n".encode())

    def _report(self, line, way, form, verbose):
        while way == "endless":
            line.sendall(b"NCCL version 2.30.7 compiled with CUDA 12.9\n" * 100)
        if way == "stall":
            self.over.wait(60)
        report = self.reports[0] if len(self.reports) == 1 else self.reports.pop(0)
        raw = report if isinstance(report, bytes) else report.json() if form == "json" else report.text(verbose)
        line.sendall(raw[: len(raw) // 2] if way == "half" else raw)


if __name__ == "__main__":
    # ras_server.py PORT: rank 0 of two is this very process. With "tell", all pids come first, and who is behind.
    told = Comm(size=2, pid=os.getpid())
    if sys.argv[2:] == ["tell"]:
        *pids, behind = map(int, sys.stdin.readline().split())
        told = Comm(size=len(pids)).more(behind, by=-1)
        told.where = {rank: ("10.0.0.11", pid, rank) for rank, pid in enumerate(pids)}
    Server(Report(told), port=int(sys.argv[1]), share=True)
    print("ready", flush=True)
    sys.stdin.read()

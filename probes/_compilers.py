"""Which compilers work below a process, and how much CPU do they burn? By many small looks at the process table.

Reads    /proc/<pid>/stat   of every process   "4711 (ptxas) R 4242 …"
         /proc/<pid>/cmdline   of what is below the process and has no name that says it   "python3 …/_inductor/…"
Most compilers of a training job live less than a second, so two looks would miss them.
Fooled by   names (hence the CPU); compilers that live less than the time between two looks; an uptime that a container
            fakes (then the CPU from before the first sighting of a new process counts in, at most one pause).

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import os
import re

# comm holds 15 characters. CUDA (nvcc's own), Triton, Neuron, LLVM, GNU.
COMPILERS = frozenset(
    "ptxas ptxas-blackwell cicc nvcc cudafe++ fatbinary nvlink nvjitlink cc1 cc1plus collect2 lto1 lto-wrapper mold hipcc "
    "amdclang amdclang++ lld ld.lld ld.gold ld.bfd neuronx-cc neuron-cc walrus_driver hlo2penguin hlo-opt "
    "xla_infergoldens".split()
)
DRIVER = re.compile(r"(?:[\w.]{1,40}-){0,6}(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|as|ld)(?:-[\d.]{1,9})?$")
# PyTorch's compile workers: a side process of the rank, and the pool below it (torch/_inductor/compile_worker).
WORKER = re.compile(r"(?:^|/)torch[/.]_inductor[/.]compile_worker(?:[/.]__main__(?:\.py)?)?$")


def parse_stat(text):
    """(parent, comm, state, CPU ticks, start tick) of /proc/<pid>/stat, or None. The last ')' ends the name."""
    head, _, tail = text.rpartition(")")
    field = tail.split()
    try:
        ticks = int(field[11]) + int(field[12])
        return int(field[1]), head.partition("(")[2], field[0], ticks, int(field[19])
    except (ValueError, IndexError):
        return None


def is_compiler(comm):
    return comm in COMPILERS or bool(DRIVER.match(comm))


def is_worker(argv):
    return any(WORKER.search(word) for word in argv[:4])


def below(top, children, others):
    """[(pid, parent)] below a process, parents first, without what belongs to another rank that was asked for."""
    found, todo, seen = [], [top], {top}
    while todo:
        parent = todo.pop(0)
        for pid in children.get(parent, ()):
            if pid not in seen and pid not in others:
                seen.add(pid)
                found.append((pid, parent))
                todo.append(pid)
    return found


def clean(text, limit=32):
    return "".join(c if c.isprintable() else " " for c in text[:limit])


def read_table(ctx):
    """{pid: parse_stat()} of every process; stat takes no lock."""
    table = {}
    for name in os.listdir(ctx.procfs):
        if name.isdigit():
            stat = parse_stat(ctx.read(ctx.proc(name + "/stat"), 2048) or "")
            if stat is not None:
                table[int(name)] = stat
    return table


class Watch(object):
    """What burns CPU below some processes: many small looks, for most compilers live less than a second."""

    def __init__(self, ctx, tops):
        self.ctx, self.tops = ctx, tops
        self.argv = {}  # (pid, start, comm) -> words
        self.since = None  # the tick at which the window began
        self.table, self.trees, self.seen = {}, {}, {}

    def begin(self):
        """The window begins: whatever is there now has burnt nothing yet, whatever is born from now on counts whole."""
        uptime = (self.ctx.read(self.ctx.proc("uptime"), 64) or "").split()
        self.since, self.seen = None, {top: {} for top in self.tops}
        self.look()
        try:
            self.since = float(uptime[0]) * os.sysconf("SC_CLK_TCK")
        except (ValueError, IndexError):
            pass

    def look(self):
        """Note what the compilers below each top have burnt by now."""
        self.table = table = read_table(self.ctx)
        children = {}
        for pid, stat in table.items():
            children.setdefault(stat[0], []).append(pid)
        self.trees = {top: below(top, children, self.tops) for top in self.tops}
        self.read_new([pid for tree in self.trees.values() for pid, _ in tree])
        for top, tree in self.trees.items():
            workers = set()
            for pid, parent in tree:
                _, comm, state, ticks, start = table[pid]
                if parent in workers or is_worker(self.argv.get((pid, start, comm), ())):
                    workers.add(pid)
                if pid in workers or is_compiler(comm):
                    born_here = self.since is not None and start >= self.since
                    row = self.seen.setdefault(top, {}).setdefault((pid, start), [0 if born_here else ticks, 0, "", ""])
                    row[1:] = [ticks, comm, state]

    def read_new(self, pids):
        """The command lines of those whose name does not say what they are."""
        import _places
        import _stuck

        keys = [(pid, self.table[pid][4], self.table[pid][1]) for pid in pids]
        new = [key for key in keys if key not in self.argv and not is_compiler(key[2])]
        if not new:
            return

        def read(key):
            return _places.parse_cmdline(self.ctx.read_bytes(self.ctx.proc("%d/cmdline" % key[0]), 4096) or b"")

        self.argv.update((key, ()) for key in new)  # one that does not answer is not asked again
        self.argv.update(_stuck.guarded(new, read, self.ctx.left, 0.3, 2)[0])

    def compilers(self, top):
        """[{pid, comm, state, cpu_s}], busiest first."""
        tick = float(os.sysconf("SC_CLK_TCK"))
        rows = [
            {"pid": pid, "comm": clean(comm), "state": state, "cpu_s": round(max(0, last - first) / tick, 3)}
            for (pid, _), (first, last, comm, state) in self.seen[top].items()
        ]
        return sorted(rows, key=lambda row: (-row["cpu_s"], row["pid"]))

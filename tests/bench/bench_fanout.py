"""Fan-out over SSH to 128, 512 and 1,024 targets: our own CPU a node, memory, wall time, and the same by clush.

    python tests/bench/bench_fanout.py simulated 128 256 512 1024    light targets in another process: CPU, memory, growth
    python tests/bench/bench_fanout.py sshd 128 512                  a real sshd on loopback, and clush with the same payload
    python tests/bench/bench_fanout.py broken 1024                   5 % dead, 2 % silent, 1 % hanging in each phase, 1 % endless

`--times N` repeats each (default 3) and the spread is printed as min .. median .. max. Exit 1 over a budget (DESIGN 11): 8 ms of
client CPU a node (ed25519) and half of clush's, 300 MB at 1,024, no slower than linear, never beyond the deadline + 2 s.

CPU is user and system time of our own process and of the children it waited for, of connect, payload, look A, look B and
close. Each run is a process of its own, so that its memory is its own. clush forks ssh with the cheapest key exchange
(curve25519) and hands it the same bytes; it gets no request, since its end of input would end the payload first.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "transports"))
SERVERS = 4  # processes of targets: one would be slower than what is measured
CPU_MS, MEMORY_MB, LATE_S = 8.0, 300.0, 2.0
PROBE = """
PROBE = {"name": "big", "version": 1, "timeout_s": 20.0, "cost": "cheap", "needs": [], "fields": {}}
def collect(ctx): return {"rows": [{"rank": i, "wchan": "do_select", "cmd": "x" * 100} for i in range(128)]}
"""
# Of 100 nodes; "tcp" is dead: nobody answers its SYN.
BROKEN = {"tcp": 5, "silent": 2, "kex": 1, "auth": 1, "channel": 1, "exec": 1, "output": 1, "endless": 1}


def cpu_s():
    own, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + theirs.ru_utime + theirs.ru_stime


def plain_path(command):
    """The command without the shims of pyenv, each of which costs a target more than all that is measured."""
    return f"PATH=/usr/local/bin:/usr/bin:/bin; export PATH; {command}"


# ---------------------------------------------------------------- one run, in a process of its own


def one(plan):
    """Reads a plan, runs, prints its figures as JSON."""
    from triage.gather import Fleet
    from triage.model import Node
    from triage.transports import payload, ssh

    command = plain_path(payload.COMMAND)
    nodes = [Node(name, address=address, port=port) for name, address, port in plan["nodes"]]
    load = payload.build([*payload.probe_sources(), "big"], extra={"big": PROBE}, nice=0, deadline_s=plan["limit"] * 3)
    began, used = time.monotonic(), cpu_s()
    transport = ssh.make({**plan["options"], "nodes": tuple(nodes)})
    fleet = Fleet(nodes, transport, load, command=command)
    took, cpu, ok, phases = {}, {"make": 1000 * (cpu_s() - used) / len(nodes)}, 0, {}
    for step in ("open", "A", "B"):
        since, before = time.monotonic(), cpu_s()
        samples = fleet.open(plan["limit"]) if step == "open" else fleet.look(step, {"big": {}}, plan["limit"])
        took[step], cpu[step] = time.monotonic() - since, 1000 * (cpu_s() - before) / len(nodes)
        ok += sum(s.status == "ok" for s in samples)
        if step == "open":
            for sample in samples:
                key = f"{sample.data['phase']}/{sample.status}"
                phases[key] = phases.get(key, 0) + 1
    fleet.close()
    figures = {
        "cpu_ms": 1000 * (cpu_s() - used) / len(nodes),
        "wall_s": time.monotonic() - began,
        "took": took,
        "cpu_ms_of": cpu,
        "system_ms": 1000 * resource.getrusage(resource.RUSAGE_SELF).ru_stime / len(nodes),
        "ok": ok / 3,
        "late_s": max(took.values()) - plan["limit"],
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "phases": phases,
        "payload": len(load),
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)


def run(plan):
    child = subprocess.run(
        [sys.executable, __file__, "one"], input=json.dumps(plan), capture_output=True, text=True, timeout=900
    )
    if child.returncode:
        raise SystemExit(child.stderr[-2000:])
    return json.loads(child.stdout)


# ---------------------------------------------------------------- targets


@contextlib.contextmanager
def simulated():
    """(folder, ports by behaviour) of targets in another process."""
    import ssh_servers
    from ssh_targets import MISBEHAVING

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE / "ssh_targets.py"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        servers = [subprocess.Popen(command, text=True, **pipes) for _ in range(SERVERS)]
        ports, known = {}, ""
        for server in servers:
            for _ in range(len(MISBEHAVING) + 1):
                how, port, kind, key = server.stdout.readline().split()
                ports.setdefault(how, []).append(int(port))
                known += f"[127.0.0.1]:{port} {kind} {key}\n"
        Path(folder, "key").write_text(ssh_servers.private_key())
        Path(folder, "known_hosts").write_text(known)
        try:
            yield folder, ports
        finally:
            for server in servers:
                server.stdin.close()
            for server in servers:
                server.wait(10)


@contextlib.contextmanager
def real():
    """(folder, port) of one sshd that answers on all of 127.0.0.0/8."""
    from sshd_here import Sshd, keygen, public

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keygen(folder / "key")
        settings = "ListenAddress 0.0.0.0\nMaxStartups 4000:1:4000\nUseDNS no\nPrintMotd no\n"
        server = Sshd(folder, "sshd", settings, authorized=public(folder / "key") + "\n")
        (folder / "known_hosts").write_text(server.known(f"[127.0.*]:{server.port},[n*]:{server.port}"))
        try:
            yield folder, server.port
        finally:
            server.stop()


def address(number):
    return f"127.0.{1 + number // 200}.{1 + number % 200}"


def options(folder):
    return {
        "key": f"{folder}/key",
        "known_hosts": f"{folder}/known_hosts",
        "user": "root",
        "agent": False,
        "config": "none",
    }


# ---------------------------------------------------------------- what is measured


def bench_simulated(counts, times):
    middles, bad = {}, []
    with simulated() as (folder, ports):
        for count in counts:
            nodes = [(f"n{i:04}", "127.0.0.1", ports["good"][i % SERVERS]) for i in range(count)]
            figures = [run({"nodes": nodes, "limit": 120.0, "options": options(folder)}) for _ in range(times)]
            show(f"simulated {count}", figures)
            middles[count] = statistics.median(f["wall_s"] for f in figures) / count
            bad += over(figures, count)
            if count >= 1024 and max(f["memory_mb"] for f in figures) > MEMORY_MB:
                bad.append(f"{count}: more than {MEMORY_MB:.0f} MB")
    first, last = min(middles), max(middles)
    print(f"wall a node           {1000 * middles[first]:.1f} ms at {first}, {1000 * middles[last]:.1f} ms at {last}")
    # A quarter for the noise of a shared machine.
    return bad + ([f"slower than linear: {middles}"] if middles[last] > 1.25 * middles[first] else [])


def bench_sshd(counts, times):
    bad = []
    with real() as (folder, port):
        for count in counts:
            nodes = [(f"n{i:04}", address(i), port) for i in range(count)]
            plan = {"nodes": nodes, "limit": 60.0 + count / 2, "options": options(folder)}
            figures, other = [], []
            for _ in range(times):
                figures.append(run(plan))
                if shutil.which("clush"):
                    other.append(clush(folder, port, count))
            show(f"sshd {count}", figures)
            bad += over(figures, count)
            if other:
                print(f"{f'clush {count}':<20}  CPU {spread(other)} ms a node")
                if statistics.median(f["cpu_ms"] for f in figures) > statistics.median(other) / 2:
                    bad.append(f"{count}: more than half of clush's CPU")
            else:
                print("clush is not here (clustershell)")
    return bad


def clush(folder, port, count):
    """CPU of clush a node, in ms, for the same payload to the same targets."""
    from triage.transports import payload

    command = plain_path(payload.COMMAND)
    load = payload.build([*payload.probe_sources(), "big"], extra={"big": PROBE}, nice=0)
    names = ",".join(address(i) for i in range(count))
    more = (
        f"-F none -p {port} -l root -i {folder}/key -o IdentitiesOnly=yes -o UserKnownHostsFile={folder}/known_hosts "
        "-o KexAlgorithms=curve25519-sha256 -o BatchMode=yes -o LogLevel=ERROR"
    )
    before = cpu_s()
    done = subprocess.run(
        ["clush", "-q", "-L", "-f", "64", "-w", names, "--options", more, command],
        input=load,
        capture_output=True,
        timeout=900,
    )
    used = 1000 * (cpu_s() - before) / count
    answered = done.stdout.count(b'"_begin"')
    if answered < 0.98 * count:
        print(f"clush: only {answered} of {count} answered: {done.stderr[-200:]!r}")
    return used


def bench_broken(counts, times):
    bad = []
    with simulated() as (folder, ports):
        for count in counts:
            kinds = [how for how, share in BROKEN.items() for _ in range(round(share * count / 100))]
            nodes = [(f"n{i:04}", "127.0.0.1", ports[how][i % SERVERS]) for i, how in enumerate(kinds)]
            nodes += [(f"n{i:04}", "127.0.0.1", ports["good"][i % SERVERS]) for i in range(len(nodes), count)]
            figures = [run({"nodes": nodes, "limit": 15.0, "options": options(folder)}) for _ in range(times)]
            show(f"broken {count}", figures)
            print(f"{'':<22}phases {figures[-1]['phases']}")
            good = count - len(kinds)
            for figure in figures:
                if figure["late_s"] > LATE_S:
                    bad.append(f"{count}: {figure['late_s']:.1f} s beyond a deadline")
                if figure["ok"] < 0.99 * good:
                    bad.append(f"{count}: {figure['ok']:.0f} of {good} good nodes answered")
    return bad


def over(figures, count):
    bad = []
    if statistics.median(f["cpu_ms"] for f in figures) > CPU_MS:
        bad.append(f"{count}: more than {CPU_MS} ms of CPU a node")
    if min(f["ok"] for f in figures) < 0.99 * count:
        bad.append(f"{count}: not all answered")
    return bad


def spread(values):
    ordered = sorted(values)
    return f"{ordered[0]:.2f} .. {statistics.median(ordered):.2f} .. {ordered[-1]:.2f}"


def show(name, figures):
    print(f"{name:<20}  CPU {spread([f['cpu_ms'] for f in figures])} ms a node; wall {spread([f['wall_s'] for f in figures])} s; "
          f"memory {spread([f['memory_mb'] for f in figures])} MB; {min(f['ok'] for f in figures):.0f} answered", flush=True)  # fmt: skip


def main():
    if sys.argv[1:] == ["one"]:
        one(json.load(sys.stdin))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("simulated", "sshd", "broken"))
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    bench = {"simulated": bench_simulated, "sshd": bench_sshd, "broken": bench_broken}[given.what]
    bad = bench(given.counts, given.times)
    for line in bad:
        print(f"OVER: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

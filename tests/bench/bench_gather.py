"""Client CPU per node of a whole run over SSH: connect, payload, look A, look B. Budget: 8 ms a node (ed25519).

    python tests/bench/bench_gather.py [NODES]       default 32; prints figures, fails over the budget

The servers are embedded ones in another process, so that only our own side is counted (RUSAGE_SELF).
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "transports"))
BUDGET_MS = 8.0
PROBE = """
PROBE = {"name": "big", "version": 1, "timeout_s": 9.0, "cost": "cheap", "needs": [], "fields": {}}
def collect(ctx): return {"rows": [{"rank": i, "wchan": "do_select", "cmd": "x" * 100} for i in range(128)]}
"""


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    import ssh_servers

    from triage.gather import Fleet
    from triage.model import Node
    from triage.transports import payload, ssh

    server = subprocess.Popen(
        [sys.executable, HERE.parent / "transports" / "ssh_servers.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    line = server.stdout.readline()
    port = int(line.split("]:")[1].split()[0])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "key").write_text(ssh_servers.private_key())
        Path(folder, "known_hosts").write_text(line)
        began, used = time.monotonic(), cpu_s()
        transport = ssh.make({"key": f"{folder}/key", "known_hosts": f"{folder}/known_hosts", "user": "bench"})
        load = payload.build([*payload.probe_sources(), "big"], extra={"big": PROBE}, nice=0)
        prepared = cpu_s() - used
        nodes = [Node(f"gpu{i:04}", address="127.0.0.1", port=port) for i in range(count)]
        fleet = Fleet(nodes, transport, load)
        steps, answered = [], 0
        for step in ("open", "A", "B"):
            before, since = cpu_s(), time.monotonic()
            samples = fleet.open(60.0) if step == "open" else fleet.look(step, {"big": {}}, 60.0)
            answered += sum(s.status == "ok" for s in samples)
            steps.append((step, 1000 * (cpu_s() - before) / count, time.monotonic() - since))
        before = cpu_s()
        fleet.close()
        steps.append(("close", 1000 * (cpu_s() - before) / count, 0.0))
        total = 1000 * (cpu_s() - used - prepared) / count
        wall = time.monotonic() - began
    server.stdin.close()
    server.wait(10)
    print(f"nodes                 {count}, {answered} of {3 * count} records ok, {wall:.1f} s in all")
    print(f"payload               {len(load)} bytes; made, with keys and known_hosts, in {1000 * prepared:.0f} ms CPU")
    for step, cpu, took in steps:
        print(f"  {step:<20}{cpu:.2f} ms CPU a node, {took:.2f} s")
    print(f"client CPU a node     {total:.2f} ms (budget {BUDGET_MS} ms)")
    print(f"resident              {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return 0 if answered == 3 * count and total <= BUDGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())

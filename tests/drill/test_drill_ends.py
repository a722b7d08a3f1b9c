"""However a drill ends, nothing of it stays: no process, no folder."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from drill_helpers import alive, connect, moving, wait_for

from triage.drill import netlab
from triage.drill.cluster import Cluster

ROOT = Path(__file__).parents[2]
HELD = """
import sys
from pathlib import Path
from triage.drill.run import DrillOptions, run_drill
options = DrillOptions(
    scenario="healthy", nodes=2, ranks_per_node=1, after_s=0, hold=True, truth=Path(sys.argv[1]), backend=sys.argv[2]
)
sys.exit(run_drill(options, lambda job, inventory, profile: 99))
"""


def all_gone(pids: list[int], folder: Path) -> None:
    wait_for(lambda: not [pid for pid in pids if alive(pid)] and not folder.exists(), 5)


@pytest.fixture(params=["processes", "namespaces"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int], Path]]:
    """A drill with --hold in another Python: the process, what runs for it, its folder."""
    if request.param == "namespaces" and (why := netlab.why_not()):
        pytest.skip(f"no namespaces here: {why}")
    truth = tmp_path / "facts.json"
    child = subprocess.Popen(
        [sys.executable, "-c", HELD, str(truth), request.param], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    line = child.stdout.readline()
    try:
        assert re.match(r"(nsenter --net=/proc/\d+/ns/net )?triage frozen-job ", line), line
        facts = json.loads(truth.read_text())
        yield child, facts["processes"], Path(facts["folder"])
    finally:
        child.kill()
        child.wait()


def test_close_leaves_nothing() -> None:
    with Cluster(nodes=2, ranks_per_node=2) as cluster:
        moving(cluster, 1)
        pids, folder = cluster.processes(), cluster.folder
        assert len(pids) == 2 + 2 + 4 and all(alive(pid) for pid in pids)
    assert not [pid for pid in pids if alive(pid)] and not folder.exists()
    cluster.close()


def test_an_error_inside_the_drill_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), Cluster(nodes=1, ranks_per_node=1) as cluster:
        pids, folder = cluster.processes(), cluster.folder
        _ = 1 / 0
    assert not [pid for pid in pids if alive(pid)] and not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_polite_signals_end_a_held_drill_in_order(
    held: tuple[subprocess.Popen[str], list[int], Path], number: int
) -> None:
    child, pids, folder = held
    os.kill(child.pid, number)
    assert child.wait(10) == 0
    all_gone(pids, folder)
    assert "Traceback" not in (child.stderr.read() if child.stderr else "")


def test_ctrl_c_that_reaches_the_whole_process_group_is_the_same(
    held: tuple[subprocess.Popen[str], list[int], Path],
) -> None:
    child, pids, folder = held
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(10) == 0
    all_gone(pids, folder)


def test_a_killed_parent_leaves_nothing(held: tuple[subprocess.Popen[str], list[int], Path]) -> None:
    child, pids, folder = held
    assert all(alive(pid) for pid in pids) and folder.exists()
    child.kill()
    child.wait()
    all_gone(pids, folder)


def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path / "facts.json"), "processes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=ROOT, start_new_session=True, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    wait_for(lambda: list(tmp_path.glob("site-*/shared")))
    time.sleep(0.15)
    os.kill(child.pid, signal.SIGINT)
    child.communicate(timeout=15)
    assert child.returncode != 0
    mark = str(tmp_path).encode()
    wait_for(lambda: not list(tmp_path.glob("site-*")) and not named_in_an_environment(mark), 5)


def test_a_killed_node_takes_its_ranks_along_and_its_ports_refuse() -> None:
    with Cluster(nodes=2, ranks_per_node=1) as cluster:
        moving(cluster, 1)
        client = connect(cluster, 1)
        _, out, _ = client.exec_command("echo $$; sleep 1000")
        orphan = int(out.readline())
        node, rank = cluster.processes()[1], cluster.pids()[1]
        os.kill(node, signal.SIGKILL)
        wait_for(lambda: not alive(rank) and refuses(cluster.hosts[1].port), 5)
        assert alive(cluster.pids()[0])
        client.close()
    wait_for(lambda: not alive(orphan), 5)


def test_a_killed_launcher_takes_its_ranks_along() -> None:
    with Cluster(nodes=1, ranks_per_node=2) as cluster:
        moving(cluster, 1)
        launcher, ranks = cluster.processes()[1], list(cluster.pids().values())
        os.kill(launcher, signal.SIGKILL)
        wait_for(lambda: not [pid for pid in ranks if alive(pid)], 5)


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def named_in_an_environment(mark: bytes) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            raw = path.read_bytes()
        except OSError:
            continue
        if mark + b"/site-" in raw and int(path.parent.name) != os.getpid():
            found.append(path.parent.name)
    return found

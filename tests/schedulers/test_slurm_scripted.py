"""Slurm's commands as scripts: what hangs, complains, says too much, or is there and not set up."""

import os
import sys
import textwrap
import time

import pytest

from triage.errors import ConfigError, SchedulerSilent, UnknownJob, UsageError
from triage.resolve import find_job
from triage.schedulers import base, slurm
from triage.schedulers._slurm_text import SEPARATOR as S

START = "2026-12-01T14:52:40"
UNKNOWN = "slurm_load_jobs error: Invalid job id specified"
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def row(id, raw, array, task, word, nodes, end="NONE", limit="UNLIMITED", why="None"):
    return S.join(
        (id, str(raw), str(array), task, word, nodes, "n1" if nodes else "n/a", "1", START, end, limit, "ann", why)
    )


RUNNING = row("4711", 4711, 4711, "N/A", "RUNNING", "n[1-3]", "2026-12-01T15:52:40", "1:00:00")
SHOWN = "JobId=4711 JobName=train UserId=ann(1) Restarts=2 WorkDir=/w StdOut=/w/%x-%j-%N.out Power="
NODES = "\n".join(
    S.join((f"n{i}", f"10.0.0.{i}", f"gpu{i}", "mixed" + "*" * (i == 3), "Unknown", "Unknown", "none"))
    for i in (3, 2, 1)
)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """commands(squeue=..., sinfo=...): each is (what it prints, what it complains, its exit code), or a Python program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in [name for name in os.environ if name.startswith(("SLURM", "SQUEUE", "TRIAGE"))]:
        monkeypatch.delenv(name)

    def put(**given):
        for name in ("squeue", "scontrol", "sinfo", "sacct"):
            says = given.get(name, ("", "unused", 1))
            if isinstance(says, tuple):
                out, err, code = says
                says = f"import sys; sys.stdout.write({out!r}); sys.stderr.write({err!r}); sys.exit({code})"
            file = folder / name
            file.write_text(
                f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'calls')!r}, 'a').write(repr(sys.argv) + chr(10))\n{textwrap.dedent(says)}\n"
            )
            file.chmod(0o755)
        return tmp_path

    return put


CONTROL = f"""
import sys
print("ClusterName             = lab" if "config" in sys.argv else {SHOWN!r})
"""


def ask(job="4711", **more):
    return slurm.find(base.Ask(job, **more))


def test_a_running_job_with_all_that_is_known_of_it(commands):
    commands(squeue=(RUNNING, "", 0), scontrol=CONTROL, sinfo=(NODES, "", 0))
    heard = []
    job = ask(say=heard.append).job
    assert (job.id, job.scheduler, job.cluster, job.state, job.user) == ("4711", "slurm", "lab", "running", "ann")
    assert [(n.name, n.address, n.state) for n in job.nodes] == [
        ("n1", "10.0.0.1", "mixed"), ("n2", "10.0.0.2", "mixed"), ("n3", "10.0.0.3", "mixed*"),
    ]  # fmt: skip
    assert (job.attempt.restart, job.attempt.started, job.attempt.ended, job.deadline) == (
        2,
        1796136760.0,
        None,
        1796140360.0,
    )
    assert (job.log, job.workdir, dict(job.match)) == ("/w/train-4711-gpu1.out", "/w", {"SLURM_JOB_ID": "4711"})
    assert heard == ["Slurm marks n3 as mixed*: its daemon does not respond"]


def test_a_hung_squeue_is_killed_with_its_children_in_time(commands):
    folder = commands(squeue="""
        import subprocess, time
        child = subprocess.Popen(["sleep", "600"])
        open(__file__ + ".child", "w").write(str(child.pid))
        time.sleep(600)
    """)  # fmt: skip
    began = time.monotonic()
    with pytest.raises(SchedulerSilent, match=r"slurmctld did not answer squeue within 1s"):
        ask(limit_s=1.0)
    assert time.monotonic() - began < 3.0
    heard = []
    with pytest.raises(SchedulerSilent):
        ask(limit_s=1.6, say=heard.append)
    assert heard == ["asking Slurm for job 4711"]
    child = int((folder / "bin" / "squeue.child").read_text())
    for _ in range(50):
        try:
            with open(f"/proc/{child}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError("the child of squeue is still there")


def test_a_child_that_left_the_session_and_holds_the_pipe_is_not_waited_for(commands):
    commands(squeue=f"""
        import subprocess
        subprocess.Popen(["sleep", "5"], start_new_session=True)
        print({RUNNING!r})
    """, scontrol=CONTROL, sinfo=(NODES, "", 0))  # fmt: skip
    began = time.monotonic()
    assert len(ask().job.nodes) == 3
    assert time.monotonic() - began < 4.0


def test_endless_output_is_cut_off_and_is_no_answer(commands):
    commands(
        squeue=f"""
        while True: print({RUNNING!r} * 100)
    """
    )
    with pytest.raises(SchedulerSilent, match="more than triage reads"):
        ask(limit_s=20.0)


@pytest.mark.parametrize(
    ("complaint", "error", "says"),
    [
        (DOWN, SchedulerSilent, "slurmctld did not answer: slurm_load_jobs error: Unable to contact"),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", SchedulerSilent, "did not answer"),
        ("squeue: fatal: Could not establish a configuration source", base.NotHere, "not set up"),
        (
            "squeue: error: something new\x1b[2J",
            SchedulerSilent,
            "tells nothing of job 4711: squeue: error: something new",
        ),
    ],
)
def test_what_squeue_complains_of_is_told_apart(commands, complaint, error, says):
    commands(squeue=("", complaint, 1))
    with pytest.raises(error) as caught:
        ask()
    assert says in str(caught.value) and "\x1b" not in str(caught.value)


def test_a_job_that_nobody_knows_is_unknown_and_a_silent_accounting_is_silence(commands):
    commands(squeue=("", UNKNOWN, 1), sacct=("", "", 0))
    with pytest.raises(UnknownJob, match="neither slurmctld nor accounting knows it"):
        ask()
    commands(squeue=("", UNKNOWN, 1), sacct=("", "Slurm accounting storage is disabled", 1))
    with pytest.raises(UnknownJob, match="accounting tells nothing of older ones"):
        ask()
    commands(squeue=("", UNKNOWN, 1), sacct=("", "sacct: error: slurm_persist_conn_open: Connection refused", 1))
    with pytest.raises(SchedulerSilent, match="Slurm's accounting did not answer"):
        ask()


PAST = [
    ("4711", "4711", "NODE_FAIL", "n[1-3]", "2026-12-01T01:00:00", "2026-12-01T02:00:00", "ann", "None"),
    ("4711", "4711", "OUT_OF_MEMORY", "n[2-4]", "2026-12-01T03:00:00", "2026-12-01T04:00:00", "ann", "OutOfMemory"),
]


def test_a_finished_job_is_told_by_accounting_and_its_last_attempt_is_meant(commands):
    old = "\n".join(S.join((*cells, "/w")) for cells in PAST)
    folder = commands(
        squeue=("", UNKNOWN, 1),
        sacct=f"""
        if "Restarts" in " ".join(sys.argv):
            sys.stderr.write('sacct: error: Invalid field requested: "Restarts"'); sys.exit(1)
        print({old!r})
        """,
        sinfo=(NODES, "", 0),
    )
    answer = ask()
    job = answer.job
    assert (job.state, [n.name for n in job.nodes], job.user, job.log) == ("ended", ["n2", "n3", "n4"], "ann", "")
    assert (job.attempt.restart, job.attempt.started, job.attempt.ended) == (None, 1796094000.0, 1796097600.0)
    assert [n.address for n in job.nodes] == ["10.0.0.2", "10.0.0.3", ""]
    assert answer.notes == (
        "job 4711 has ended: accounting says OUT_OF_MEMORY (OutOfMemory)",
        "accounting knows 2 attempts of job 4711: the last one is meant",
    )
    assert sum("sacct" in line for line in (folder / "calls").read_text().splitlines()) == 2


def test_a_newer_accounting_tells_restarts_and_the_output_file(commands):
    new = S.join((*PAST[1], "1", "%x/%j.out".replace("%x", "logs"), "/w"))
    commands(squeue=("", UNKNOWN, 1), sacct=(new, "", 0), sinfo=(NODES, "", 0))
    job = ask().job
    assert (job.attempt.restart, job.log) == (1, "/w/logs/4711.out")


def test_accounting_that_says_running_of_a_job_that_slurmctld_does_not_know_leaves_its_state_unknown(commands):
    lost = S.join(("4711", "4711", "RUNNING", "n1", "2026-12-01T01:00:00", "Unknown", "ann", "None", "0", "", "/w"))
    commands(squeue=("", UNKNOWN, 1), sacct=(lost, "", 0), sinfo=(NODES, "", 0))
    answer = ask()
    assert answer.job.state == "unknown" and "is not known to slurmctld: accounting says RUNNING" in answer.notes[0]


def test_sinfo_that_fails_costs_addresses_and_states_and_says_so(commands):
    commands(squeue=(RUNNING, "", 0), scontrol=CONTROL, sinfo=("", "boom", 1))
    answer = ask()
    assert [(n.name, n.address, n.state) for n in answer.job.nodes] == [("n1", "", ""), ("n2", "", ""), ("n3", "", "")]
    assert "sinfo told nothing of the nodes (boom)" in answer.notes[0]


def test_an_array_of_which_several_tasks_run_must_be_asked_for_by_task(commands):
    rows = [
        row("5_[3-9%2]", 5, 5, "3-9%2", "PENDING", ""),
        row("5_1", 6, 5, "1", "RUNNING", "n1"),
        row("5_2", 7, 5, "2", "RUNNING", "n2"),
    ]
    commands(squeue=("\n".join(rows), "", 0), scontrol=CONTROL, sinfo=(NODES, "", 0))
    with pytest.raises(UsageError, match=r"job 5 is an array of which 2 tasks run: 5_1, 5_2; name one"):
        ask("5")
    assert (ask("5_2").job.id, [n.name for n in ask("5_2").job.nodes], dict(ask("5_2").job.match)) == (
        "5_2", ["n2"], {"SLURM_JOB_ID": "7"},
    )  # fmt: skip
    commands(squeue=("\n".join(rows[:2]), "", 0), scontrol=CONTROL, sinfo=(NODES, "", 0))
    answer = ask("5")
    assert answer.job.id == "5_1" and "job 5 is an array; 5_1 is the task that runs" in answer.notes
    commands(squeue=(rows[0], "", 0), scontrol=CONTROL)
    assert (ask("5").job.state, ask("5_4").job.state, ask("5").job.nodes) == ("pending", "pending", ())


def test_the_raw_id_of_an_arrays_task_is_that_task(commands):
    commands(squeue=(row("5_2", 7, 5, "2", "RUNNING", "n2"), "", 0), scontrol=CONTROL, sinfo=(NODES, "", 0))
    assert ask("7").job.id == "5_2"


def test_the_json_form_is_asked_only_for_what_the_text_left_open(commands):
    document = '{"jobs": [{"job_id": 4711, "restart_cnt": {"set": true, "number": 3}, "standard_output": "/w/%j", "nodes": "n[1-3]", "gres_detail": ["gpu:8", "gpu:8", "gpu:4"]}]}'
    both = f"print({document!r} if '--json' in sys.argv else {RUNNING!r})"
    forged = "JobId=4711 JobName=x Restarts=7 StdOut=/etc/shadow UserId=ann(1) Restarts=2 WorkDir=/w StdOut=/w/a Power="
    folder = commands(squeue=both, scontrol=f"print({forged!r})", sinfo=(NODES, "", 0))
    job = ask().job
    assert (job.attempt.restart, job.log, [n.gpus for n in job.nodes]) == (3, "/w/4711", [8, 8, 4])
    (folder / "calls").unlink()
    commands(squeue=both, scontrol=CONTROL, sinfo=(NODES, "", 0))
    ask()
    assert "--json" not in (folder / "calls").read_text()


def test_a_cluster_by_its_name_is_asked_with_M_and_this_machines_own_without(commands):
    folder = commands(squeue=(f"CLUSTER: far\n{RUNNING}", "", 0), scontrol=CONTROL, sinfo=(NODES, "", 0))
    assert ask("lab:4711").job.cluster == "lab" and "-M" not in (folder / "calls").read_text()
    assert ask("far:4711").job.cluster == "far" and "'-M', 'far'" in (folder / "calls").read_text()
    commands(
        squeue=("", "squeue: error: 'far' can't be reached now, or it is an invalid entry for --cluster.", 1),
        scontrol=CONTROL,
    )
    with pytest.raises(UnknownJob, match="cluster far cannot be asked"):
        ask("far:4711")


def test_a_requeued_job_waits_and_says_since_which_restart(commands):
    commands(squeue=(row("4711", 4711, 4711, "N/A", "PENDING", "", why="BeginTime"), "", 0), scontrol=CONTROL)
    answer = ask()
    assert (answer.job.state, answer.job.nodes, answer.job.attempt.restart, answer.job.attempt.started) == (
        "pending",
        (),
        2,
        None,
    )
    assert answer.notes == ("job 4711 was requeued (restart 2) and waits: BeginTime",)


# ---------------------------------------------------------------- who is asked, and what is left when nobody answers


def found(tmp_path, job="4711", nodes=None, **flags):
    heard = []
    flags = {"state_dir": str(tmp_path / "state"), **flags}
    return find_job(job, nodes, flags, warn=heard.append), heard


def test_slurm_is_asked_by_itself_where_squeue_is_and_the_id_is_one_of_its_own(commands, tmp_path):
    commands(squeue=(RUNNING, "", 0), scontrol=CONTROL, sinfo=(NODES, "", 0))
    assert found(tmp_path)[0].job.scheduler == "slurm"
    with pytest.raises(UsageError, match="nothing tells its nodes"):
        found(tmp_path, "my-pytorch-job")
    with pytest.raises(UsageError, match="no job id of Slurm"):
        found(tmp_path, "my-pytorch-job", scheduler="slurm")
    with pytest.raises(UsageError, match="no scheduler is called 'slrum'; there are: inventory, slurm"):
        found(tmp_path, scheduler="slrum")


def test_an_inventory_that_is_given_is_asked_and_slurm_is_not(commands, tmp_path):
    folder = commands(squeue=(RUNNING, "", 0))
    (tmp_path / "i.yaml").write_text('jobs: {"4711": {nodes: "a[1-2]"}}\n')
    job = found(tmp_path, inventory=str(tmp_path / "i.yaml"))[0].job
    assert job.scheduler == "inventory" and not (folder / "calls").exists()


def test_without_squeue_a_number_is_nobodys_id(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TRIAGE_INVENTORY", raising=False)
    with pytest.raises(UsageError, match="nothing tells its nodes"):
        found(tmp_path)
    with pytest.raises(ConfigError, match="there is no squeue here"):
        found(tmp_path, scheduler="slurm")


def test_a_slurm_that_is_not_set_up_is_no_scheduler_and_costs_no_line(commands, tmp_path):
    commands(squeue=("", "squeue: fatal: Could not establish a configuration source", 1))
    with pytest.raises(UsageError, match=r"nothing tells its nodes .*not set up"):
        found(tmp_path)
    job, heard = found(tmp_path, nodes="n[1-2]")
    assert [n.name for n in job.job.nodes] == ["n1", "n2"] and heard == []


def test_a_silent_slurmctld_offers_the_nodes_that_it_told_last(commands, tmp_path):
    commands(squeue=(RUNNING, "", 0), scontrol=CONTROL, sinfo=(NODES, "", 0))
    found(tmp_path)
    commands(squeue=("", DOWN, 1))
    with pytest.raises(SchedulerSilent) as caught:
        found(tmp_path)
    assert caught.value.code == 21
    assert "it had these nodes " in str(caught.value)
    assert "s ago; if it still has them: --nodes 'n[1-3]'" in str(caught.value)
    job, heard = found(tmp_path, nodes="n[1-2]")
    assert [(n.name, n.address, n.state) for n in job.job.nodes] == [("n1", "10.0.0.1", ""), ("n2", "10.0.0.2", "")]
    assert (job.job.state, job.job.attempt.started, dict(job.job.match)) == ("unknown", None, {"SLURM_JOB_ID": "4711"})
    assert "going on with --nodes" in heard[0] and "as the scheduler told them " in heard[1]


def test_a_silent_slurmctld_without_a_memory_is_21_and_offers_nothing(commands, tmp_path):
    commands(squeue=("", DOWN, 1))
    with pytest.raises(SchedulerSilent) as caught:
        found(tmp_path)
    assert "--nodes" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", '{"at": 1}', '{"at": true, "job": {"id": "1", "nodes": [{"name": "n1"}]}}',
                                  '{"at": 5, "job": {"id": "1", "nodes": [{"name": "-oProxyCommand=id"}]}}'])  # fmt: skip
def test_a_memory_that_is_broken_or_forged_is_none(commands, tmp_path, text):
    commands(squeue=("", DOWN, 1))
    (tmp_path / "state" / "jobs").mkdir(parents=True)
    (tmp_path / "state" / "jobs" / "slurm-4711.json").write_text(text)
    with pytest.raises(SchedulerSilent) as caught:
        found(tmp_path)
    assert "--nodes" not in str(caught.value)


def test_nodes_that_are_named_are_asked_with_what_slurm_knows_of_them(commands, tmp_path):
    commands(squeue=(RUNNING, "", 0), scontrol=CONTROL, sinfo=(NODES, "", 0))
    job = found(tmp_path, nodes="n2,extra")[0].job
    assert [(n.name, n.address) for n in job.nodes] == [("n2", "10.0.0.2"), ("extra", "")]
    assert job.attempt.restart == 2 and job.log == "/w/train-4711-gpu1.out"

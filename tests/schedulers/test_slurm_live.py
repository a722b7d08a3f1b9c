"""A real Slurm whose nodes are reached by real sshds at addresses that are not their names."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_lab
from slurm_lab import NODES, RANK, Lab

from triage import investigate
from triage.errors import SchedulerSilent, UnknownJob, UsageError
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.inputs import find_job, options


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if why := slurm_lab.why_not():
        pytest.skip(why)
    lab = Lab(tmp_path_factory.mktemp("slurm"))
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()


@pytest.fixture(autouse=True)
def operator(lab, monkeypatch, tmp_path):
    """The operator of the lab: his ssh_config says the port, Slurm says the addresses. No job is left to the next test."""
    for name in [name for name in os.environ if name.startswith(("TRIAGE_", "SLURM"))]:
        if name != "TRIAGE_NO_SKIPS":
            monkeypatch.delenv(name)
    settings = {"STATE_DIR": tmp_path / "state", "SSH_CONFIG": lab.folder / "ssh" / "config", "USER": "root",
                "KEY": lab.folder / "ssh" / "id", "KNOWN_HOSTS": lab.folder / "ssh" / "known_hosts"}  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"TRIAGE_{name}", str(value))
    monkeypatch.setenv("SLURM_CONF", str(lab.conf))
    yield
    lab.run("scancel", "-u", "root")
    lab.until(lambda: not lab.words("squeue", "-h"), "no job is left")


def found(job, nodes=None):
    heard = []
    return find_job(job, nodes, {}, warn=heard.append), heard


def training(lab, *more, nodes=4):
    job = lab.submit(f"srun {RANK}", f"-N{nodes}", f"-n{nodes}", "--gres=gpu:8", "--time=60", *more)
    lab.wait_for(job, "RUNNING")
    return job


def live(job, nodes=None, looks=1):
    it, heard = found(job, nodes)
    return investigate.live(
        it.job, options("frozen-job", it, poke=False, run_s=30.0, looks=looks, say=heard.append)
    ), heard


def ranks_of(result):
    case = result.case
    return {
        rank: row.node
        for rank, row in rank_table(Evidence(case.job, case.samples, case.observed, {})).rows.items()
        if row.alive
    }


def until_ranks(lab, count=4):
    lab.until(
        lambda: sum(len(lab.pids(node, "-c import time")) > 0 for node in NODES) >= count, f"{count} nodes have ranks"
    )


# ---------------------------------------------------------------- jobs in all their states


def test_a_running_job_with_its_nodes_addresses_gpus_times_and_output_file(lab):
    job = training(lab, "--job-name=a train", "-o", "%x-%j-%u.log")
    it, heard = found(job)
    told = it.job
    assert (told.id, told.scheduler, told.cluster, told.state, told.user) == (job, "slurm", "lab", "running", "root")
    assert [(n.name, n.address, n.state, n.gpus) for n in told.nodes] == [
        (n, lab.addresses[n], "mixed", 8) for n in NODES
    ]
    assert told.attempt.restart == 0 and abs(told.attempt.started - time.time()) < 60
    assert abs(told.deadline - told.attempt.started - 3600) < 1
    assert (
        told.workdir == str(lab.folder)
        and told.log == f"{lab.folder}/a train-{job}-root.log"
        and Path(told.log).exists()
    )
    assert dict(told.match) == {"SLURM_JOB_ID": job} and heard == []


def test_the_ranks_of_a_running_job_are_found_on_its_nodes_through_their_environment(lab):
    job = training(lab)
    other = lab.submit(f"srun {RANK}", "-N4", "-n4")  # whose ranks are on the same nodes, and are not its own
    lab.wait_for(other, "RUNNING")
    until_ranks(lab)
    result, _ = live(job)
    assert ranks_of(result) == dict(enumerate(NODES))
    assert {s.node for s in result.case.samples if s.probe == "contact" and s.status == "ok"} == set(NODES)
    told = [r for s in result.case.samples if s.probe == "ranks" for r in s.data["ranks"]]
    assert job in {r["env"]["SLURM_JOB_ID"] for r in told}
    assert result.report.job["scheduler"] == "slurm" and result.report.job["cluster"] == "lab"


def test_a_step_is_asked_for_by_its_nodes_and_its_own_ranks(lab):
    job = lab.submit(f"srun -N2 -n2 -w n2,n3 {RANK} & sleep 1; srun --overlap -N4 -n4 {RANK} & wait", "-N4", "-n8")
    lab.until(lambda: {f"{job}.0", f"{job}.1"} <= set(lab.words("squeue", "-h", "-s", "-o", "%i")), "both steps run")
    assert [n.name for n in found(f"{job}.0")[0].job.nodes] == ["n2", "n3"]
    assert [n.name for n in found(f"{job}.batch")[0].job.nodes] == ["n1"]
    assert dict(found(f"{job}.1")[0].job.match) == {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "1"}
    with pytest.raises(UnknownJob, match=f"job {job} has no step 9 now"):
        found(f"{job}.9")
    lab.until(lambda: lab.pids("n2", "-c import time"), "its ranks are there")
    assert ranks_of(live(f"{job}.0")[0]) == {0: "n2", 1: "n3"}


def test_a_pending_job_has_no_nodes_and_is_no_failure(lab):
    job = lab.submit("sleep 1", "--begin=now+1hour")
    done = triage("frozen-job", job, "--output", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["state"] == "pending" and report["culprits"] == []
    assert f"job {job} waits: BeginTime" in done.stderr


def test_a_job_that_ended_is_told_to_have_ended_and_accuses_nobody(lab):
    job = lab.submit("exit 3", "-N2")
    lab.wait_for(job, "FAILED")
    it, heard = found(job)
    assert (it.job.state, [n.name for n in it.job.nodes]) == ("ended", ["n1", "n2"])
    assert it.job.attempt.ended >= it.job.attempt.started and it.job.deadline is None
    assert heard == [f"job {job} has ended: FAILED (NonZeroExitCode)"]
    report = live(job)[0].report
    assert (report.state, report.exit_code, report.culprits) == ("ended", 0, ())


def test_a_job_that_nobody_knows_is_unknown(lab):
    done = triage("frozen-job", "999999")
    assert (
        done.returncode == 20 and "slurmctld knows no job 999999" in done.stderr and len(done.stderr.splitlines()) == 1
    )


def test_an_array_is_asked_for_by_task_unless_one_runs(lab):
    job = lab.submit("sleep 600", "--array=0-2%2", "-N1")
    lab.until(lambda: lab.state(job).count("RUNNING") == 2, "two tasks run")
    with pytest.raises(
        UsageError, match=f"job {job} is an array of which 2 tasks run: {job}_[01], {job}_[01]; name one"
    ):
        found(job)
    task = found(f"{job}_1")[0].job
    raw = lab.words("squeue", "-h", "-j", f"{job}_1", "-o", "%A")[0]
    assert (task.id, task.state, dict(task.match)) == (f"{job}_1", "running", {"SLURM_JOB_ID": raw})
    assert task.log == f"{lab.folder}/slurm-{job}_1.out" and Path(task.log).exists()
    assert found(raw)[0].job.id in (f"{job}_1", f"{job}_0")
    assert found(f"{job}_2")[0].job.state == "pending"
    lab.run("scancel", f"{job}_0", f"{job}_2")
    lab.until(lambda: sorted(lab.words("squeue", "-h", "-j", job, "-o", "%T")) == ["RUNNING"], "one task is left")
    assert found(job)[0].job.id == f"{job}_1"


def test_a_heterogeneous_job_has_the_nodes_of_all_its_components_and_their_ranks(lab):
    job = lab.submit(f"srun --het-group=0,1 {RANK}", "-N1", "-n1", ":", "-N2", "-n2")
    lab.wait_for(job, "RUNNING", limit_s=60)
    whole, part = found(job)[0].job, found(f"{job}+1")[0].job
    assert (whole.id, len(whole.nodes), part.id, len(part.nodes)) == (job, 3, f"{job}+1", 2)
    assert set(part.nodes) < set(whole.nodes) and dict(part.match) == dict(whole.match) == {"SLURM_JOB_ID": job}
    with pytest.raises(UnknownJob, match=r"has no component \+5"):
        found(f"{job}+5")
    lab.until(lambda: sum(bool(lab.pids(n, "-c import time")) for n in NODES) >= 3, "its ranks are there")
    assert sorted(ranks_of(live(job)[0])) == [0, 1, 2]


OOM = f"""
if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
  srun bash -c 'if [ $SLURM_PROCID = 2 ]; then exec {sys.executable} -c "import time; x = bytearray(400 << 20); time.sleep(60)"; fi; sleep 60'
  exit 137
fi
srun {RANK}
"""


def test_a_job_that_slurm_killed_for_its_memory_and_requeued_is_its_second_attempt(lab):
    job = lab.submit(OOM, "-N4", "-n4", "--mem=100M", "--requeue", "--open-mode=append")
    lab.until(lambda: "Restarts=1" in lab.run("scontrol", "show", "job", job).stdout, "it is requeued", 60)
    lab.wait_for(job, "PENDING", "RUNNING")
    if lab.state(job) == ["PENDING"]:
        it, heard = found(job)
        if it.job.state == "pending":
            assert heard[0].startswith(f"job {job} was requeued (restart 1) and waits") and it.job.attempt.restart == 1
    lab.wait_for(job, "RUNNING", limit_s=60)
    until_ranks(lab)
    result, _ = live(job)
    assert ranks_of(result) == dict(enumerate(NODES))
    told = [r["env"]["SLURM_RESTART_COUNT"] for s in result.case.samples if s.probe == "ranks" for r in s.data["ranks"]]
    assert result.case.job.attempt.restart == 1 and told == ["1"] * 4
    assert result.report.job["restart"] == 1 and result.report.culprits == ()


# ---------------------------------------------------------------- daemons that stand still


def test_a_slurmd_that_stands_still_is_told_before_anybody_logs_in_and_accuses_nobody(lab):
    job = training(lab)
    until_ranks(lab)
    slurmd = lab.slurmd("n3")
    os.kill(slurmd, signal.SIGSTOP)
    try:
        lab.run("scontrol", "update", "nodename=n3", "state=NoResp")  # what its ping would find within a minute
        lab.until(lambda: "mixed*" in lab.words("sinfo", "-h", "-n", "n3", "-o", "%T"), "n3 does not respond")
        result, heard = live(job)
        marked = heard.index("Slurm marks n3 as mixed*: its daemon does not respond")
        assert marked < next(at for at, line in enumerate(heard) if "asking 4 nodes" in line)
        finding = next(f for f in result.report.findings if "marked by the scheduler" in f.text)
        assert finding.part == "n3" and "it answers us" in finding.text
        assert ranks_of(result)[2] == "n3" and result.report.culprits == ()
    finally:
        os.kill(slurmd, signal.SIGCONT)


def test_a_slurmctld_that_stands_still_is_21_and_offers_the_nodes_that_it_told_last(lab):
    job = training(lab)
    until_ranks(lab)
    found(job)
    daemon = lab.daemons["slurmctld"].pid
    os.kill(daemon, signal.SIGSTOP)
    try:
        began = time.monotonic()
        done = triage("frozen-job", job)
        assert done.returncode == 21 and time.monotonic() - began < 12
        assert (
            "slurmctld did not answer squeue within 8s; it had these nodes" in done.stderr
            and "--nodes 'n[1-4]'" in done.stderr
        )
        result, heard = live(job, nodes="n[1-4]")
        assert any("going on with --nodes" in line for line in heard)
        # By the addresses that Slurm told: no resolver knows these names.
        assert ranks_of(result) == dict(enumerate(NODES))
    finally:
        os.kill(daemon, signal.SIGCONT)
        lab.until(lambda: lab.run("scontrol", "ping").returncode == 0, "slurmctld answers again")


def test_a_slurmctld_that_is_dead_is_silence_and_no_unknown_job(lab):
    job = training(lab)
    daemon = lab.daemons.pop("slurmctld")
    daemon.terminate()
    daemon.wait(20)
    try:
        with pytest.raises(SchedulerSilent, match="slurmctld did not answer"):
            found(job)
    finally:
        lab.start_slurmctld()
    assert found(job)[0].job.state == "running"


def test_nothing_of_a_lab_outlives_a_test_that_is_killed(tmp_path):
    if why := slurm_lab.why_not():
        pytest.skip(why)
    code = f"""
import sys, time; sys.path.insert(0, {str(Path(slurm_lab.__file__).parent)!r})
from pathlib import Path; import slurm_lab
lab = slurm_lab.Lab(Path({str(tmp_path)!r})); lab.start(); lab.submit("srun sleep 600", "-N4", "-n4"); time.sleep(1)
print("up", flush=True); time.sleep(600)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    assert len(living(tmp_path)) >= 10
    child.kill()
    child.wait()
    deadline = time.monotonic() + 15
    while living(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert living(tmp_path) == []


def living(folder):
    """Processes that carry the folder in their command line or environment."""
    mark, found = str(folder).encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            data = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if mark in data and int(name) != os.getpid():
            found.append(int(name))
    return found


def triage(*words):
    return subprocess.run([sys.executable, "-m", "triage", *words], capture_output=True, text=True, timeout=90, cwd="/")

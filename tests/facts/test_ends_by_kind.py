"""How a rank ended has a leaf of its own: by the node's memory, the job's limit, a fault, a plain signal, an exception."""

from __future__ import annotations

import pytest
from written_attempts import LAST, ended, log, oom_world, value
from written_dumps import add_dumps, everyone, report
from written_evidence import NOW, World, exit_line
from written_logs import block, failed, steps
from written_xids import STALL, events_of, tell, verdict_of, xid

OPEN = ["0 1 all_reduce", "0 2 all_reduce open"]
NODE = "Out of memory: Killed process 1005 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"
CGROUP = (
    "Memory cgroup out of memory: Killed process 1005 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"
)
BARE = "Killed process 1005 (python3) total-vm:98304000kB, anon-rss:1kB, file-rss:1kB, shmem-rss:0kB"
CHOSEN = "{}: Kill process 1005 (python3) score 912 or sacrifice child"
LIMIT = "Task in /slurm/uid_1000/job_4711/step_0/task_3 killed as a result of limit of /slurm/uid_1000/job_4711"
CONTEXT = (
    "oom-kill:constraint={},nodemask=(null),cpuset=step_0,mems_allowed=0-1,oom_memcg=/slurm/job_4711,"
    "task_memcg=/slurm/job_4711/step_0,task=python3,pid=1005,uid=20001"
)
SEGFAULT = "python3[1005]: segfault at 7f2a00000018 ip 00007f2a1c2b3d4e sp 00007ffd2b3c4d50 error 4 in libnccl.so.2[7f2a1c200000+9c00000]"


def dead(*lines, code=None, dumps=True):
    """Rank 5 of gpu003 (process 1005) is gone; the kernel says these lines half a second into the stall."""
    w = World()
    w.dead = {5: "A"}
    hits = [] if code is None else [exit_line(1005, code, 1, STALL + 0.9)]
    w.processes().fabric(0).log(last_ago=100, hits=hits)
    tell(w, "gpu003", *((0.5 + i / 100, line) for i, line in enumerate(lines)))
    return add_dumps(w, {**everyone(OPEN), 5: None}) if dumps else w


def cause_of(w):
    told = report(w)
    return told.verdict.cause, [(c.node, c.rank) for c in told.culprits]


@pytest.mark.parametrize(
    ("lines", "code", "cause"),
    [
        ([NODE], -9, "oom_kill"),
        ([CGROUP], -9, "cgroup_oom"),
        ([CONTEXT.format("CONSTRAINT_MEMCG"), CGROUP], -9, "cgroup_oom"),
        ([CONTEXT.format("CONSTRAINT_CPUSET").replace("oom_memcg=/slurm/job_4711", "global_oom"), NODE], -9, "oom_kill"),
        ([CHOSEN.format("Out of memory"), BARE], -9, "oom_kill"),
        ([CHOSEN.format("Memory cgroup out of memory"), BARE], -9, "cgroup_oom"),
        ([LIMIT, BARE], -9, "cgroup_oom"),
        ([BARE], -9, "oom_kill"),
        ([], -9, "killed"),
        ([], -7, "killed"),
        ([], -11, "segfault"),
        ([SEGFAULT], -11, "segfault"),
    ],
)  # fmt: skip
def test_each_end_has_its_leaf_and_its_rank(lines, code, cause):
    assert cause_of(dead(*lines, code=code)) == (f"dead_rank/{cause}", [("gpu003", 5)])


def test_the_limit_that_was_hit_is_said():
    w = dead(CONTEXT.format("CONSTRAINT_MEMCG"), CGROUP, code=-9)
    assert "/slurm/job_4711" in w.fact("hard.cgroup_oom").text


def test_a_job_at_its_own_limit_has_its_node_not_drained():
    told = report(dead(CGROUP, code=-9))
    assert not told.mitigation["restart"]["exclude_nodes"] and any("drain" in words for words in told.do_not)


def test_the_kernels_line_and_the_launchers_are_two_roads_to_a_segmentation_fault():
    fact = dead(SEGFAULT, code=-11).fact("hard.segfault")
    assert {p.probe for p in fact.provenance} >= {"kernel", "joblog"} and "libnccl" in fact.text


def test_a_segmentation_fault_of_another_process_is_nobodys():
    told = dead(SEGFAULT.replace("1005", "999"), code=-9)
    assert told.fact("hard.segfault").value == 0 and cause_of(told)[0] == "dead_rank/killed"


def test_a_segmentation_fault_long_after_the_stall_began_is_no_cause():
    w = dead(code=None)
    tell(w, "gpu003", (60, SEGFAULT))
    assert w.fact("hard.segfault").value == 0


def test_a_rank_that_the_kernel_ended_for_broken_memory_of_the_host_is_killed_and_the_line_is_told():
    line = "Memory failure: 0x3a7f2b: Sending SIGBUS to python3:1005 due to hardware memory corruption"
    fact = dead(line, code=-7).fact("hard.killed")
    assert [p.rank for p in fact.parts] == [5] and "hardware memory corruption" in fact.text


# ---------------------------------------------------------------- attempts that are over


def test_of_an_ended_attempt_an_oom_at_the_jobs_limit_is_told_as_such():
    w = oom_world()
    w.samples = [s for s in w.samples if s.probe != "kernel"]
    event = events_of([(LAST + 0.5, CGROUP.replace("1005", "4005"))])
    w.add("kernel", "gpu003", "A", {"readable": True, "events": event})
    assert report(w).verdict.cause == "dead_rank/cgroup_oom"


def lost_world(code=-6, exit_after=3.0, pid="4005", words="GPU has fallen off the bus."):
    w = ended(World()).processes()
    at = LAST + 0.5 + exit_after
    log(w, steps(1, 50, LAST), [failed(at, code, 1, 4005), *block(at, "gpu003", 5, 1, code, 4005)])
    w.samples = [s for s in w.samples if s.probe != "kernel"]
    events = events_of([(LAST + 0.5, xid(79, words, pid=pid, name="python"))])
    return w.add(
        "kernel", "gpu003", "A", {"readable": True, "events": events, "nvidia": {"driver": "570.1", "gpus": []}}
    )


def test_of_an_ended_attempt_a_lost_gpu_needs_the_launchers_word_of_its_process():
    told = verdict_of(lost_world())
    assert (told.verdict.cause, [(c.node, c.rank) for c in told.culprits]) == ("dead_rank/gpu_lost", [("gpu003", 5)])
    assert any("2 sources agree: joblog, kernel" in why for why in told.verdict.why)


@pytest.mark.parametrize("change", [{"pid": "999"}, {"exit_after": 300.0}, {"exit_after": -30.0}])
def test_a_lost_gpu_that_the_launchers_line_does_not_meet_names_nobody(change):
    told = verdict_of(lost_world(**change))
    assert told.verdict.id == "inconclusive" and not told.culprits


def test_the_words_of_the_scheduler_come_before_a_search_for_the_guilty():
    assert value(lost_world(), "hard.preempted") == 0 and NOW > STALL

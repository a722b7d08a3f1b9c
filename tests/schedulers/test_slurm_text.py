"""What Slurm's commands print, read: ids, rows, times, GPUs, names of output files; as 22.05 prints them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triage.schedulers import _slurm_json as form
from triage.schedulers import _slurm_past as past
from triage.schedulers import _slurm_text as text

S = text.SEPARATOR
# Of a real 22.05.8 but for the GPUs, which are in the form of its manual.
SHOWN = (
    "JobId=8 ArrayJobId=2 ArrayTaskId=1 ArrayTaskThrottle=2 JobName={name} UserId=root(0) GroupId=root(0) MCS_label=N/A "
    "Priority=4294901758 Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=3 "
    "BatchFlag=1 Reboot=0 ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:00:04 TimeLimit=UNLIMITED TimeMin=N/A "
    "SubmitTime=2026-12-01T14:52:39 StartTime=2026-12-01T14:52:40 EndTime=Unknown Partition=debug AllocNode:Sid=localhost:11465 "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-4] BatchHost=n1 NumNodes=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:* "
    "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* JOB_GRES=gpu:h100:28   Nodes=n[1-3] CPU_IDs=2 Mem=0 "
    "GRES=gpu:h100:8(IDX:0-7)   Nodes=n4 CPU_IDs=2,4 Mem=0 GRES=gpu:h100:4(IDX:0,2-4),nic:1(IDX:0) MinCPUsNode=1 "
    "Features=(null) OverSubscribe=OK Network=(null) Command=(null) WorkDir=/train/a {comment}StdErr=/train/a/slurm-2_1.out "
    "StdIn=/dev/null StdOut=/train/a/slurm-2_1.out Power= "
)


def shown(name="arr", comment=""):
    return text.shown(SHOWN.format(name=name, comment=comment) + "\n")[8]


def row(
    id="2_1", raw="8", array="2", task="1", word="RUNNING", nodes="n[1-4]", end="NONE", limit="UNLIMITED", why="None"
):
    return S.join((id, raw, array, task, word, nodes, "n1", "4", "2026-12-01T14:52:40", end, limit, "root", why))


def one(**more):
    return text.rows(row(**more) + "\n")[0]


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("4711", (4711, "", None, None, "")),
        ("4711_3", (4711, "", 3, None, "")),
        ("4711+1", (4711, "", None, 1, "")),
        ("4711.0", (4711, "", None, None, "0")),
        ("4711_3.batch", (4711, "", 3, None, "batch")),
        ("lab:4711+0.12", (4711, "lab", None, 0, "12")),
        (" 4711 ", (4711, "", None, None, "")),
    ],
)
def test_ids_have_a_cluster_an_array_task_a_component_and_a_step(said, parts):
    found = text.parse_id(said)
    assert found and (found.job, found.cluster, found.task, found.part, found.step) == parts


@pytest.mark.parametrize("said", ["", "gpu001", "4711_", "4711_[1-4]", "4711+", "4711.", "4711.x", "-1", "4711;id", "--all", "٤٧١١", "1:4711", "4711\n4712", "9" * 11])  # fmt: skip
def test_what_is_no_id_of_slurms_is_none(said):
    assert text.parse_id(said) is None


def test_a_row_of_squeue():
    found = one()
    assert (found.id, found.raw, found.array, found.task, found.part, found.state) == (
        "2_1",
        8,
        2,
        "1",
        None,
        "running",
    )
    assert found.nodes == ("n1", "n2", "n3", "n4") and found.batch_host == "n1" and not found.limited
    assert found.started == 1796136760.0 and found.ended is None


@pytest.mark.parametrize("none", ["", "(null)", "None assigned", "n/a"])
def test_the_words_for_no_node_are_no_hosts(none):
    assert one(nodes=none).nodes == ()


def test_all_processes_of_a_heterogeneous_job_wear_its_first_components_id():
    rows = text.rows("\n".join((row("3+1", "4", "4", "N/A"), row("3+0", "3", "3", "N/A"))))
    assert [(r.part, r.raw, r.leader) for r in rows] == [(1, 4, 3), (0, 3, 3)]
    assert [r.leader for r in text.rows(row("3+1", "4", "4", "N/A"))] == [3]


def test_lines_that_are_no_rows_are_passed_over_and_the_first_of_an_id_counts():
    lines = [
        "CLUSTER: lab",
        "",
        "slurm_load_jobs error",
        row(),
        row(nodes="evil"),
        row(raw="-8"),
        row(id="x"),
        "\u2028".join((row(id="5"),)),
    ]
    assert [(r.id, len(r.nodes)) for r in text.rows("\n".join(lines))] == [("2_1", 4), ("5", 4)]


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("RUNNING", "running"),
        ("CONFIGURING", "pending"),
        ("REQUEUE_HOLD", "pending"),
        ("SUSPENDED", "suspended"),
        ("COMPLETING", "completing"),
        ("OUT_OF_MEMORY", "ended"),
        ("CANCELLED by 1000", "ended"),
        ("NODE_FAIL", "ended"),
        ("DANCING", "unknown"),
        ("", "unknown"),
    ],
)
def test_slurms_states_are_ours_and_a_new_one_is_unknown(word, ours):
    assert text.state_of(word) == ours


def test_what_scontrol_tells_beyond_squeue():
    found = shown()
    assert (found.restarts, found.stdout, found.workdir, found.name) == (3, "/train/a/slurm-2_1.out", "/train/a", "arr")
    assert found.gpus == {"n1": 8, "n2": 8, "n3": 8, "n4": 4}


@pytest.mark.parametrize(
    "forged", ["x StdOut=/etc/shadow Restarts=9 JobState=FAILED", "x WorkDir=/root StdOut=/tmp/y Restarts=0"]
)
def test_a_job_name_or_comment_that_forges_keys_makes_them_unknown_and_never_wrong(forged):
    for found in (shown(name=forged), shown(comment=f"Comment={forged} ")):
        assert found.restarts is None and found.stdout == "" and found.workdir in ("", "/train/a")


def test_gpus_that_a_name_or_comment_forges_do_not_count():
    forged = "x  Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:99(IDX:0) MinCPUsNode=1"
    for found in (shown(name=forged), shown(comment=f"Comment={forged} ")):
        assert found.gpus == {"n1": 8, "n2": 8, "n3": 8, "n4": 4}
    assert shown(name="x JOB_GRES=gpu:9  Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:9 MinCPUsNode=1").gpus is None


def test_a_comment_with_a_bar_and_an_equals_sign_costs_nothing():
    assert shown(comment="Comment=a b|c State=x ").stdout == "/train/a/slurm-2_1.out"


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:8(IDX:0-7)", 8), ("gpu:h100:4(IDX:0,2-4),nic:1(IDX:0)", 4), ("gpu:a:1(IDX:0),gpu:b:2(IDX:1-2)", 3), ("", 0),
     ("(null)", 0), ("mps:100,shard:4", 0), ("gres/gpu:h100=8", 8), ("gpu", 0)],
)  # fmt: skip
def test_gpus_of_a_node(gres, count):
    assert text.gpus_of(gres) == count


def test_a_cluster_that_does_not_count_gpus_tells_of_none():
    assert (
        text.shown("JobId=1 JobName=a UserId=root(0) JOB_GRES=(null)   Nodes=n1 CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1")[
            1
        ].gpus
        is None
    )


@pytest.mark.parametrize(
    ("template", "file"),
    [
        ("/w/%x-%j.out", "/w/train-8.out"),
        ("/w/%A_%a.out", "/w/2_1.out"),
        ("%u/%N.log", "/train/a/root/gpu001.log"),
        ("/w/%5j-%%.out", "/w/00008-%.out"),
        ("/w/plain", "/w/plain"),
        ("/w/\\%j", "/w/%j"),
        ("/dev/null", ""),
        ("", ""),
    ],
)
def test_the_name_of_the_output_file_is_expanded_as_slurm_does(template, file):
    made, why = text.expand_path(template, row=one(), name="train", hostname="gpu001.example.com", workdir="/train/a")
    assert (made, why) == (file, "")


@pytest.mark.parametrize("template", ["/w/%t.out", "/w/%j-%n", "/w/%J", "/w/%s"])
def test_a_file_for_each_task_is_not_the_jobs_and_it_says_so(template):
    made, why = text.expand_path(template, row=one(), name="x")
    assert made == "" and "nothing tells what %" in why


def test_nodes_have_an_address_a_state_with_its_mark_and_a_reason():
    lines = [
        S.join(("n1", "127.0.1.1", "vm", "mixed", "Unknown", "Unknown", "none")),
        S.join(("n3", "127.0.1.3", "vm", "DOWN*", "2026-12-01T14:57:30", "root", "Not responding")),
        S.join(("n3", "127.0.1.3", "vm", "idle", "Unknown", "Unknown", "none")),  # its row of another partition
        S.join(("n4", "fe80::4", "vm", "drained", "2026-12-01T14:59:15", "root", "bad | dimm\x1b[2J")),
        S.join(("n5", "-oProxyCommand=id", "vm", "idle", "", "", "")),
        S.join(("-x", "1.2.3.4", "vm", "idle", "", "", "")),
    ]
    found = text.machines("\n".join(lines))
    assert [(m.name, m.address, m.state) for m in found.values()] == [
        ("n1", "127.0.1.1", "mixed"),
        ("n3", "127.0.1.3", "down*"),
        ("n4", "fe80::4", "drained"),
        ("n5", "", "idle"),
    ]
    assert found["n3"].reason == "Not responding (root 2026-12-01T14:57:30Z)" and found["n1"].reason == ""
    assert found["n4"].reason == "bad | dimm [2J (root 2026-12-01T14:59:15Z)"


def test_the_steps_of_all_components_are_put_together():
    assert text.steps(f"9.0{S}n1\n9.batch{S}n1\n10.0{S}n[2-3]\nnonsense\n") == {
        "0": ["n1", "n2", "n3"],
        "batch": ["n1"],
    }


# ---------------------------------------------------------------- JSON

V22 = '{"meta": {"plugin": {"type": "openapi/v0.0.38"}}, "jobs": [{"job_id": 9, "restart_cnt": 1, "job_state": "RUNNING", "nodes": "n[1-2]", "standard_output": "/w/%x-%j.out", "name": "train", "gres_detail": ["gpu:h100:8(IDX:0-7)", "gpu:h100:4(IDX:0-3)"], "current_working_directory": "/w"}]}'  # fmt: skip
V40 = '{"jobs": [{"job_id": 9, "restart_cnt": {"set": true, "infinite": false, "number": 2}, "job_state": ["RUNNING", "COMPLETING"], "nodes": "n[1-2]", "job_resources": {"nodes": {"count": 2, "list": "x"}}, "standard_output": "/w/%j"}]}'  # fmt: skip
V43 = '{"jobs": [{"job_id": 9, "restart_cnt": {"set": false, "infinite": false, "number": 0}, "job_state": ["RUNNING"], "nodes": "n1", "standard_output": "/w/%j", "stdout_expanded": "/w/9"}]}'  # fmt: skip


def test_json_of_three_versions():
    old, mid, new = (form.extras(document)[9] for document in (V22, V40, V43))
    assert (old.restarts, old.state, old.nodes, old.gpus) == (1, "running", ("n1", "n2"), {"n1": 8, "n2": 4})
    assert (old.stdout, old.expanded, old.name, old.workdir) == ("/w/%x-%j.out", False, "train", "/w")
    assert (mid.restarts, mid.state, mid.nodes, mid.gpus) == (2, "completing", ("n1", "n2"), None)
    assert (new.restarts, new.stdout, new.expanded) == (None, "/w/9", True)


@pytest.mark.parametrize(
    "document", ["", "[]", "{}", '{"jobs": {}}', '{"jobs": [1, null, {"job_id": true}]}', "[" * 50_000]
)
def test_json_that_is_none_tells_nothing(document):
    assert form.extras(document) == {}


# ---------------------------------------------------------------- sacct


def test_accountings_rows_and_the_words_for_none():
    fields = past.PAST
    line = S.join(
        (
            "4711",
            "4711",
            "CANCELLED by 0",
            "None assigned",
            "Unknown",
            "2026-12-01T01:10:00",
            "ann",
            "None",
            "/home/ann",
        )
    )
    step = S.join(("4711.0", "4711.0", "COMPLETED", "n1", "Unknown", "Unknown", "", "", ""))
    (found,) = past.past(f"{line}\n{step}\n", fields)
    assert (found.state, found.nodes, found.started, found.ended) == ("ended", (), None, 1796087400.0)
    assert (found.workdir, found.restarts, found.reason) == ("/home/ann", None, "")


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_no_output_whatever_breaks_the_readers(noise):
    for reader in (
        text.rows,
        text.machines,
        text.shown,
        text.steps,
        form.extras,
        lambda t: list(past.past(t, past.PAST)),
    ):
        reader(noise)
        reader(f"{noise}{S}" * 15)
        reader(f"JobId=1 {noise}\n{row(why=noise)}\n")

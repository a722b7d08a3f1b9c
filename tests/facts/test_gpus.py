"""Heat is a correlate: told, and never a verdict."""

from importlib import resources

import pytest
import yaml
from written_activity import watch
from written_dumps import LATE, WAITS, add_dumps, everyone, named, report
from written_evidence import World


def gpu(index, temp_c=60, **more):
    return {"index": index, "temp_c": temp_c, "temp_slowdown_c": 87, **more}


def warm(world, node, *gpus):
    """This node's GPUs as told; those of the other nodes are cool."""
    for name in world.names:
        world.add("gpu", name, "B", {"gpus": list(gpus) if name == node else [gpu(0), gpu(1)]})
    return world


def hot(w):
    return [(part.node, part.gpu) for part in w.fact("gpus.hot").parts]


@pytest.mark.parametrize(
    ("one", "is_hot"),
    [
        (gpu(1, 78), False),  # warm, clocks full
        (gpu(1, 83), False),  # the highest temperature of an H100 at work
        (gpu(1, 84), True),
        (gpu(1, 91), True),
        (gpu(1, 84, temp_max_c=85), False),  # a B200: its own limit goes before what is usual
        (gpu(1, 86, temp_max_c=85), True),
        (gpu(1, 84, temp_slowdown_c=None), True),  # tells no limit of its own
        (gpu(1, 83, temp_slowdown_c=None), False),
        (gpu(1, 60, temp_slowdown_c=0, temp_max_c=0), False),  # a limit of 0 is none
        (gpu(1, None), False),
        (gpu(1, True), False),
        (gpu(1, float("nan")), False),
    ],
)
def test_a_gpu_is_hot_by_its_own_limits_or_above_what_is_usual(one, is_hot):
    assert hot(warm(World().processes(), "gpu002", gpu(0), one)) == ([("gpu002", 1)] if is_hot else [])


def test_no_gpu_told_is_unknown_and_not_cool():
    assert World().processes().fact("gpus.hot").reason == "no node told its GPUs"
    silent = World(nodes=1).processes().add("gpu", "gpu001", "B", {"gpus": [gpu(0, None)]})
    assert silent.fact("gpus.hot").reason == "no GPU told its temperature"


def test_the_part_says_how_hot_and_by_which_limit():
    (part,) = warm(World().processes(), "gpu002", gpu(1, 88)).fact("gpus.hot").parts
    assert part.kind == "gpu" and part.label() == "gpu 1 (gpu002)"
    assert part.why == "88 C; its clocks slow down from 87 C on"


@pytest.mark.parametrize(("visible", "told"), [("0", []), ("0,1", [1]), ("GPU-b", [1]), ("7", [1]), ("", [1])])
def test_a_hot_gpu_that_the_jobs_ranks_do_not_name_is_of_another_job(visible, told):
    w = World()
    for rank in (2, 3):
        for look in "AB":
            env = {**w.record(rank, look)["env"], "CUDA_VISIBLE_DEVICES": visible}
            w.change[(rank, look)] = {"env": env}
    warm(w.processes(), "gpu002", gpu(0, uuid="GPU-a"), gpu(1, 90, uuid="GPU-b"))
    assert [index for _, index in hot(w)] == told


def test_where_one_rank_of_a_node_names_no_gpu_all_of_the_node_may_be_the_jobs():
    w = World()
    for look in "AB":
        w.change[(2, look)] = {"env": {**w.record(2, look)["env"], "CUDA_VISIBLE_DEVICES": "0"}}
    assert hot(warm(w.processes(), "gpu002", gpu(0), gpu(1, 90))) == [("gpu002", 1)]


# ---------------------------------------------------------------- heat beside a fault


def slow_job():
    """Rank 5 (gpu003) computes at 88 % of the others' speed; steps are made."""
    elapsed = [0.5] * 30 + [0.568] * 20
    w = World(window=8.0).processes().fabric(1e6).log(step_s=0.568, steps=50, elapsed=elapsed, last_ago=0.2)
    return w.steps(lambda rank, i: 568.0 if rank == 5 else 500.0, lambda rank, i: 5.0, n=40)


def test_a_straggler_is_named_and_a_hot_healthy_gpu_on_another_node_is_not_accused():
    w = warm(slow_job(), "gpu001", gpu(0, 93), gpu(1))
    assert hot(w) == [("gpu001", 0)]
    told = report(w)
    assert told.verdict.cause == "straggler/compute"
    assert [(c.kind, c.rank, c.node) for c in told.culprits] == [("rank", 5, "gpu003")]
    assert told.mitigation["restart"]["exclude_nodes"] in ([], ["gpu003"])


def test_the_verdict_on_a_straggler_is_the_same_with_and_without_heat():
    cool, heated = report(slow_job()), report(warm(slow_job(), "gpu001", gpu(0, 93)))
    assert (cool.verdict, cool.culprits, cool.exit_code) == (heated.verdict, heated.culprits, heated.exit_code)


def test_a_hot_gpu_of_a_healthy_job_leaves_it_healthy():
    w = World(window=8.0).processes().fabric(1e6).log(step_s=0.5, steps=60, last_ago=0.2)
    w.steps(lambda rank, i: 500.0 + i % 3, lambda rank, i: 5.0, n=40)
    told = report(warm(w, "gpu002", gpu(0, 95)))
    assert told.verdict.cause == "healthy/advancing" and told.exit_code == 0 and not told.culprits


def test_a_hot_gpu_of_a_frozen_job_does_not_take_the_blame_from_the_rank_that_did_not_come():
    w = World().processes().log(last_ago=100).fabric(0)
    add_dumps(warm(w, "gpu001", gpu(0, 95)), everyone(WAITS, r5=LATE), lib="2.27.5")
    assert named(watch(w, everybody=True))[:2] == ("stuck_rank/host", [5])


@pytest.mark.parametrize("name", ["frozen-job", "slow-job"])
def test_no_question_and_no_verdict_rests_on_heat(name):
    book = yaml.safe_load((resources.files("triage.playbooks") / f"{name}.yaml").read_text())
    assert "gpus.hot" not in str(book["questions"])
    for leaf in book["verdicts"].values():
        assert "gpus.hot" not in (leaf.get("culprits"), leaf.get("involved"), leaf.get("victims"))

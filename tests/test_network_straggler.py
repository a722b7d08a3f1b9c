"""Slow jobs whose network is to blame, on written evidence: who is accused, how surely, and who never is."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "facts"))
from test_congestion import noisy
from test_wire import over_tcp, ring
from written_evidence import NOW, limits
from written_rails import EVEN, Fabric

from triage.conclude import load_playbooks
from triage.facts import registry
from triage.investigate import probe_names, shipped_playbooks
from triage.tree.walk import walk


def concluded(fabric, healthy_gpus=None, **facts):
    """The conclusion; `healthy_gpus` stands in for what the GPU facts would say (None: they were not read)."""
    texts = {name: body for name, body in shipped_playbooks().items() if name != "costs"}
    books = load_playbooks(texts, probe_names())
    computed = dict(registry.compute(fabric.made().evidence()))
    if healthy_gpus is not None:
        computed["wire.gpus_healthy"] = registry.known(healthy_gpus, text="by the test")
    computed.update(facts)
    return walk(books, computed, limits(), start="frozen-job", can_ask=False)


def nics(found):
    return [(part.kind, part.node, part.nic) for part in found.culprit_parts]


def degraded(**how):
    fabric = Fabric(**how)
    fabric.speed[("gpu004", 1)] = 100_000
    return fabric


def lossy(**how):
    fabric = Fabric(**how).grow("gpu002", 3, rx_icrc_encapsulated=800)
    return fabric.grow("gpu001", 3, local_ack_timeout_err=300).grow("gpu002", 3, packet_seq_err=200)


def pausing(**how):
    fabric = Fabric(**how)
    fabric.netdev_grew[("gpu003", 1)] = {"tx_prio3_pause": 90_000, "tx_prio3_pause_duration": 1_200_000}
    fabric.netdev_grew[("gpu001", 1)] = {"rx_prio3_pause": 80_000, "rx_prio3_pause_duration": 900_000}
    return fabric


def congested(**how):
    return noisy(**how).grow("gpu005", 2, rp_cnp_handled=40_000)


def incast(**how):
    fabric = noisy(**how).grow("gpu002", 1, np_cnp_sent=60_000)
    for node in fabric.node_names:
        if node != "gpu002":
            fabric.grow(node, 1, rp_cnp_handled=12_000)
    return fabric


def rail(**how):
    fabric = noisy(rails=8, **how)
    for node in fabric.node_names:
        fabric.grow(node, 6, rp_cnp_handled=20_000, np_cnp_sent=20_000)
    return fabric


def narrow(**how):
    return ring(over_tcp(**how), {}, {("gpu002", "gpu003"): 0.98, ("gpu003", "gpu004"): 0.45}, 0.01)


def narrow_way(**how):
    return ring(over_tcp(**how), {}, {("gpu002", "gpu003"): 0.98}, 0.01)


def lossy_tcp(**how):
    return ring(over_tcp(**how), {("gpu002", "gpu003"): 900, ("gpu003", "gpu004"): 700})


def lossy_way(**how):
    return ring(over_tcp(**how), {("gpu002", "gpu003"): 1270})


CASES = [
    (narrow, "straggler/narrow_link", [("nic", "gpu003", "rail0")]),
    (narrow_way, "straggler/narrow_path", [("link", None, None)]),
    (lossy_tcp, "straggler/lossy", [("nic", "gpu003", "rail0")]),
    (lossy_way, "straggler/lossy_path", [("link", None, None)]),
    (degraded, "straggler/degraded_link", [("nic", "gpu004", "mlx5_1")]),
    (lossy, "straggler/lossy", [("nic", "gpu002", "mlx5_3")]),
    (pausing, "straggler/slow_receiver", [("nic", "gpu003", "mlx5_1")]),
    (congested, "straggler/congestion", [("nic", "gpu005", "mlx5_2")]),
    (incast, "straggler/incast", [("fabric", None, None)]),
    (rail, "slow_everywhere/rail", []),
]


@pytest.mark.parametrize(("world", "cause", "accused"), CASES, ids=[c[0].__name__ for c in CASES])
def test_a_slow_job_whose_network_is_to_blame_gets_its_verdict(world, cause, accused):
    found = concluded(world(), healthy_gpus=True)
    assert (found.verdict.cause, nics(found)) == (cause, accused)
    if found.verdict.id == "straggler":
        assert found.verdict.kind == "network"


@pytest.mark.parametrize(("world", "cause", "accused"), CASES, ids=[c[0].__name__ for c in CASES])
def test_the_same_with_gpus_that_nobody_read_is_the_same_with_less_confidence_or_inconclusive(world, cause, accused):
    sure, blind = concluded(world(), healthy_gpus=True), concluded(world())
    assert blind.verdict.cause == cause or blind.verdict.id == "inconclusive"
    assert blind.verdict.score <= sure.verdict.score


@pytest.mark.parametrize(("world", "cause", "accused"), CASES[:-1], ids=[c[0].__name__ for c in CASES[:-1]])
def test_beside_a_gpu_that_is_slow_itself_the_network_is_not_accused(world, cause, accused):
    found = concluded(world(), healthy_gpus=False)
    assert found.verdict.cause == "slow_everywhere/alike" and not found.culprit_parts


@pytest.mark.parametrize(("world", "cause", "accused"), CASES, ids=[c[0].__name__ for c in CASES])
def test_in_a_job_of_normal_speed_it_is_a_finding_and_no_verdict(world, cause, accused):
    found = concluded(world(elapsed=EVEN), healthy_gpus=True)
    assert found.verdict.id == "healthy" and not found.culprit_parts


@pytest.mark.parametrize(("world", "cause", "accused"), CASES, ids=[c[0].__name__ for c in CASES])
def test_with_one_look_only_a_wrong_speed_is_left(world, cause, accused):
    fabric = world()
    fabric.one_look = True
    moves = registry.known(True, text="steps are made, by the test")
    found = concluded(fabric, healthy_gpus=True, **{"progress.advancing": moves})
    assert found.verdict.cause in ("slow_everywhere/alike", "straggler/degraded_link")
    if cause != "straggler/degraded_link":
        assert not found.culprit_parts


def test_a_slower_port_that_idles_holds_up_nobody():
    fabric = degraded()
    fabric.rate = 5e8  # 4 of 100 Gb/s
    found = concluded(fabric, healthy_gpus=True)
    assert found.verdict.cause == "slow_everywhere/alike" and not found.culprit_parts


def test_a_path_that_loses_packets_names_no_node():
    found = concluded(Fabric().grow("gpu001", 0, local_ack_timeout_err=400), healthy_gpus=True)
    assert found.verdict.cause == "straggler/lossy_path" and nics(found) == [("link", None, None)]


def test_one_sender_and_one_receiver_are_congestion_with_low_confidence():
    found = concluded(congested().grow("gpu001", 2, np_cnp_sent=40_000), healthy_gpus=True)
    assert found.verdict.cause == "straggler/congestion" and found.verdict.confidence == "low"


def test_on_a_rail_of_four_ports_congestion_is_said_with_little_confidence():
    found = concluded(congested(nodes=5), healthy_gpus=True)
    few = noisy(nodes=4).grow("gpu004", 2, rp_cnp_handled=40_000)
    low = concluded(few, healthy_gpus=True)
    assert low.verdict.cause == "straggler/congestion" and low.verdict.score < found.verdict.score


def test_a_compute_straggler_is_told_before_any_wire():
    fabric = congested()
    fabric.compute = lambda rank, i: 420.0 if rank == 3 else 300.0
    assert concluded(fabric, healthy_gpus=True).verdict.cause == "straggler/compute"


def test_a_frozen_job_never_has_a_congested_port():
    fabric = congested(elapsed=[0.5] * 200)
    fabric.rate, fabric.log = 0.0, False
    assert not registry.other(fabric.made().evidence(), "wire.congested").known


def gpu(index, clock=1700, **more):
    """A loaded GPU, as the gpu probe tells it."""

    def all_at(value):
        return [value] * 5

    return {
        "bdf": f"0000:{0x3B + index:02x}:00.0", "index": index, "name": "NVIDIA H100", "status": "ok", "loaded_share": 1.0,
        "n": 10, "loaded_n": 10, "sm_clock_loaded": all_at(clock), "sm_clock_mhz": all_at(clock), "power_w": all_at(500),
        "util_pct": all_at(100), "sm_pct": all_at(40), "max_sm_clock_mhz": 1980, "power_limit_w": 700, "reasons": {}, **more,
    }  # fmt: skip


def test_gpus_that_run_alike_open_the_way_to_the_network_and_one_that_is_held_back_closes_it():
    fabric = congested()
    for node in fabric.node_names:
        fabric.gpus[node] = [gpu(0), gpu(1)]
    found = concluded(fabric)
    assert (found.verdict.cause, found.verdict.score) == ("straggler/congestion", 0.75)
    fabric.gpus["gpu002"] = [gpu(0), gpu(1, clock=900, reasons={"hw_thermal": 1.0})]
    assert concluded(fabric).verdict.cause == "slow_everywhere/alike"


# ---------------------------------------------------------------- healthy in many ways


def variant(seed):
    """A healthy network in one of many guises: errors and flaps on ports that the job does not use, old totals, stuck
    counters, mixed cards, noise of every kind; slow or not for a reason of its own."""
    rng = random.Random(seed)
    rails = rng.choice([1, 2, 4, 8])
    spare = rng.choice([0, 1, 2])
    fabric = Fabric(
        nodes=rng.choice([2, 3, 4, 6, 9]), rails=rails + spare, layer=rng.choice(["Ethernet", "InfiniBand"]), seed=seed,
        elapsed=rng.choice([EVEN, [0.5] * 300 + [0.6] * 200]), hca=",".join(f"=mlx5_{i}"[i > 0 :] for i in range(rails)),
    )  # fmt: skip
    level = rng.choice([0, 30, 400, 9000])  # notices of congestion everywhere
    for node, at in fabric.all():
        wobble = rng.lognormvariate(0.0, 0.25)
        fabric.grow(
            node, at, np_cnp_sent=int(level * wobble), rp_cnp_handled=int(level * rng.lognormvariate(0.0, 0.25)),
            symbol_error=rng.randint(0, 500), out_of_sequence=rng.randint(0, 10**5), port_xmit_wait=rng.randint(0, 10**6),
            local_ack_timeout_err=rng.choice([0, 0, 0, 1, 2]), port_rcv_errors=rng.choice([0, 0, 1, 5]),
        )  # fmt: skip
        fabric.base[(node, at)] = {
            "link_downed": rng.choice([0, 3, 255]), "local_ack_timeout_err": rng.choice([0, 10**6, 2**32 - 1]),
            "port_rcv_errors": rng.choice([0, 60_000, 65_535]), "symbol_error": rng.choice([0, 65_535]),
        }  # fmt: skip
        fabric.netdev_grew[(node, at)] = {"rx_prio3_pause": rng.randint(0, 60), "tx_prio3_pause": rng.randint(0, 60)}
    for _ in range(rng.randint(1, 4)):  # and now ports that are none of the job's
        node = rng.choice(fabric.node_names)
        for at in range(rails, rails + spare):
            fabric.grow(node, at, link_downed=1, port_rcv_errors=9000, rx_icrc_encapsulated=900, rp_cnp_handled=90_000)
            fabric.speed[(node, at)] = 25_000
            fabric.state[(node, at)] = rng.random() < 0.5
    if rng.random() < 0.3:  # a reboot or a reload between the looks, or a node of other cards
        node = rng.choice(fabric.node_names)
        fabric.boot[(node, "B")] = "another"
    if rng.random() < 0.3:
        node = rng.choice(fabric.node_names)
        for at in range(rails + spare):
            fabric.speed[(node, at)], fabric.board[(node, at)] = 200_000, "MT_other"
    if rng.random() < 0.2:
        fabric.rate = rng.choice([0.0, 1e5])
    return fabric


@pytest.mark.parametrize("tens", range(20))
def test_a_healthy_network_in_any_guise_accuses_nobody(tens):
    for seed in range(tens * 10, tens * 10 + 10):
        found = concluded(variant(seed), healthy_gpus=True)
        assert not found.culprit_parts, (seed, found.verdict.cause, found.culprit_parts)
        assert found.verdict.id in ("healthy", "slow_everywhere", "inconclusive"), (seed, found.verdict.cause)


# ---------------------------------------------------------------- a port that NCCL itself gave up


def failed_over(ago=120.0, what="failed", **how):
    """The pace changed two minutes ago (written_rails.SLOW); NCCL gave up on a device of gpu002 then."""

    class Told(Fabric):
        def made(self):
            world = super().made()
            for index, sample in enumerate(world.samples):
                if sample.probe == "joblog":
                    hits = [
                        {"id": "nccl_port_failed", "at": NOW - ago, "last_at": NOW - ago, "dated": True, "count": 1,
                         "line_no": 900, "prefix": "", "text": "NET/IB: Device 0 marked as failed.",
                         "groups": {"host": "gpu002", "device": "0", "recovery": "Yes", "way": "send"}},
                    ]  # fmt: skip
                    if what != "failed":
                        hits.append({**hits[0], "id": "nccl_port_recovered", "line_no": 950, "at": NOW - 60,
                                     "last_at": NOW - 60, "groups": {"host": "gpu002", "device": "0", "what": what}})  # fmt: skip
                    world.samples[index] = replace(sample, data={**sample.data, "hits": hits})
            return world

    return Told(**how)


def test_a_port_that_nccl_gave_up_when_the_job_became_slower_is_the_reason():
    found = concluded(failed_over(), True)
    assert (found.verdict.cause, found.verdict.kind) == ("straggler/failed_over", "network")
    assert [part.node for part in found.culprit_parts] == ["gpu002"]


@pytest.mark.parametrize(
    "how",
    [{"ago": 1500.0}, {"what": "recovered"}, {"what": "succeeded"}],
    ids=["long before", "recovered", "succeeded"],
)
def test_a_port_given_up_long_before_or_taken_back_since_is_no_reason(how):
    assert concluded(failed_over(**how), True).verdict.cause != "straggler/failed_over"


def test_a_port_given_up_of_a_job_at_its_pace_is_a_finding():
    assert concluded(failed_over(elapsed=EVEN), True).verdict.id == "healthy"
    assert failed_over(elapsed=EVEN).fact("links.failover").value == 1


def test_sick_gpus_come_before_a_port_that_was_given_up():
    assert concluded(failed_over(), False).verdict.cause != "straggler/failed_over"

"""What the facts say of dumps, processes and looks together: stale dumps, silence, cycles that stand, names and reasons."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_dumps import CREATED, GROUPS, LATE, WAITS, WROTE, add_dumps, everyone, ranks_of, world_with
from written_evidence import NOW, World
from written_records import T0_NS, record

from triage.facts import registry
from triage.facts.evidence import Evidence
from triage.model import Job, Sample
from triage.readers.flight_records import read_folder

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "flight-recorder"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real dumps of ../shared/data are not here")

# ---------------------------------------------------------------- unknowns


def test_without_a_flight_record_everything_about_waits_is_unknown_with_the_reason():
    w = World().processes()
    for name in (
        "known_share",
        "members",
        "mismatch",
        "absent",
        "roots",
        "cycle",
        "all_joined",
        "victims",
        "timeout_at",
    ):
        found = w.fact(f"waits.{name}")
        assert not found.known
        assert found.reason == "no flight records were collected"


def test_ranks_that_answered_without_a_dump_give_their_reason():
    w = world_with({0: None, 1: None})
    assert w.fact("waits.roots").reason == "no rank has a flight record: no dump"
    assert w.fact("waits.known_share").value == 0.0


def test_a_dump_older_than_its_process_is_listed_and_not_compared():
    old = {"mtime": NOW - 90_000, "stale": True, "record": None, "why": "older than the process (by 86500 s)"}
    w = world_with(everyone(WAITS, r5=LATE), rank_5=old)
    assert w.fact("waits.stale").parts[0].rank == 5
    assert w.fact("waits.roots").known is False
    assert ranks_of(w.fact("waits.possible")) == [5]
    assert w.fact("waits.known_share").value == 0.875


def test_the_process_table_finds_a_stale_dump_that_the_probe_took_for_fresh():
    w = world_with(everyone(WAITS, r5=LATE), rank_5={"mtime": NOW - 4000})  # the process began at NOW - 3500
    assert "another attempt" in w.fact("waits.stale").parts[0].why
    assert w.fact("waits.roots").known is False


def test_a_file_from_before_the_others_entered_the_stalled_collective_does_not_make_its_rank_the_one_behind():
    # The dump of rank 5 lay there since an earlier look; the job went on for 100 s after it.
    old = {"source": "file", "poke": "no_reader", "mtime": NOW - 500}
    w = world_with(everyone(WAITS, r5=LATE), rank_5=old)
    assert "before other ranks entered" in w.fact("waits.stale").parts[0].why
    assert ranks_of(w.fact("waits.possible")) == [5]


def test_files_of_one_time_out_are_compared_even_if_they_are_old():
    w = world_with(everyone(WAITS, r5=LATE), poked=False)
    assert ranks_of(w.fact("waits.roots")) == [5]


def test_a_dump_of_another_world_size_is_of_another_job():
    w = world_with(everyone(WAITS))
    other = record(3, LATE, {"0": ("default_pg", [0, 1, 2, 3])})
    for sample in w.samples:
        if sample.probe == "flight_recorder":
            for row in sample.data["ranks"]:
                if row["rank"] == 3:
                    row["record"] = other
    assert ranks_of(w.fact("waits.stale")) == [3]
    assert w.fact("waits.roots").known is False


def test_two_nodes_that_tell_of_one_rank_are_settled_by_where_the_rank_runs():
    w = world_with(everyone(WAITS, r5=LATE))
    ghost = {
        "rank": 5,
        "pid": 1,
        "source": "file",
        "mtime": WROTE + 1,
        "stale": False,
        "record": record(5, WAITS, GROUPS),
    }
    w.add("flight_recorder", "gpu001", "C", {"ranks": [ghost]})
    assert ranks_of(w.fact("waits.roots")) == [5]


# ---------------------------------------------------------------- who


def test_a_rank_that_has_nothing_open_and_is_waited_for_is_stuck_on_its_host():
    w = world_with(everyone(WAITS, r5=LATE))
    roots = w.fact("waits.roots")
    assert (roots.value, ranks_of(roots)) == (1, [5])
    assert roots.parts[0].node == "gpu003"
    assert "all waits end at rank 5" in roots.text
    assert ranks_of(w.fact("waits.host_stuck")) == [5]
    assert w.fact("waits.device_stuck").value == 0
    assert ranks_of(w.fact("waits.absent")) == [5]
    assert ranks_of(w.fact("waits.victims")) == [0, 1, 2, 3, 4, 6, 7]
    assert w.fact("waits.members").value == 8
    assert w.fact("waits.known_share").value == 1.0
    assert w.fact("waits.all_joined").value is False
    assert [p.probe for p in roots.provenance] == ["flight_recorder"]
    assert [p.node for p in roots.provenance] == ["gpu003"]


def test_a_dead_rank_without_a_dump_is_the_root_and_a_silent_one_is_only_possible():
    w = World()
    w.dead[5] = "A"
    w.processes()
    add_dumps(w, {r: WAITS for r in range(8) if r != 5})
    assert ranks_of(w.fact("waits.roots")) == [5]
    assert "its process is gone" in w.fact("waits.roots").parts[0].why
    assert w.fact("waits.host_stuck").value == 0
    unseen = World()
    unseen.skip_nodes.add("gpu003")
    unseen.processes()
    add_dumps(unseen, {r: WAITS for r in range(8) if r not in (4, 5)})
    assert not unseen.fact("waits.roots").known
    assert "only ranks without a usable flight record" in unseen.fact("waits.roots").reason
    assert ranks_of(unseen.fact("waits.possible")) == [4, 5]


def test_a_later_answer_about_some_ranks_does_not_hide_the_earlier_one_about_the_others():
    w = world_with(everyone(WAITS, r5=LATE))
    add_dumps(w, {0: WAITS})
    assert ranks_of(w.fact("waits.roots")) == [5]


@pytest.mark.parametrize(("both", "named"), [(True, True), (False, False)])
def test_a_rank_in_d_state_is_a_root_only_if_both_looks_saw_it_there(both, named):
    w = World()
    w.change[5, "B"] = {"state": "D"}
    w.change[5, "A"] = {"state": "D" if both else "R"}
    w.processes()
    add_dumps(w, {r: WAITS for r in range(8) if r != 5})
    assert w.fact("waits.roots").known is named


def test_a_stopped_rank_with_an_old_file_is_a_root_and_its_old_file_is_not_read_as_its_position():
    w = World()
    w.change[5, "A"] = w.change[5, "B"] = {"state": "T"}
    w.processes()
    add_dumps(w, everyone(WAITS), rank_5={"source": "file", "mtime": NOW - 500, "poke": "skipped_state"})
    assert ranks_of(w.fact("waits.roots")) == [5]
    assert "stopped" in w.fact("waits.roots").parts[0].why


def test_several_roots_are_said_to_be_at_least_these():
    w = world_with(everyone(WAITS, r5=LATE, r2=LATE))
    assert w.fact("waits.roots").text == "the waits end at least at ranks 2, 5"


def test_device_stuck_is_said_with_the_unit_that_its_peers_have_finished():
    ahead = ["0 1 all_reduce", "0 2 all_reduce", "0 3 all_reduce open"]
    w = world_with(everyone(ahead, r6=["0 1 all_reduce", "0 2 all_reduce open", "0 3 all_reduce open"]))
    assert ranks_of(w.fact("waits.device_stuck")) == [6]
    assert w.fact("waits.device_stuck").parts[0].why.startswith("number 2 of default_pg {0-7} is open on it")


def test_nobody_waits_when_nothing_is_open():
    w = world_with(everyone(LATE))
    for name in ("absent", "roots", "cycle", "mismatch", "members", "victims"):
        assert w.fact(f"waits.{name}").value == 0
    assert w.fact("waits.all_joined").value is False
    assert w.fact("waits.absent").text == "no rank waits in a collective"
    assert not w.fact("waits.timeout_at").known


def test_all_joined_needs_every_member():
    w = world_with(everyone(WAITS))
    assert w.fact("waits.all_joined").value is True
    assert w.fact("waits.absent").value == 0
    w = world_with(dict.fromkeys(range(7), WAITS))
    assert w.fact("waits.all_joined").known is False
    assert w.fact("waits.absent").known is False


def test_a_mismatch_names_the_minority_and_tells_both_sides():
    w = world_with(everyone(WAITS, r3=["0 1 all_reduce", "0 2 all_reduce 9x4 open"]))
    found = w.fact("waits.mismatch")
    assert ranks_of(found) == [3]
    assert (
        "number 2 of default_pg {0-7}: ranks 0-2, 4-7 all_reduce 8x4 Float; rank 3 all_reduce 9x4 Float" in found.text
    )
    assert w.fact("waits.mismatch_tied").value is False
    assert 3 not in ranks_of(w.fact("waits.victims"))
    assert w.fact("waits.all_joined").value is False


def test_a_tie_names_both_sides_and_says_so():
    w = world_with({0: ["1 1 all_reduce 8x4 open"], 1: ["1 1 all_reduce 9x4 open"]})
    assert ranks_of(w.fact("waits.mismatch")) == [0, 1]
    assert w.fact("waits.mismatch_tied").value is True
    assert w.fact("waits.victims").value == 0


def test_the_nearest_time_out_is_created_plus_its_own_limit():
    w = world_with(everyone(WAITS, r5=LATE))
    assert w.fact("waits.timeout_at").value == pytest.approx(CREATED + 600, abs=1.0)


# ---------------------------------------------------------------- cycles that stand

NORMAL = ["# 1 all_reduce", "0 1 all_reduce", "# 2 all_reduce", "0 2 all_reduce open"]


def swapped():
    """Rank 5 enters the default group before its TP group; its partner 4 waits in TP."""
    programs = {r: [line.replace("#", str(r // 2 + 1)) for line in NORMAL] for r in range(8)}
    programs[4] = ["3 1 all_reduce", "0 1 all_reduce", "3 2 all_reduce open"]
    programs[5] = ["3 1 all_reduce", "0 1 all_reduce", "0 2 all_reduce open"]
    return programs


def test_a_cycle_that_was_there_in_look_a_stands_and_the_swapper_is_separated():
    w = world_with(swapped())
    assert ranks_of(w.fact("waits.cycle")) == [4, 5]
    assert ranks_of(w.fact("waits.swapper")) == [5]
    assert w.fact("waits.cycle_stands").value is True
    assert w.fact("waits.roots").value == 0
    assert ranks_of(w.fact("waits.victims")) == [0, 1, 2, 3, 6, 7]


def test_a_cycle_entered_after_look_a_is_not_proven():
    w = World().processes()
    add_dumps(w, swapped(), created=NOW - 2.0)
    assert w.fact("waits.cycle_stands").known is False
    assert "after the first look" in w.fact("waits.cycle_stands").reason


def test_a_cycle_with_a_stopped_member_is_no_deadlock():
    w = World()
    w.change[4, "A"] = w.change[4, "B"] = {"state": "T"}
    w.processes()
    add_dumps(w, swapped())
    assert w.fact("waits.cycle_stands").value is False


def test_no_cycle_does_not_stand():
    assert world_with(everyone(WAITS, r5=LATE)).fact("waits.cycle_stands").value is False


def folder_evidence(records):
    rows = [
        {"rank": r, "source": "file", "mtime": NOW, "stale": False, "why": "", "record": made}
        for r, made in records.items()
    ]
    job = Job("dumps", "files", (), state="unknown")
    return Evidence(job, [Sample("flight_recorder", "", "C", "ok", {"ranks": rows})], NOW)


def test_a_cycle_in_a_folder_stands_only_if_all_of_it_was_open_at_one_moment():
    def made(rank, lines, newest):
        one = record(rank, lines, {"0": ("default_pg", [0, 1]), "1": ("TP", [0, 1])})
        one["newest_s"] = newest
        return one

    first = made(0, ["0 1 all_reduce open"], T0_NS / 1e9 + 60)
    second = made(1, ["1 1 all_reduce open"], T0_NS / 1e9 + 60)
    stands = registry.other(folder_evidence({0: first, 1: second}), "waits.cycle_stands")
    assert stands.value is True
    early = {**second, "newest_s": T0_NS / 1e9 - 5}  # its last sign is from before the other entered
    doubt = registry.other(folder_evidence({0: first, 1: early}), "waits.cycle_stands")
    assert doubt.known is False and "one snapshot" in doubt.reason


# ---------------------------------------------------------------- real folders, as explain reads them


@needs_data
@pytest.mark.shared
@pytest.mark.parametrize(
    ("incident", "truth", "fact"),
    [
        ("gpu_error_1st", [12, 14], "device_stuck"),
        ("gpu_error_2nd", [9, 14], "device_stuck"),
        ("lock_gil_1st", [9, 14], "host_stuck"),
        ("lock_gil_2nd", [10, 15], "host_stuck"),
    ],
)
def test_a_folder_of_a_real_incident_gives_exactly_the_guilty_ranks_in_their_class(incident, truth, fact):
    folder = DATA / "nccl-16-ranks" / incident
    files = [(p.name, p.read_bytes(), p.stat().st_mtime) for p in sorted(folder.iterdir())]
    ev = Evidence(Job("x", "files", ()), [read_folder(files).sample], NOW)
    facts = {
        n: registry.other(ev, f"waits.{n}") for n in ("roots", "device_stuck", "host_stuck", "victims", "known_share")
    }
    assert ranks_of(facts["roots"]) == truth
    assert ranks_of(facts[fact]) == truth
    assert not set(ranks_of(facts["victims"])) & set(truth)
    assert facts["known_share"].value == 1.0
    assert facts["roots"].text.startswith("the waits end at least at ranks")


def test_every_fact_of_this_file_has_a_sentence_and_the_promised_parts():
    specs = {name: spec for name, spec in registry.catalogue().items() if name.startswith("waits.")}
    assert all(spec.says.endswith((".", "?")) or spec.says for spec in specs.values())
    for name in (
        "members",
        "mismatch",
        "absent",
        "roots",
        "cycle",
        "device_stuck",
        "host_stuck",
        "victims",
        "possible",
        "swapper",
    ):
        assert specs[f"waits.{name}"].parts == "rank"

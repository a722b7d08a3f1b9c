"""Processes that are not what they look like, from files in /proc to the named rank: real probes, real facts, the whole walk."""

from __future__ import annotations

import pytest
from site_in_folders import NOW, Site
from triage.probes import ranks
from written_dumps import report
from written_logs import block, failed, steps, stops

STALL = NOW - 100.0  # when the last step ended
WAITS = ["0 1 all_reduce", "0 2 all_reduce open"]


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def waiting(site, *without):
    """Everybody waits in the default group's second collective and has left a record of it."""
    for rank in range(8):
        if rank not in without:
            site.dump(rank, WAITS)
    return site


def test_without_any_trap_the_folders_show_a_job_whose_ranks_all_live(site):
    site.seen()
    assert site.ranks_of("ranks.expected") == list(range(8)) and site.world.fact("seen.procs").value is True
    assert site.world.fact("ranks.gone").value == 0 and site.world.fact("job.attempt_now").value is True


# ---------------------------------------------------------------- more processes than ranks


def test_orphaned_loader_workers_do_not_keep_a_killed_rank_alive(site):
    for number in range(4):
        site.worker(5, 7001 + number)
    site.worker(
        5, 7010, comm="python3", cmd="python3 -c from multiprocessing.resource_tracker import main;main(5)", flags=0
    )
    site.kill(5)
    waiting(site, 5).seen(*steps(1, 50, STALL), failed(STALL + 0.5, -9, 1, 1005))
    assert site.ranks_of("ranks.gone") == [5]
    assert len(site.world.evidence().latest("ranks")["gpu003"].data["orphans"]) == 5
    assert site.named() == ("dead_rank/killed", [5], "high")


def test_orphaned_workers_of_a_rank_without_a_launchers_line_are_no_life_either(site):
    site.worker(5, 7001)
    site.kill(5)
    waiting(site, 5).seen()
    assert site.named()[:2] == ("dead_rank/gone", [5])


def test_orphans_that_burn_cpu_and_sleep_in_t_or_d_say_nothing_of_their_rank(site):
    for number, state in enumerate("RTD"):
        site.worker(5, 7001 + number, state=state)
    site.kill(5)
    waiting(site, 5).seen()
    assert (site.ranks_of("ranks.gone"), site.ranks_of("ranks.stopped"), site.ranks_of("ranks.d_state")) == (
        [5],
        [],
        [],
    )


def test_one_rank_that_looks_like_nine_is_one(site):
    for number in range(8):
        site.worker(5, 7001 + number, parent=1005)
    site.seen()
    table = site.world.evidence().latest("ranks")["gpu003"].data
    assert [(r["rank"], r["pid"], len(r["children"])) for r in table["ranks"]] == [(4, 1004, 0), (5, 1005, 8)]
    assert site.world.fact("ranks.expected").value == 8 and site.world.fact("ranks.claimed_twice").value == 0


def test_the_state_of_a_worker_is_not_its_ranks(site):
    for number, state in enumerate("TDZ"):
        site.worker(5, 7001 + number, parent=1005, state=state)
    site.seen()
    assert [site.world.fact(f"ranks.{name}").value for name in ("gone", "stopped", "d_state")] == [0, 0, 0]


def test_when_a_rank_that_looked_like_nine_is_killed_one_rank_is_dead(site):
    for number in range(8):
        site.worker(5, 7001 + number, parent=1005)
    site.look("A")
    site.kill(5)  # its workers lose their parent
    site.look("B")
    assert site.ranks_of("ranks.gone") == [5]


# ---------------------------------------------------------------- processes that we may not see


class Hidden:
    """What a user who is not root sees of a node with hidepid: its own processes only, and the mount option."""

    def __init__(self, monkeypatch, site, *nodes):
        monkeypatch.setattr(ranks.os, "geteuid", lambda: 1000)
        monkeypatch.setattr(ranks, "own_line", lambda procs: set())
        self.real_ctx = site.ctx
        monkeypatch.setattr(site, "ctx", self.ctx)
        for name in nodes:
            (site.procs[name].root / "mounts").write_text("proc /proc proc rw,nosuid,hidepid=2 0 0\n")

    def ctx(self, name, **args):
        made = self.real_ctx(name, **args)
        made.real = True  # a listing that another user's processes are kept out of
        return made


@pytest.fixture
def quiet(monkeypatch):
    """Of the node itself nothing is read while a folder is taken for the real /proc."""
    from triage.probes import flight_recorder, kernel, reach

    monkeypatch.setattr(kernel, "collect", lambda ctx: {"readable": False, "events": []})
    monkeypatch.setattr(reach, "collect", lambda ctx: {"hidepid": ranks.hidepid_of(ctx.read(ctx.proc("mounts")))})
    monkeypatch.setattr(flight_recorder, "collect", lambda ctx: {"ranks": []})


@pytest.mark.parametrize("gone", [(4, 5), (5,)])
def test_ranks_that_hidepid_hides_are_not_dead(site, monkeypatch, quiet, gone):
    Hidden(monkeypatch, site, "gpu003")
    for rank in gone:
        site.kill(rank)  # not listed: for us that looks the same
    site.seen()
    assert site.world.evidence().latest("ranks")["gpu003"].data["sees_all"] is False
    assert site.world.fact("ranks.gone").value is None and site.named()[1] == []


def test_where_nothing_is_hidden_the_same_listing_is_a_death(site, monkeypatch, quiet):
    Hidden(monkeypatch, site)
    site.kill(5)
    site.seen()
    assert site.ranks_of("ranks.gone") == [5]


# ---------------------------------------------------------------- zombies, debuggers, suspended jobs


def test_a_rank_that_its_launcher_has_not_reaped_is_dead_and_named(site):
    site.state(5, "Z")  # its environ is empty now, and its number with it
    waiting(site, 5).seen(*steps(1, 50, STALL))
    data = site.world.evidence().latest("ranks")["gpu003"].data
    assert [z["pid"] for z in data["zombies"]] == [1005] and [r["rank"] for r in data["ranks"]] == [4]
    assert site.ranks_of("ranks.gone") == [5] and site.named()[:2] == ("dead_rank/gone", [5])


def test_a_zombie_among_a_ranks_workers_is_no_death(site):
    site.worker(5, 7001, parent=1005, state="Z")
    site.seen()
    assert site.world.fact("ranks.gone").value == 0


def test_a_rank_that_a_debugger_holds_is_stopped_and_its_debugger_is_named(site):
    site.traced(5)
    waiting(site, 5).seen()
    assert site.named()[:2] == ("stuck_rank/stopped", [5])
    assert "gdb" in site.world.fact("ranks.traced").parts[0].why
    assert site.world.fact("ranks.gone").value == 0


def test_a_victim_that_an_operator_debugs_since_the_stall_is_not_accused(site):
    site.kill(3)
    site.traced(5)
    waiting(site, 3, 5).seen(*steps(1, 50, STALL), failed(STALL + 0.5, -9, 1, 1003))
    assert site.named()[:2] == ("dead_rank/killed", [3])


def test_a_suspended_job_has_no_culprit(site):
    for rank in range(8):
        site.state(rank, "T")
    site.seen()
    assert site.world.fact("ranks.all_stopped").value is True
    assert site.named()[:2] == ("busy/suspended", [])


def test_one_stopped_rank_is_no_suspended_job(site):
    site.state(5, "T")
    waiting(site, 5).seen()
    assert site.named()[:2] == ("stuck_rank/stopped", [5])


# ---------------------------------------------------------------- a node that lost all its ranks


@pytest.fixture
def eight(tmp_path):
    """Four nodes of eight ranks; all of gpu003 (ranks 16 to 23) are gone."""
    site = Site(tmp_path, per_node=8)
    for rank in range(16, 24):
        site.kill(rank)
    return site


def test_of_eight_ranks_that_a_launcher_ended_the_one_that_went_first_is_the_culprit(eight):
    after = [stops(STALL + 0.6, 1000 + rank) for rank in range(16, 24) if rank != 19]
    eight.seen(
        *steps(1, 50, STALL), failed(STALL + 0.5, -9, 3, 1019), *after, *block(STALL + 1, "gpu003", 19, 3, -9, 1019)
    )
    assert len(eight.ranks_of("ranks.gone")) == 8
    assert eight.ranks_of("hard.killed") == [19] and eight.ranks_of("hard.first_exit") == [19]
    assert eight.ranks_of("ranks.gone_late") == [16, 17, 18, 20, 21, 22, 23]
    assert "the launcher of gpu003 ends all its ranks" in eight.world.fact("ranks.gone_late").parts[0].why
    assert eight.named()[:2] == ("dead_rank/killed", [19])


def test_of_eight_ranks_whose_ends_the_launcher_tells_one_by_one_the_first_that_is_no_aftermath_counts(eight):
    ends = [
        failed(STALL + 0.5 + 0.01 * i, code, i, 1016 + i) for i, code in enumerate((-15, -15, -6, -11, -9, -9, -15, -6))
    ]
    eight.seen(*steps(1, 50, STALL), *ends)
    assert eight.ranks_of("hard.killed") == [19] and eight.named()[1] == [19]


def test_where_a_launcher_was_told_to_stop_no_rank_of_its_is_a_culprit(eight):
    ends = [failed(STALL + 0.5 + 0.01 * i, -15, i, 1016 + i) for i in range(8)]
    eight.seen(
        *steps(1, 50, STALL), "W1130 00:50:00.000000 900 x.py:1] Received 15 death signal, shutting down workers", *ends
    )
    assert eight.world.fact("hard.events").value == 0
    assert eight.world.fact("hard.first_exit").value is None and "gpu003" in eight.world.fact("hard.first_exit").reason


def test_a_kernel_that_killed_one_of_them_names_that_one(eight):
    eight.killed_for_memory(21, STALL + 0.4)
    eight.seen(*steps(1, 50, STALL), failed(STALL + 0.5, -9, 5, 1021))
    assert eight.named()[:2] == ("dead_rank/oom_kill", [21])


# ---------------------------------------------------------------- stale dumps


def test_yesterdays_dumps_in_a_shared_cache_say_nothing_of_today(site):
    # Yesterday rank 3 was the one behind; today nobody has dumped yet.
    for rank in range(8):
        site.dump(rank, ["0 1 all_reduce"] if rank == 3 else WAITS, created=NOW - 86_500, written=NOW - 86_400)
    site.seen()
    assert site.world.fact("waits.fresh").value == 0 and site.named()[1] == []


def test_one_dump_of_yesterday_among_todays_does_not_put_its_rank_behind(site):
    waiting(site, 3)
    site.dump(3, ["0 1 all_reduce"], created=NOW - 86_500, written=NOW - 86_400)
    site.seen()
    assert site.ranks_of("waits.stale") == [3] and site.named()[1] == []


def test_a_dump_that_was_written_just_before_its_process_began_is_of_the_attempt_before(site):
    waiting(site, 3)
    site.dump(3, ["0 1 all_reduce"], created=NOW - 3600, written=NOW - 3510)
    site.seen()
    assert site.ranks_of("waits.stale") == [3] and site.named()[1] == []


def test_the_old_dump_of_a_rank_that_was_killed_does_not_hide_that_it_is_dead(site):
    site.kill(5)
    waiting(site, 5)
    site.dump(5, WAITS, created=NOW - 86_500, written=NOW - 86_400)
    site.seen(*steps(1, 50, STALL), failed(STALL + 0.5, -9, 1, 1005))
    assert site.named() == ("dead_rank/killed", [5], "high")


# ---------------------------------------------------------------- appended logs


def test_the_death_that_an_earlier_attempt_logged_is_not_laid_to_the_rank_of_that_pid_today(site):
    site.state(3, "T")  # today's fault
    waiting(site, 3)
    before = [*steps(1, 50, NOW - 5000), failed(NOW - 4999.5, -9, 1, 1005)]
    site.seen(*before, *steps(40, 50, STALL))
    assert site.named()[:2] == ("stuck_rank/stopped", [3])
    assert not [f for f in report(site.world).findings if "1005" in f.text]

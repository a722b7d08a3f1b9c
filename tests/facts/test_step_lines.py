"""Step times of the whole job: from the lines of any trainer, by their own word or by their dates, and never a rank's."""

from __future__ import annotations

import pytest
from triage.probes import joblog
from written_evidence import NOW, World
from written_logs import SIGNATURES, stamp

from triage.facts.steplines import Row, timed
from triage.model import Sample


def world(lines, **more) -> World:
    data = joblog.reduce_log("".join(line + "\n" for line in lines).encode(), SIGNATURES, now=NOW, offset_s=0.0)
    made = World(**more).processes()
    data.update(path="/job.log", exists=True, size=1000, mtime=NOW)
    made.samples.append(Sample("joblog", "", "B", "ok", data, at=NOW - 0.2, received=NOW - 0.2))
    return made


def megatron(number, at, ms):
    return f" [{stamp(at)}] iteration {number:8d}/  100000 | consumed samples: 32 | elapsed time per iteration (ms): {ms} |"


def titan(number, at):
    return f"[titan] {stamp(at).replace('.', ',')} - root - INFO - step: {number:2}  loss:  8.1  memory: 1.2GiB(1%)  tps: 9,080"


def throughput(number, at):
    return (
        f"[{stamp(at).replace('.', ',')}] [INFO] [timer.py:264:stop] epoch=0/micro_step={number}/global_step={number}, "
        "RunningAvgSamplesPerSec=22.1, CurrSamplesPerSec=22.3, MemAllocated=1.0GB"
    )


def two_speeds(line, every=1, before=1.76, after=2.0, slow=400, steps=600):
    """Lines of a job that has been slow for the last `slow` steps, one line every so many steps."""
    ends, at = [], NOW - 1.0 - after * slow - before * (steps - slow)
    for number in range(1, steps + 1):
        at += after if number > steps - slow else before
        ends.append((number, at))
    return [line(number, end) for number, end in ends if number % every == 0]


@pytest.mark.parametrize("line", [titan, throughput])
def test_a_trainer_that_prints_no_times_is_timed_by_the_dates_of_its_lines(line):
    made = world(two_speeds(line, every=10))
    assert made.fact("pace.t0_s").value == pytest.approx(1.76, rel=0.01)
    assert made.fact("pace.t1_s").value == pytest.approx(2.0, rel=0.01)
    assert made.fact("pace.source").value == "job log" and "dates of" in made.fact("pace.source").text
    assert made.fact("pace.onset").value == pytest.approx(NOW - 800, abs=40)
    assert made.fact("pace.slow").value is None


def test_a_log_interval_of_twenty_steps_does_not_shorten_the_time_that_was_slow():
    def line(number, at):
        return megatron(number, at, 2000.0 if at > NOW - 2201 else 1760.0)

    made = world(two_speeds(line, every=20, slow=1100, steps=1800))
    assert made.fact("pace.slow_for_s").value == pytest.approx(2200, abs=41)
    assert made.fact("pace.increase").value == pytest.approx(0.136, abs=0.002)


def test_dates_of_whole_seconds_are_averaged_until_a_second_matters_little():
    rows = [Row(n, float(int(1000 + 1.76 * n)), None) for n in range(200)]
    found = timed(rows)
    assert found and all(abs(step.seconds - 1.76) < 0.04 * 1.76 for step in found)
    assert found[-1].number == 199 and found[-1].end == rows[-1].at


def test_lines_that_follow_each_other_within_milliseconds_tell_no_time():
    assert timed([Row(n, 1000.0 + n * 0.0001, None) for n in range(1, 100)]) == ()


def test_a_line_without_a_date_among_dated_ones_stops_nothing():
    rows = [Row(n, None if n % 7 == 0 else 1000.5 + 2.0 * n, None) for n in range(100)]
    found = timed(rows)
    assert [step.seconds for step in found] == pytest.approx([2.0] * len(found)) and len(found) > 80


def test_a_restart_in_the_middle_leaves_the_steps_of_before_out():
    rows = [Row(n, 1000.5 + n, None) for n in range(50)] + [Row(n, 2000.5 + 3 * n, None) for n in range(20, 40)]
    found = timed(rows)
    assert found[0].number >= 20 and {round(step.seconds, 3) for step in found} == {3.0}


def test_the_line_after_a_missing_one_covers_both_steps():
    found = timed([Row(10, None, 1.0), Row(20, None, 1.0), Row(40, None, 1.0)])
    assert [step.covers for step in found] == [1, 10, 20]


def test_a_clock_that_is_set_back_makes_no_negative_time():
    found = timed([Row(n, 1000.5 + n - (3600 if n > 20 else 0), None) for n in range(40)])
    assert all(step.seconds > 0 for step in found)


def test_the_last_line_stays_the_last_step_even_where_dates_are_rough():
    """Whoever takes an older line for the last one calls a job frozen that moves."""
    made = world([titan(n, NOW - 100 + n).replace(",000 -", " -") for n in range(1, 100)])
    assert made.fact("progress.stall_age_s").value == pytest.approx(1.0, abs=1.0)


def test_step_records_tell_since_when_the_job_is_slow():
    made = World().processes()
    made.steps(lambda rank, i: 700.0, n=40)
    for sample in made.samples:
        for entry in sample.data.get("ranks", ()) if sample.probe == "steps" else ():
            total = [1760.0] * 20 + [2000.0] * 20
            ends = [NOW - 0.5 - sum(total[i + 1 :]) / 1000 for i in range(40)]
            entry["columns"]["total_ms"] = total
            entry["columns"]["t_start"] = [end - ms / 1000 for end, ms in zip(ends, total)]
    assert made.fact("pace.source").value == "step records"
    assert made.fact("pace.onset").value == pytest.approx(NOW - 0.5 - 19 * 2.0, abs=0.01)


@pytest.mark.parametrize(("unit", "known"), [("ms", True), ("s", True), ("assumed_ms", False)])
def test_plain_numbers_tell_the_job_s_time_where_their_unit_is_told_and_never_a_rank(unit, known):
    made = World(nodes=2, per_node=2).processes()
    for node, ranks in (("gpu001", (0, 1)), ("gpu002", (2, 3))):
        rows = [
            {"rank": rank, "kind": "numbers", "unit": unit, "last_step": None, "last_at": NOW - 0.5,
             "columns": {"total_ms": [500.0] * 30 + [600.0] * (30 + rank)}}
            for rank in ranks
        ]  # fmt: skip
        made.add("steps", node, "B", {"ranks": rows})
    assert made.fact("pace.t0_s").value == (0.5 if known else None)
    assert made.fact("pace.t1_s").value == (0.6 if known else None)
    assert made.fact("pace.source").value == ("plain step times" if known else None)
    assert made.fact("pace.slow").value is None


def block(number, at, forward, order=("forward-compute", "backward-compute", "all-grads-sync"), prefix=""):
    """An interval of Megatron with --timing-log-option all. forward: ms by rank; backward takes twice as long."""
    longest = max(forward)
    value = {
        "forward-compute": lambda r: forward[r],
        "backward-compute": lambda r: 2 * forward[r],
        "all-grads-sync": lambda r: 5.0 + 3 * (longest - forward[r]),
        "optimizer": lambda r: 20.0,
    }
    lines = [megatron(number, at, 2000.0), "times across ranks (ms):"]
    for name in order:
        lines += [f"  {name}:"] + [f"     rank {rank:2d}: {value[name](rank):.2f}" for rank in range(len(forward))]
    return [prefix + line for line in [*lines, "validating"]]


def uneven(count, slow=5, ratio=1.136, size=8, **more):
    return [
        line
        for i in range(count)
        for line in block(
            10 + 10 * i,
            NOW - 20 * (count - i),
            [210.0 * (ratio if r == slow else 1.0) + (r * 7 + i * 3) % 5 * 0.2 for r in range(size)],
            **more,
        )
    ]


@pytest.mark.parametrize("prefix", ["", "3: ", "[rank7]:", "[default7]:"])
def test_megatron_s_timers_of_all_ranks_name_the_slow_one(prefix):
    found = world(uneven(12, prefix=prefix)).fact("pace.slow")
    assert [part.rank for part in found.parts] == [5] and found.parts[0].node == "gpu003"
    assert "shortest collective time" in found.parts[0].why and not found.contradicted_by


def test_timers_of_healthy_ranks_name_nobody():
    assert world(uneven(12, ratio=1.0)).fact("pace.slow").value == 0


def test_a_timer_that_is_no_compute_names_nobody():
    assert world(uneven(12, order=("optimizer", "all-grads-sync"))).fact("pace.slow").value is None


def test_a_block_that_the_end_of_the_log_cuts_is_left_out():
    lines = uneven(12)
    whole = world(lines).samples[-1].data["timers"]
    cut = world(lines[:-12]).samples[-1].data["timers"]  # in the middle of the last block's second timer
    assert len(whole["step"]) == 12 and cut["step"] == whole["step"][:-1]


def test_timers_of_before_a_restart_do_not_count():
    lines = uneven(12, slow=5) + [f"{line}" for line in uneven(3, slow=2)]
    told = world(lines).samples[-1].data["timers"]
    assert told["step"] == [10, 20, 30]


def test_the_minmax_form_of_the_timers_has_no_ranks_and_tells_none():
    lines = uneven(12)
    lines = [line.replace("times across", "(min, max) time across") for line in lines]
    assert world(lines).samples[-1].data["timers"]["step"] == []


def test_a_job_of_thousands_of_ranks_is_told_within_bounds():
    told = world(uneven(30, size=4096), nodes=1024, per_node=4).samples[-1].data["timers"]
    cells = sum(len(column) for part in told.values() if isinstance(part, dict) for column in part.values())
    assert 0 < cells <= 30000


def test_the_records_of_ranks_are_believed_before_the_log():
    made = world(uneven(12))
    made.steps(lambda rank, i: 568.0 if rank == 2 else 500.0, lambda rank, i: 5.0)
    assert [part.rank for part in made.fact("pace.slow").parts] == [2]

"""The report for a person: what stands first and last, what fits, what a hostile node cannot do to a terminal."""

from __future__ import annotations

import re
import subprocess
import unicodedata
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_report import COSTS, report, request

from triage.cost.plans import plan
from triage.cost.profile import load_profile
from triage.errors import UsageError
from triage.model import (
    Alternative,
    Command,
    Culprit,
    Deadline,
    EvidenceLine,
    Finding,
    Moment,
    Report,
    RuledOut,
    Unknown,
    Verdict,
)
from triage.render import get, renderers, text
from triage.render.clean import clean, clean_command
from triage.render.layout import duration, ranges, width_of, wrap, wrap_shell

SGR = re.compile(r"\x1b\[[0-9;]*m")


def lines(found: Report, **options: bool | int) -> list[str]:
    return text.render(found, **{"color": False, **options}).splitlines()  # type: ignore[arg-type]


def test_the_first_three_lines_are_verdict_step_and_deadline_and_the_last_is_the_step_again() -> None:
    told = lines(report())
    assert told[0] == "VERDICT    rank 5 (gpu003) is dead. Confidence high."
    assert told[1] == "DO THIS    S4: restart now without gpu003, from the last checkpoint."
    assert told[2] == "DEADLINE   collective time-out in 2m (01:24:00Z), from log"
    assert told[-1] == told[1]


def test_the_culprit_is_named_where_the_title_does_not_name_it() -> None:
    found = replace(report(), verdict=replace(report().verdict, title="A rank was killed"))
    assert lines(found)[0] == "VERDICT    A rank was killed: rank 5 (gpu003). Confidence high."


def test_a_long_title_is_cut_and_never_the_confidence() -> None:
    found = replace(report(), verdict=replace(report().verdict, title="It " + "went wrong " * 40))
    assert lines(found)[0].endswith("...: rank 5 (gpu003). Confidence high.")


def test_members_of_a_cycle_are_involved_and_not_culprits() -> None:
    both = tuple(Culprit("rank", "involved", node=f"gpu00{r}", rank=r) for r in (3, 4))
    told = lines(replace(report(), culprits=both, verdict=replace(report().verdict, title="Two wait for each other")))
    assert "involved: ranks 3-4 (gpu[003-004])" in told[0]


def test_the_nearest_deadline_is_the_next_one_and_not_one_that_has_passed() -> None:
    found = replace(
        report(),
        deadlines=(
            Deadline("wall time", "2026-11-29T03:00:00Z", 5880.0, "scheduler"),
            Deadline("heartbeat", "2026-11-29T01:20:00Z", -120.0, "log"),
            Deadline("collective time-out", None, 300.0, "log"),
            Deadline("slurmd", None, None, "default"),
        ),
    )
    assert lines(found)[2] == "DEADLINE   collective time-out in 5m, from log"


def test_a_deadline_that_has_passed_is_said_so() -> None:
    found = replace(report(), deadlines=(Deadline("heartbeat", "2026-11-29T01:20:00Z", -120.0, "log"),))
    assert lines(found)[2] == "DEADLINE   heartbeat passed 2m ago (01:20:00Z), from log"


def test_equal_evidence_of_128_nodes_is_one_line_with_a_folded_list() -> None:
    told = "\n".join(lines(report(128)))
    assert told.count("waits in all_reduce 812 (gpu[001-128], ranks)") == 1
    assert "flap: nic mlx5_1 of gpu[001-128]: flapped once" in told
    assert "ranks 0-4,6-255 (gpu[001-128]): they wait" in told
    assert len(told.splitlines()) < 75


def test_victims_are_named_as_victims() -> None:
    assert "they wait for others and are not the cause." in " ".join(" ".join(lines(report())).split())


def test_what_speaks_against_is_not_crowded_out() -> None:
    many = tuple(EvidenceLine("f", f"reason {i}", "for") for i in range(20))
    against = EvidenceLine("g", "RAS says OK", "against", probe="ras")
    told = "\n".join(lines(replace(report(), evidence=(*many, against))))
    assert "but: RAS says OK (ras)" in told
    assert told.count("- reason ") == 4


def test_the_sections_stand_in_the_order_in_which_they_are_read() -> None:
    told = text.render(report(), color=False, explain=True)
    names = [
        "VERDICT", "DO THIS", "DEADLINE", "JOB", "WHY", "RULED OUT", "MAYBE", "UNKNOWN", "VICTIMS", "FINDINGS", "COST",
        "OPTIONS", "FLIPS", "COMMANDS", "DO NOT", "TIMELINE", "WALK", "TOOK", "CASE",
    ]  # fmt: skip
    places = [re.search(rf"^{name}\b", told, re.M) for name in names]
    assert all(places)
    starts = [place.start() for place in places if place]
    assert starts == sorted(starts)


def test_the_walk_is_shown_on_request_only() -> None:
    assert "WALK" not in text.render(report(), color=False)
    told = text.render(report(), color=False, explain=True)
    assert "frozen-job:pulse: Does it make progress? NO -> hard" in told
    assert "saw b = 1" in told


def test_colour_adds_nothing_but_colour() -> None:
    plain, coloured = text.render(report(), color=False), text.render(report(), color=True)
    assert SGR.search(coloured) and not SGR.search(plain)
    assert SGR.sub("", coloured) == plain


def test_the_same_report_is_the_same_bytes() -> None:
    assert text.render(report(), color=True, explain=True) == text.render(report(), color=True, explain=True)


def test_a_report_with_nothing_in_it_is_still_a_page() -> None:
    empty = replace(
        report(),
        case=None, job={}, culprits=(), victims=(), evidence=(), findings=(), ruled_out=(), alternatives=(), unknown=(),
        walk=(), timeline=(), deadlines=(), mitigation={}, commands=(), do_not=(), took_s={},
        verdict=Verdict("inconclusive", None, "inconclusive", "", "none", "none", 0.0),
    )  # fmt: skip
    told = lines(empty, explain=True)
    assert told[0] == "VERDICT    inconclusive. Confidence none."
    assert told[2] == "DEADLINE   none known"
    assert told[-1].startswith("DO THIS")


@pytest.mark.parametrize("verdict", ["straggler", "link_flap", "deadlock", "inconclusive", "healthy"])
def test_every_kind_of_plan_can_be_read(verdict: str) -> None:
    asked = {
        "straggler": request(verdict_id=verdict, fail="slow", mitigate="price", t0_s=1.0, t1_s=1.136, state="slow"),
        "link_flap": request(verdict_id=verdict, mitigate="price"),
        "deadlock": request(verdict_id=verdict, mitigate="fix_then_restart", fix_first="Mend the order."),
        "inconclusive": request(verdict_id=verdict, mitigate="wait", confidence="none"),
        "healthy": request(verdict_id=verdict, mitigate="none", fail="none", state="running"),
    }[verdict]
    told = lines(replace(report(), mitigation=plan(asked, load_profile(COSTS))))
    assert all(width_of(line) <= 80 for line in told)
    assert told[1].startswith("DO THIS    S")
    if verdict == "deadlock":
        assert "FIX FIRST  Mend the order." in told


# ---------------------------------------------------------------- hostile strings

awkward = st.text(
    alphabet=st.characters() | st.sampled_from("\x1b[]\x07\x9b\x85\u202e\u200b\u0301\n\r\t'\"\\$` #字😀"), max_size=120
) | st.text(alphabet="x字'\" \\", min_size=60, max_size=400)
PAINT = (
    "\x1b[2J\x1b[31mowned\x1b[0m",
    "a\nVERDICT    healthy",
    "gpu\u202e300",
    "\x9b2J",
    "\x1b]0;title\x07x",
    "z" * 900,
)


def hostile(s: str, number: float) -> Report:
    """A report where every string that a node can influence is `s`."""
    culprit = Culprit("rank", "culprit", node=s, rank=1, name=s)
    others = tuple(Culprit(kind, "involved", node=s, gpu=1, nic=s, name=s) for kind in ("nic", "gpu", "link", "node"))
    return replace(
        report(),
        case=s,
        job={"id": s, "scheduler": s, "cluster": s, "nodes": [s, "gpu001"], "ranks": 8, "restart": s},
        observed=s,
        verdict=Verdict(s, s, s, s, "stop", "high", 0.9, (s, s)),
        culprits=(culprit, *others),
        victims=(culprit, *others),
        evidence=(EvidenceLine(s, s, "for", s, 1, s, s, number), EvidenceLine(s, s, "against", s, 1, s)),
        findings=(Finding(s, s, s, s), Finding(s, s + "2", s, s)),
        ruled_out=(RuledOut(s, s, s),),
        alternatives=(Alternative(s, s, 0.1, s),),
        unknown=(Unknown(s, s, s, s), Unknown(s, s)),
        timeline=(Moment(s, s, number, s, 1, s),),
        deadlines=(Deadline(s, s, number, s),),
        commands=(Command(s, s, s, s),),
        do_not=(s,),
        mitigation=plan(request(fix_first=s, mitigate="fix_then_restart"), load_profile(COSTS)),
        took_s={s: 1.0},
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(awkward, st.floats(-1e6, 1e6), st.sampled_from([40, 60, 80, 100]))
def test_no_string_of_a_node_breaks_the_page(s: str, number: float, width: int) -> None:
    told = text.render(hostile(s, number), color=False, width=width, explain=True)
    for line in told.split("\n"):
        assert width_of(line) <= width, line
        assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in line), line
    assert told.startswith("VERDICT")
    assert told.count("\nVERDICT") == 1  # its own repetition at the end; no string forges another


@pytest.mark.parametrize("s", PAINT)
def test_a_node_cannot_paint_on_the_terminal(s: str) -> None:
    told = text.render(hostile(s, 1.0), color=False, explain=True)
    assert "\x1b" not in told and "\x9b" not in told and "\u202e" not in told
    assert all(width_of(line) <= 80 for line in told.splitlines())
    assert not any(line.startswith("VERDICT    healthy") for line in told.splitlines())


def test_clean_takes_escape_sequences_as_a_whole_and_keeps_words() -> None:
    assert clean("\x1b[31mred\x1b[0m and\tblue\n") == "red and blue"
    assert clean("Größe 字") == "Größe 字"
    assert clean("x" * 500, 10) == "xxxxxxx..."
    assert clean(None) == "None"


def test_a_command_that_is_too_long_is_not_cut_into_another_command() -> None:
    assert clean_command("rm -rf /tmp/" + "x" * 5000).startswith("#")


# ---------------------------------------------------------------- shell lines that wrap

words = st.lists(
    st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=150),
    min_size=1,
    max_size=6,
)


def shell_words(command: str) -> list[str]:
    script = f'show() {{ printf "%s\\0" "$@"; }}\nshow {command}\n'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


@settings(max_examples=40, deadline=None)
@given(words, st.sampled_from([40, 60, 80]))
def test_a_wrapped_command_pastes_as_the_same_words(parts: list[str], width: int) -> None:
    import shlex

    folded = wrap_shell(shlex.join(parts), width)
    assert all(width_of(line) <= width for line in folded)
    assert shell_words("\n".join(folded).strip()) == parts


def test_double_quotes_and_a_comment_survive_wrapping() -> None:
    command = 'echo "a  b ' + "c" * 100 + ' \\" d"   two  # and why'
    folded = wrap_shell(command, 60)
    assert all(width_of(line) <= 60 for line in folded)
    assert folded[-1].strip() == "# and why"
    assert shell_words("\n".join(folded).strip().removeprefix("echo ")) == ["a  b " + "c" * 100 + ' " d', "two"]


# ---------------------------------------------------------------- small things


def test_durations_are_written_as_everywhere() -> None:
    told = [duration(s) for s in (0, 90, 119.6, 590, 2880, 7200, 11400, 200_000, -30)]
    assert told == ["0s", "90s", "2m", "9m50s", "48m", "2h", "3h10m", "56h", "-30s"]


def test_ranks_fold() -> None:
    assert ranges([7, 0, 1, 2, 4, 7]) == "0-2,4,7"
    assert ranges([]) == ""


def test_a_word_longer_than_the_line_is_broken() -> None:
    assert wrap("aaaaaaaaaa", 4, "- ") == ["- aa", "  aa", "  aa", "  aa", "  aa"]


def test_the_formats_are_found_by_name_and_a_wrong_one_is_a_usage_error() -> None:
    assert {"json", "text"} <= set(renderers())
    assert "clean" not in renderers()
    assert get("text") is text.render
    with pytest.raises(UsageError, match="did you mean json"):
        get("jsn")


def test_every_list_of_the_report_is_on_the_page() -> None:
    """A new list in the model must be printed, or left out on purpose here."""
    not_printed = {"tool", "schema_version", "dedup_key", "exit_code", "walk"}
    told = {f.name for f in fields(Report)} - not_printed
    assert told == {
        "case", "job", "observed", "state", "verdict", "culprits", "victims", "evidence", "findings", "ruled_out",
        "alternatives", "unknown", "timeline", "deadlines", "mitigation", "commands", "do_not", "took_s", "stacks",
        "since_last",
    }  # fmt: skip

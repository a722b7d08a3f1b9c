"""The README shows what the program prints: its transcript is a replay of a saved case.

After a change of the words, write it again:  python tests/test_readme.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASE = ROOT / "tests" / "captures" / "cases" / "dead-rank"
MARKS = re.compile(r"(<!-- transcript: begin -->\n).*?(<!-- transcript: end -->)", re.DOTALL)


def transcript() -> str:
    from triage import case, investigate
    from triage.render import get

    report = investigate.replay(case.read(CASE)).report
    return "```\n" + get("text")(report) + "```\n"


def rewritten(readme: str) -> str:
    return MARKS.sub(lambda match: match[1] + transcript() + match[2], readme)


def test_the_transcript_of_the_readme_is_what_the_saved_case_replays_to():
    readme = (ROOT / "README.md").read_text()
    assert MARKS.search(readme)
    assert rewritten(readme) == readme, "run: python tests/test_readme.py"


def test_the_saved_case_is_whole():
    from triage import case

    assert case.damaged(CASE) == []
    content = case.read(CASE)
    assert content.complete and content.skipped == 0


def test_every_drill_of_the_readme_is_one_of_the_list_and_the_other_way_round():
    from triage.drill.scenarios import list_scenarios

    readme = (ROOT / "README.md").read_text()
    for row in list_scenarios():
        first = f"| `{row.scenario}` |" in readme
        assert first or f"| `{row.scenario} --fault {row.fault}` |" in readme
    named = set(re.findall(r"^\| `([a-z-]+)(?: --fault [a-z]+)?` \|", readme, re.MULTILINE))
    assert named == {row.scenario for row in list_scenarios()}


def test_every_drill_is_a_row_of_the_table_of_what_is_withheld():
    from triage.drill.plan import BLINDABLE
    from triage.drill.scenarios import list_scenarios

    readme = (ROOT / "README.md").read_text()
    assert "| without | " + " | ".join(BLINDABLE) + " |" in readme
    rows = re.findall(r"^\| `([a-z-]+)/([a-z]+)` \|((?: [=~?] \|)+)$", readme, re.MULTILINE)
    assert {(scenario, fault) for scenario, fault, _ in rows} == {
        (r.scenario, r.fault) for r in list_scenarios() if not r.real_cables
    }
    signs = [sign for *_, cells in rows for sign in re.findall(r"[=~?]", cells)]
    assert len(signs) == len(rows) * len(BLINDABLE)
    assert sum(sign in "=~" for sign in signs) >= 0.7 * len(signs)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    (ROOT / "README.md").write_text(rewritten((ROOT / "README.md").read_text()))

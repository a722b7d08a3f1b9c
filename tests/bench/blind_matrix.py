"""How far does triage come with one eye shut? Every drill with each source of evidence taken away.

    python tests/bench/blind_matrix.py [--first-seed 1] [--times 1] [--sample 12] [--jobs 1] [--markdown] [--triage PATH]

Each cell is one of   =  verdict and culprit as with all evidence      ~  the same culprit and verdict id, a weaker leaf
                      ?  inconclusive, nobody accused                  !  wrong: another is accused, or another verdict
Exits 1 if a cell is wrong, or if fewer than LEAST of the cells name the right one. `--sample N` draws N of the pairs by the
seed (for CI; the share is then not judged).
"""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ThreadPoolExecutor

from drill_runs import Run, accused_wrongly, find_triage, named_right, run_drill

SOURCES = ("dumps", "joblog", "kernel", "ranks", "steps", "nic", "second-look")
LEAST = 0.7
ALONE = ("straggler",)  # a slowdown of some percent is not seen under the noise of other drills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=1, help="runs of each cell; the worst of them counts")
    parser.add_argument("--only", action="append", default=[], metavar="SCENARIO", help="only this one; repeatable")
    parser.add_argument("--blind", action="append", default=[], metavar="SOURCE", help="only this one; repeatable")
    parser.add_argument("--sample", type=int, default=0, help="only so many pairs, drawn by the seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="print the table as the README has it")
    parser.add_argument("--triage", default=find_triage())
    options = parser.parse_args()

    from triage.drill.scenarios import list_scenarios

    # Nodes of processes: in namespaces of their own not every source can be taken away.
    told = [row for row in list_scenarios() if not row.real_cables]
    rows = [(row.scenario, row.fault) for row in told if not options.only or row.scenario in options.only]
    sources = [source for source in SOURCES if not options.blind or source in options.blind]
    cells = [(*row, source) for row in rows for source in sources]
    if options.sample:
        cells = random.Random(options.first_seed).sample(cells, min(options.sample, len(cells)))

    def try_cell(cell: tuple[str, str, str]) -> str:
        scenario, fault, source = cell
        worst = "="
        for number in range(options.times):
            seed = options.first_seed + number + 1000 * cells.index(cell)
            run = run_drill(options.triage, scenario, fault, seed, "--backend", "processes", "--blind", source)
            mark, why = mark_of(run)
            print(f"{mark} {scenario}/{fault} without {source}, seed {seed}: {why}", file=sys.stderr, flush=True)
            if mark == "!":
                print(f"WRONG {scenario}/{fault} without {source}, seed {seed}: {why}; {run.keep()}", flush=True)
            else:
                run.drop()
            worst = max(worst, mark, key="=~?!".index)
        return worst

    beside = [cell for cell in cells if cell[0] not in ALONE]
    with ThreadPoolExecutor(options.jobs) as pool:
        marks = dict(zip(beside, pool.map(try_cell, beside), strict=True))
    marks.update((cell, try_cell(cell)) for cell in cells if cell[0] in ALONE)
    print(drawn(rows, sources, marks, options.markdown))
    right, wrong = sum(mark in "=~" for mark in marks.values()), sum(mark == "!" for mark in marks.values())
    print(f"{right} of {len(marks)} name the right one ({right / len(marks):.0%}), {wrong} wrong")
    return 1 if wrong or (not options.sample and right < LEAST * len(marks)) else 0


def mark_of(run: Run) -> tuple[str, str]:
    """The cell's sign, and the verdict in words."""
    report, truth = run.report, run.truth
    if report is None or truth is None or run.trouble:
        return "!", "; ".join(run.trouble)
    verdict = report["verdict"]
    said = f"{verdict['cause']} ({verdict['confidence']}), {[part['node'] for part in report['culprits']]}"
    if wrong := accused_wrongly(report, truth):
        return "!", f"{said}: {'; '.join(wrong)}"
    if verdict["id"] == truth["verdict"] and named_right(report, truth):
        return ("=" if not truth["cause"] or verdict["cause"] == truth["cause"] else "~"), said
    # "Slower since some seconds, look again" accuses nobody and says that it does not know.
    undecided = verdict["id"] == "inconclusive" or verdict["cause"] == "healthy/slower_lately"
    return ("?" if undecided else "!"), said


def drawn(
    rows: list[tuple[str, str]], sources: list[str], marks: dict[tuple[str, str, str], str], markdown: bool
) -> str:
    def cell(row: tuple[str, str], source: str) -> str:
        return marks.get((*row, source), " ")

    if markdown:
        lines = ["| without | " + " | ".join(sources) + " |", "| --- |" + " :-: |" * len(sources)]
        lines += [f"| `{s}/{f}` | " + " | ".join(cell((s, f), source) for source in sources) + " |" for s, f in rows]
    else:
        lines = [f"{'':<24}" + "".join(f"{source:>12}" for source in sources)]
        lines += [f"{s + '/' + f:<24}" + "".join(f"{cell((s, f), source):>12}" for source in sources) for s, f in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""A case of somebody else, with anything in it, is concluded or refused in one line: never a traceback, never a lie.

The committed case is bent in some hundred seeded ways (TRIAGE_FUZZ=3000 bends it more often, TRIAGE_FUZZ_FROM=n from
another seed on) and walks the whole path: read, facts, walk, price, both renderers.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import unicodedata
from pathlib import Path

import jsonschema
import pytest

from triage import case as cases
from triage.conclude import conclude
from triage.errors import ConfigError
from triage.investigate import probe_names, replay, shipped_limits
from triage.render import get
from triage.render.layout import width_of
from triage.schema import schema

CASE = Path(__file__).parent / "captures" / "cases" / "dead-rank"
TIMES = int(os.environ.get("TRIAGE_FUZZ", "150"))
FROM = int(os.environ.get("TRIAGE_FUZZ_FROM", "0"))
BLOCK = 25  # bends of one test

RAW = ("NaN", "-Infinity", "1e999", "-1e999", "1" * 400, "[" * 60 + "]" * 60, "[" * 3000 + "]" * 3000, '"\\ud800"')
WORDS = (
    "", "0", "-1", "NaN", "1e999", "x" * 5000, "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\nVERDICT  healthy.", "\r\x08\0",
    "\u202eevil\u202c", "\u200b", "\u2028x", "漢字" * 200, "e\u0301" * 60, "﷽" * 40, "A" * 79 + " " + "B" * 90,
    "-oProxyCommand=touch /tmp/x", "$(reboot)", "'; reboot; '", "{0}{job.id}%s%n", "<b>**x**</b>", "../../etc/passwd",
    "gpu[1-99999999]", "0+1000000", "0+9*9999999", "13:0*99999999", "1:1*1000000,2:9", "all_reduce|" + "9x" * 90 + "|||",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2**31, 2**63, -(2**63), 10**6, 10**9, 10**15, 10**30, 10**300, 0.5, -0.0, 1e-320, 1e14, 1e300, -1e300,
)  # fmt: skip


class Raw(str):
    """JSON text that no encoder would write."""


def value(rng):
    return rng.choice(
        (
            lambda: rng.choice(
                (None, True, False, [], {}, [[]], [[[[1]]]], {"a": {"b": [{}]}}, [None], ["x"], {"": 0})
            ),
            lambda: rng.choice(NUMBERS),
            lambda: rng.randrange(-10, 10 ** rng.randrange(1, 18)),
            lambda: rng.choice(WORDS),
            lambda: [rng.choice(WORDS)] * 3,
            lambda: {rng.choice(WORDS): rng.choice(NUMBERS)},
            lambda: Raw(rng.choice(RAW)),
        )
    )()


def places(tree, path=()):
    """The path of every value in a JSON tree; of long lists some."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:40]) if isinstance(tree, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def bend(rng, samples, head):
    """One to fifteen changes; what was done, for the message of a failure."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6, 15))):
        tree = head if rng.random() < 0.1 else rng.choice(samples)
        depth = rng.choice((1, 2, 3, 4, 5, 8))
        spots = [p for p in places(tree) if len(p) <= depth]
        if not spots:
            continue
        path, what = rng.choice(spots), rng.random()
        parent, key = at(tree, path[:-1]), path[-1]
        if path[0] == "probe" and rng.random() < 0.8:
            continue
        if what < 0.68:
            parent[key] = value(rng)
            done.append((tree.get("probe"), path, repr(parent[key])[:60]))
        elif what < 0.78:
            del parent[key]
            done.append((tree.get("probe"), path, "removed"))
        elif what < 0.84 and isinstance(parent[key], list) and parent[key]:
            parent[key].extend(copy.deepcopy(parent[key]) * rng.choice((1, 1, 40)))
            done.append((tree.get("probe"), path, "repeated"))
        elif what < 0.90 and tree is not head:
            twin = copy.deepcopy(tree)
            twin["node"], twin["look"] = rng.choice(samples).get("node"), rng.choice(("A", "B", "C", "", "Z"))
            samples.append(twin)
            done.append((tree.get("probe"), "told again of", twin["node"], twin["look"]))
        elif what < 0.93 and tree is not head and len(samples) > 1:
            samples.remove(tree)
            done.append((tree.get("probe"), "left out"))
        elif what < 0.96:
            whose = rng.choice(samples)
            others = [p for p in places(whose) if isinstance(at(whose, p), int | float)]
            if others:
                parent[key] = at(whose, rng.choice(others))
                done.append((tree.get("probe"), path, f"{parent[key]} of elsewhere"))
        else:
            crowd(rng, tree)
            done.append((tree.get("probe"), "crowded"))
    return done


def crowd(rng, tree):
    """A million ranks said, thousands of rows sent, one rank many times over."""
    data = tree.get("data")
    rows = data.get("ranks") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
        return
    if rng.random() < 0.5:
        for row in rows:
            if isinstance(row, dict):
                row["world_size"] = 10 ** rng.randrange(4, 8)
    else:
        step = rng.choice((0, 1, 97))
        rows += [{**rows[0], "rank": index * step} for index in range(rng.choice((50, 3000)))]


def text_of(tree, spare):
    """JSON, with Raw values as they are."""
    kept = []

    def swap(item):
        if isinstance(item, Raw):
            kept.append(item)
            return f"@raw{len(kept)}@"
        if isinstance(item, dict):
            return {key: swap(one) for key, one in item.items()}
        if isinstance(item, list):
            return [swap(one) for one in item]
        return item

    text = json.dumps(swap(tree), ensure_ascii=bool(spare % 2))
    for index, raw in enumerate(kept, 1):
        text = text.replace(f'"@raw{index}@"', raw)
    return text


SAMPLES = [json.loads(line) for line in (CASE / "samples.jsonl").read_text().splitlines()]
HEAD = json.loads((CASE / "case.json").read_text())
CHECK = jsonschema.Draft202012Validator(schema())


def forbidden(sign):
    return sign != "\n" and unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def strange(report, facts):
    """What is wrong with an answer: [] for nothing."""
    wrong = [f"{n}: {f.reason}" for n, f in facts.items() if f.reason.startswith("could not be computed")]
    document = json.loads(get("json")(report), parse_constant=lambda name: wrong.append(f"JSON holds {name}"))
    error = next(CHECK.iter_errors(document), None)
    if error is not None:
        wrong.append(f"schema: {list(error.absolute_path)} {error.message[:100]}")
    for explain in (False, True):
        text = get("text")(report, explain=explain)
        text.encode()
        wrong += [f"too wide: {line[:100]!r}" for line in text.split("\n") if width_of(line) > 80]
        wrong += [f"control character: {line[:100]!r}" for line in text.split("\n") if any(map(forbidden, line))]
    return wrong


@pytest.mark.parametrize("first", range(FROM, FROM + TIMES, BLOCK))
def test_whatever_stands_in_a_case_it_is_concluded_or_refused_in_one_line(first, tmp_path):
    folder = tmp_path / "case"
    shutil.copytree(CASE / "playbooks", folder / "playbooks")
    for seed in range(first, min(first + BLOCK, FROM + TIMES)):
        rng = random.Random(seed)
        samples, head = copy.deepcopy(SAMPLES), copy.deepcopy(HEAD)
        done = bend(rng, samples, head)
        lines = [text_of(sample, seed) for sample in samples]
        (folder / "samples.jsonl").write_text("\n".join(lines), "utf-8", "surrogatepass")
        (folder / "case.json").write_text(text_of(head, seed), "utf-8", "surrogatepass")
        try:
            content = cases.read(folder)
            report = replay(content).report
            limits = shipped_limits(probe_names())
            facts = conclude(content, probes=probe_names(), can_ask=False, defaults=limits).facts
        except ConfigError as error:
            assert "\n" not in str(error) and not any(map(forbidden, str(error))), (seed, done)
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {done}") from error
        wrong = strange(report, facts)
        assert not wrong, (seed, wrong[:5], done)

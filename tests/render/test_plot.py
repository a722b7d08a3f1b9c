"""The picture: well-formed, bounded, harmless whatever nodes are called, and true to the numbers."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triage.render.plot import COLUMNS, Line, Picture, drawn, picture_of

SVG = "{http://www.w3.org/2000/svg}"


def read(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def words(text: str) -> list[str]:
    return [element.text or "" for element in read(text).iter(f"{SVG}text")]


def priced(**more: object) -> dict[str, object]:
    found = {
        "recommended": {"summary": "S2: re-balance"},
        "loss": {"healthy_step_s": 1.76, "slow_step_s": 2.0, "lost_fraction": 0.12, "elapsed_min": 48.0,
                 "accumulated_job_min": 5.76, "onset": "2026-11-29T01:12:00Z"},
        "strategies": [
            {"id": "S1", "applicable": True, "overhead_job_min": {"mid": 0.0}},
            {"id": "S2", "applicable": True, "overhead_job_min": {"mid": 0.5}},
            {"id": "S3", "applicable": False, "overhead_job_min": {"mid": 1.0}},
            {"id": "S4", "applicable": True, "overhead_job_min": {"mid": 110.0}},
        ],
    }  # fmt: skip
    return {**found, **more}


def line(name: str = "rank 1", loud: bool = False, n: int = 20, level: float = 1.8) -> Line:
    return Line(name, [(-n + i, level + 0.01 * (i % 3)) for i in range(n)], loud)


def test_a_priced_slowdown_shows_onset_t0_rent_and_prices() -> None:
    told = words(drawn(picture_of(priced(), [line("rank 5", True), line("rank 1")])))
    for wanted in ("onset", "now", "T0 healthy step 1.76 s", "T1 step now 2 s", "rent 5.76 so far", "S2 at 0.5",
                   "S4 at 110: above", "rank 5", "1 other", "minutes since the onset (01:12:00Z)"):  # fmt: skip
        assert wanted in told
    assert not any(text.startswith("S3") for text in told)  # a step that does not apply has no price to wait for


def test_heights_are_in_proportion_to_the_numbers() -> None:
    picture = picture_of(priced(), [line("slow", True, level=2.0), line("fast", True, level=1.76)])
    paths = [e.get("points", "") for e in read(drawn(picture)).iter(f"{SVG}polyline")]
    levels = [float(points.split()[0].split(",")[1]) for points in paths[:2]]
    dashes = [e for e in read(drawn(picture)).iter(f"{SVG}line") if e.get("stroke-dasharray") == "4 4"]
    t0, t1 = (float(e.get("y1", "nan")) for e in dashes)
    assert levels[0] == pytest.approx(t1, abs=0.2) and levels[1] == pytest.approx(t0, abs=0.2)
    assert t1 < t0  # up is slower


def test_the_x_of_now_and_of_the_onset_are_48_minutes_apart() -> None:
    text = drawn(picture_of(priced(), [line()]))
    ends = [float(x) for x in re.findall(r'<line x1="([\d.]+)" y1="72" x2="\1"', text)]
    ticks = {
        t.text: float(t.get("x", "nan")) for t in read(text).iter(f"{SVG}text") if t.get("text-anchor") == "middle"
    }
    assert len(ends) == 2 and ticks["0"] == pytest.approx(ends[0], abs=0.2)
    assert (ends[1] - ends[0]) / (ticks["20"] - ticks["0"]) == pytest.approx(48 / 20, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"/><image href="http://x/y.png"/>',
        "]]>&amp;&#x0;",
        "a\x1b[31mb\x00c\ud800",
        "x" * 5000,
        "\u202eevil",
    ],
)
def test_a_hostile_name_is_text_and_nothing_else(name: str) -> None:
    text = drawn(picture_of(priced(recommended={"summary": name}), [line(name, True)], title=name, what=name))
    root = read(text)
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {
        "svg",
        "title",
        "rect",
        "line",
        "text",
        "polyline",
        "polygon",
    }
    assert not [k for e in root.iter() for k in e.attrib if k.startswith("on") or "href" in k]
    assert "\x1b" not in text and "\u202e" not in text and "\x00" not in text
    assert max(len(t) for t in words(text)) <= 200
    text.encode("utf-8")


def test_a_thousand_ranks_of_five_thousand_steps_stay_small_and_the_slow_one_is_named() -> None:
    lines = [
        Line(f"rank {r}", [(i * 0.03 - 150, 1.8 + 0.001 * ((i + r) % 7)) for i in range(5000)], r == 37)
        for r in range(100)
    ]
    text = drawn(picture_of(priced(), lines))
    assert len(text) < 200_000
    assert "rank 37" in words(text) and "99 others" in words(text)
    assert len(read(text).findall(f"{SVG}polygon")) == 1


def test_a_spike_survives_the_thinning_and_does_not_flatten_the_rest() -> None:
    points = [(i * 0.01, 50.0 if i == 3333 else 1.8) for i in range(10_000)]
    text = drawn(picture_of(priced(), [Line("rank 0", points, True)]))
    ys = [float(p.split(",")[1]) for e in read(text).iter(f"{SVG}polyline") for p in (e.get("points") or "").split()]
    assert len(ys) <= 2 * (COLUMNS + 1) + 4
    assert min(ys) == pytest.approx(72, abs=0.1)  # at the upper edge
    dashes = [float(e.get("y1", "nan")) for e in read(text).iter(f"{SVG}line") if e.get("stroke-dasharray") == "4 4"]
    assert max(dashes) - min(dashes) > 10  # T0 and T1 are still told apart


def test_nothing_known_is_still_a_picture() -> None:
    assert words(drawn(Picture("nothing", "minutes")))
    bare = {"loss": {}, "strategies": [], "recommended": {}}
    assert words(drawn(picture_of(bare)))
    assert "rent" not in " ".join(words(drawn(picture_of(bare, [line()]))))


numbers = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(Line, st.text(max_size=20), st.lists(st.tuples(numbers, numbers), max_size=6), st.booleans()),
        max_size=4,
    ),
    st.lists(st.one_of(st.none(), numbers), min_size=5, max_size=5),
)
def test_any_numbers_give_a_document_that_can_be_read(lines: list[Line], told: list[float | None]) -> None:
    loss = dict(zip(("healthy_step_s", "slow_step_s", "lost_fraction", "elapsed_min", "accumulated_job_min"), told))
    text = drawn(picture_of(priced(loss=loss), lines))
    for element in read(text).iter():
        for key, value in element.attrib.items():
            if key in ("x", "y", "x1", "x2", "y1", "y2", "width", "height"):
                assert math.isfinite(float(value))

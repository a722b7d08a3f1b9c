"""A picture of a slowdown as SVG: step times of the ranks, onset, T0, the rent and the prices of the steps.

`drawn(picture)` gives one self-contained document: no script, no link, no font of its own, no style from elsewhere. Names come
from nodes, so they are cleaned, escaped and cut, and stand in text only; everything else is a number. Colour is never alone:
each line has a label or a dash of its own. However many ranks and steps there are, it stays below some 200 KB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from triage.render.clean import clean

Points = Sequence[tuple[float, float]]

WIDTH, LEFT, RIGHT = 960, 64, 176
TOP, STEPS_HEIGHT, GAP, RENT_HEIGHT, BOTTOM = 72, 240, 56, 180, 40
MOST_LOUD = 8  # lines drawn by themselves and named
MOST_QUIET = 24  # lines drawn by themselves without a name; more become a band
COLUMNS = 400  # points of a line at most twice that
SPIKE = 2.0  # times the slow step: what is taller is cut, or a checkpoint would flatten all others
FAR = 6.0  # times the rent: a price above that is told and not drawn
_MOST = 1e9
LOUD = ("#c0392b", "#8e44ad", "#d35400", "#16a085", "#2c3e50", "#7f8c8d", "#b7950b", "#2471a3")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "1 4", "12 4", "3 6")


@dataclass(frozen=True)
class Line:
    """One rank: (minutes, seconds) by time. `loud`: it is named and stands out."""

    name: str
    points: Points
    loud: bool = False


@dataclass(frozen=True)
class Picture:
    """Minutes count from `zero` (what 0 is, in words). `prices` are (name, job-minutes); `rate` what a minute costs."""

    title: str
    zero: str
    lines: tuple[Line, ...] = ()
    what: str = "step, s"
    levels: tuple[tuple[str, float], ...] = ()
    onset: float | None = None
    now: float = 0.0
    rent: tuple[tuple[float, float], ...] = ()
    rate: float | None = None
    prices: tuple[tuple[str, float], ...] = ()


def picture_of(
    mitigation: Mapping[str, Any], lines: Sequence[Line] = (), *, title: str = "", what: str = ""
) -> Picture:
    """The picture of a priced slowdown. `lines` count minutes from now (before it: below 0)."""
    loss = mitigation.get("loss") or {}
    elapsed, lost = _number(loss.get("elapsed_min")), _number(loss.get("lost_fraction"))
    rent = _number(loss.get("accumulated_job_min"))
    shift = elapsed if elapsed is not None else 0.0
    levels = [("T0 healthy step", loss.get("healthy_step_s")), ("T1 step now", loss.get("slow_step_s"))]
    at = str(loss.get("onset") or "")[11:19]
    zero = f"minutes since the onset{f' ({at}Z)' if at else ''}" if elapsed is not None else "minutes before now"
    prices = [
        (str(step.get("id")), _number((step.get("overhead_job_min") or {}).get("mid")))
        for step in mitigation.get("strategies") or ()
        if step.get("applicable") and step.get("id") != "S1"
    ]
    return Picture(
        title=title or str((mitigation.get("recommended") or {}).get("summary") or "triage"),
        zero=zero,
        lines=tuple(Line(line.name, [(x + shift, y) for x, y in line.points], line.loud) for line in lines),
        what=what or "step, s",
        levels=tuple((name, number) for name, value in levels if (number := _number(value)) is not None),
        onset=0.0 if elapsed is not None else None,
        now=shift,
        rent=((0.0, 0.0), (shift, rent)) if elapsed is not None and rent is not None else (),
        rate=lost,
        prices=tuple((name, value) for name, value in prices if value is not None),
    )


def _number(value: object) -> float | None:
    """A number that can be drawn: none of them is negative or a thousand years."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        return None
    return float(value)


# ---------------------------------------------------------------- drawing


class _Panel:
    """A box with its scales."""

    def __init__(self, top: float, height: float, xs: tuple[float, float], ys: tuple[float, float]) -> None:
        self.top, self.height, self.xs, self.ys = top, height, xs, ys

    def x(self, value: float) -> float:
        low, high = self.xs
        return LEFT + (min(max(value, low), high) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.ys
        return self.top + self.height - (min(max(value, low), high) - low) / (high - low) * self.height


def drawn(picture: Picture) -> str:
    """The SVG document."""
    lines = [Line(line.name, _sane(line.points), line.loud) for line in picture.lines]
    lines = [line for line in lines if line.points]
    has_steps, has_rent = bool(lines or picture.levels), bool(picture.rent)
    xs = _span_x(picture, lines)
    parts: list[str] = []
    top = float(TOP)
    if has_steps:
        panel = _Panel(top, STEPS_HEIGHT, xs, _span_steps(picture, lines))
        parts += _frame(panel, picture.what) + _steps(panel, picture, lines)
        top += STEPS_HEIGHT + GAP
    if has_rent:
        shown, far = _prices(picture)
        high = max([1e-9, picture.rent[-1][1], *(price for _, price in shown)]) * 1.12
        panel = _Panel(top, RENT_HEIGHT, xs, (0.0, high))
        parts += _frame(panel, "rent, job-minutes") + _rent(panel, picture, shown, far)
        top += RENT_HEIGHT + GAP
    height = top - GAP + BOTTOM if has_steps or has_rent else 120.0
    parts.append(_text(LEFT, height - 8, picture.zero, size=12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{_n(height)}" '
        f'viewBox="0 0 {WIDTH} {_n(height)}" font-family="sans-serif" font-size="12" role="img">\n'
        f"<title>{_words(picture.title, 200)}</title>\n"
        f'<rect width="{WIDTH}" height="{_n(height)}" fill="#ffffff"/>\n'
        + _text(LEFT, 26, picture.title, size=15, limit=110)
        + "\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _sane(points: Points) -> Points:
    kept = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and abs(x) < _MOST and 0 <= y < _MOST]
    return _thinned(sorted(kept))


def _thinned(points: Points) -> Points:
    """The least and the greatest of each column: a spike stays a spike."""
    if len(points) <= 2 * COLUMNS:
        return points
    low, high = points[0][0], points[-1][0]
    columns: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        columns.setdefault(int((point[0] - low) / max(1e-9, high - low) * COLUMNS), []).append(point)
    found: list[tuple[float, float]] = []
    for held in columns.values():
        found += sorted({min(held, key=lambda p: p[1]), max(held, key=lambda p: p[1])})
    return found


def _span_x(picture: Picture, lines: Sequence[Line]) -> tuple[float, float]:
    values = [x for line in lines for x in (line.points[0][0], line.points[-1][0])]
    values += [picture.now, *(x for x, _ in picture.rent)]
    low, high = min(values), max(values)
    if picture.rent and picture.rate:
        shown, _ = _prices(picture)
        due = [picture.now + (price - picture.rent[-1][1]) / picture.rate for _, price in shown]
        high = max([high, *(at for at in due if at <= picture.now + 1.5 * max(1.0, high - low))])
        high += 0.05 * (high - low)
    return (low, high) if high - low > 1e-6 else (low - 1.0, low + 1.0)


def _span_steps(picture: Picture, lines: Sequence[Line]) -> tuple[float, float]:
    values = sorted(y for line in lines for _, y in line.points)
    told = [value for _, value in picture.levels]
    usual = values[len(values) // 2] if values else max(told)
    high = max([*told, min(values[-1], SPIKE * max([usual, *told])) if values else 0.0])
    low = min([*told, values[len(values) // 50] if values else high])
    return 0.8 * low, max(1.06 * high, 0.8 * low + 1e-9)


def _prices(picture: Picture) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Those that are drawn, and those that lie too far above the rent."""
    limit = FAR * max([0.0, *(rent for _, rent in picture.rent)])
    ordered = sorted(picture.prices, key=lambda price: price[1])
    return [p for p in ordered if p[1] <= limit], [p for p in ordered if p[1] > limit]


def _steps(panel: _Panel, picture: Picture, lines: Sequence[Line]) -> list[str]:
    loud = [line for line in lines if line.loud][:MOST_LOUD]
    names = {id(line) for line in loud}
    quiet = [line for line in lines if id(line) not in names]
    parts = []
    if len(quiet) > MOST_QUIET:
        parts.append(_band(panel, quiet))
    else:
        parts += [_path(panel, line.points, "#9aa5b1", 0.8) for line in quiet]
    labels: list[tuple[float, str, str]] = []
    for i, line in enumerate(loud):
        parts.append(_path(panel, line.points, LOUD[i % len(LOUD)], 1.6, DASHES[i % len(DASHES)]))
        labels.append((panel.y(line.points[-1][1]), line.name, LOUD[i % len(LOUD)]))
    if quiet:
        count = f"{len(quiet)} other{'s' if len(quiet) > 1 else ''}" if loud else f"{len(quiet)} ranks"
        labels.append((panel.y(quiet[0].points[-1][1]), count, "#66707a"))
    for name, value in picture.levels:
        parts.append(_level(panel, value, "#1e8449" if name.startswith("T0") else "#b03a2e", "4 4"))
        labels.append((panel.y(value), f"{name} {value:.3g} s", "#333333"))
    parts += _marks(panel, picture)
    return parts + _labels(labels)


def _rent(
    panel: _Panel, picture: Picture, shown: Sequence[tuple[str, float]], far: Sequence[tuple[str, float]]
) -> list[str]:
    parts = [_path(panel, picture.rent, "#1f4e79", 2.0)]
    at, rent = picture.rent[-1]
    if picture.rate:
        end = panel.xs[1]
        parts.append(_path(panel, [(at, rent), (end, rent + picture.rate * (end - at))], "#1f4e79", 1.4, "3 4"))
    labels = [(panel.y(rent), f"rent {rent:.3g} so far", "#1f4e79")]
    for name, price in shown:
        parts.append(_level(panel, price, "#555555", "8 4"))
        labels.append((panel.y(price), f"{name} at {price:.3g}", "#333333"))
    for name, price in far:
        labels.append((panel.top, f"{name} at {price:.4g}: above", "#333333"))
    parts += _marks(panel, picture)
    return parts + _labels(labels)


def _marks(panel: _Panel, picture: Picture) -> list[str]:
    parts = []
    for name, at, dash in (("onset", picture.onset, "2 2"), ("now", picture.now, "")):
        if at is not None and panel.xs[0] <= at <= panel.xs[1]:
            x = _n(panel.x(at))
            extra = f' stroke-dasharray="{dash}"' if dash else ""
            parts.append(
                f'<line x1="{x}" y1="{_n(panel.top)}" x2="{x}" y2="{_n(panel.top + panel.height)}" stroke="#444444"{extra}/>'
            )
            parts.append(_text(panel.x(at) + 3, panel.top - 5, name, size=11))
    return parts


def _band(panel: _Panel, lines: Sequence[Line]) -> str:
    """From the least to the greatest of many lines, column by column."""
    low, high = panel.xs
    columns: dict[int, tuple[float, float]] = {}
    for line in lines:
        for x, y in line.points:
            key = int((x - low) / (high - low) * (COLUMNS // 2))
            least, most = columns.get(key, (y, y))
            columns[key] = (min(least, y), max(most, y))
    keys = sorted(columns)
    xs = [panel.x(low + (key + 0.5) * (high - low) / (COLUMNS // 2)) for key in keys]
    up = [f"{_n(x)},{_n(panel.y(columns[key][1]))}" for x, key in zip(xs, keys)]
    down = [f"{_n(x)},{_n(panel.y(columns[key][0]))}" for x, key in zip(xs, keys)]
    return f'<polygon points="{" ".join([*up, *reversed(down)])}" fill="#cfd6dd" stroke="#9aa5b1" stroke-width="0.5"/>'


def _path(panel: _Panel, points: Points, color: str, width: float, dash: str = "") -> str:
    told = " ".join(f"{_n(panel.x(x))},{_n(panel.y(y))}" for x, y in points)
    extra = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{told}" fill="none" stroke="{color}" stroke-width="{_n(width)}"{extra}/>'


def _level(panel: _Panel, value: float, color: str, dash: str) -> str:
    y = _n(panel.y(value))
    return f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="{color}" stroke-dasharray="{dash}"/>'


def _labels(labels: list[tuple[float, str, str]]) -> list[str]:
    """Right of the box, pushed apart where they would lie on each other."""
    parts, last = [], -math.inf
    for y, text, color in sorted(labels, key=lambda label: label[0]):
        last = max(y + 4, last + 14)
        parts.append(_text(WIDTH - RIGHT + 8, last, text, size=11, color=color, limit=26))
    return parts


def _frame(panel: _Panel, name: str) -> list[str]:
    width = WIDTH - LEFT - RIGHT
    parts = [
        f'<rect x="{LEFT}" y="{_n(panel.top)}" width="{width}" height="{_n(panel.height)}" fill="none" stroke="#bbbbbb"/>',
        _text(LEFT + 4, panel.top - 18, name, size=12),
    ]
    for value in _ticks(*panel.ys):
        y = panel.y(value)
        parts.append(f'<line x1="{LEFT - 4}" y1="{_n(y)}" x2="{LEFT}" y2="{_n(y)}" stroke="#888888"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{value:.6g}", size=11, end=True))
    for value in _ticks(*panel.xs):
        x, y = panel.x(value), panel.top + panel.height
        parts.append(f'<line x1="{_n(x)}" y1="{_n(y)}" x2="{_n(x)}" y2="{_n(y + 4)}" stroke="#888888"/>')
        parts.append(_text(x, y + 16, f"{value:.6g}", size=11, middle=True))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Some five round numbers within."""
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next((size * k for k in (1, 2, 5, 10) if size * k >= rough), size * 10)
    first = math.ceil(low / step - 1e-9)
    return [0.0 if k == 0 else k * step for k in range(first, first + 12) if k * step <= high + 1e-9 * step]


def _text(
    x: float, y: float, words: str, *, size: int, color: str = "#222222", limit: int = 80, end: bool = False,
    middle: bool = False,
) -> str:  # fmt: skip
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    return f'<text x="{_n(x)}" y="{_n(y)}" font-size="{size}" fill="{color}"{anchor}>{_words(words, limit)}</text>'


def _words(text: str, limit: int) -> str:
    return escape(clean(text, limit))  # &#x27; and the like: XML knows them all


def _n(value: float) -> str:
    """A coordinate: one digit after the point is a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")

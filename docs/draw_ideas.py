"""Draw the pictures of docs/ideas/, each in light and dark colours: `python docs/draw_ideas.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parent / "ideas"
WIDTH = 760
STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 14px; }
.paper { fill: #ffffff; } text { fill: #1c2733; } .soft { fill: #5b6b7c; font-size: 12.5px; }
.bold { font-weight: 600; } .code { font-family: ui-monospace, monospace; font-size: 13px; }
.box { fill: #e9f1fb; stroke: #0757b8; } .warm { fill: #ffeddc; stroke: #c2590a; }
.plain { fill: #f3f5f7; stroke: #8494a5; }
.gone { fill: none; stroke: #8494a5; stroke-dasharray: 5 4; }
.line { stroke: #5b6b7c; stroke-width: 1.4; fill: none; }
.late { stroke: #c2590a; stroke-width: 1.6; fill: none; }
.thick { stroke: #0757b8; stroke-width: 5; fill: none; } .dash { stroke-dasharray: 5 4; }
.dot { fill: #0757b8; } .warmdot { fill: #c2590a; }
.head { fill: #5b6b7c; } .latehead { fill: #c2590a; }
@media (prefers-color-scheme: dark) {
.paper { fill: #1d2530; } text { fill: #e4ebf2; } .soft { fill: #a3b2c2; }
.box { fill: #17355c; stroke: #7db4f5; } .warm { fill: #4d2c10; stroke: #ffb27a; }
.plain { fill: #2a3542; stroke: #8494a5; } .line { stroke: #a3b2c2; } .late { stroke: #ffb27a; }
.thick { stroke: #7db4f5; } .dot { fill: #7db4f5; } .warmdot { fill: #ffb27a; }
.head { fill: #a3b2c2; } .latehead { fill: #ffb27a; } }
"""


class Picture:
    """An SVG that is written from top to bottom."""

    def __init__(self, height: int) -> None:
        self._height = height
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        """Write words at a point, which is in their middle, or where `anchor` says."""
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self._parts.append(f'<text {place} class="{kind}">{escape(words)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box"
    ) -> None:
        """Draw a box with lines of text in it."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._parts.append(f'<rect {place} rx="5" class="{kind}"/>')
        first = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for n, line in enumerate(lines):
            self.text(x + width / 2, first + 18 * n, line)

    def line(self, *points: tuple[float, float], kind: str = "line") -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="{kind}"/>')

    def arrow(self, *points: tuple[float, float], kind: str = "line") -> None:
        """Draw a line with a head at its last point."""
        self.line(*points, kind=kind)
        (x0, y0), (x, y) = points[-2:]
        turn = math.degrees(math.atan2(y - y0, x - x0))
        head = "latehead" if "late" in kind else "head"
        self._parts.append(
            f'<path d="M0 0 L-10 -5 L-10 5 Z" class="{head}" '
            f'transform="translate({x:g} {y:g}) rotate({turn:.0f})"/>'
        )

    def dot(self, x: float, y: float, kind: str = "dot", size: float = 5) -> None:
        """Draw a dot, such as a commit on a line of time."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{size:g}" class="{kind}"/>')

    def slice(self, x: float, y: float, size: float, start: float, end: float, kind: str) -> None:
        """Draw a part of a ring, between two angles in degrees, clockwise from the top."""
        corners = []
        for radius, angle in ((size, start), (size, end), (size * 0.58, end), (size * 0.58, start)):
            turn = math.radians(angle - 90)
            corners.append(f"{x + radius * math.cos(turn):.1f} {y + radius * math.sin(turn):.1f}")
        a, b, c, d = corners
        large = int(end - start > 180)
        self._parts.append(
            f'<path d="M{a} A{size} {size} 0 {large} 1 {b} L{c} '
            f'A{size * 0.58:g} {size * 0.58:g} 0 {large} 0 {d} Z" class="{kind}"/>'
        )

    def drawn(self, title: str) -> str:
        """Return the SVG."""
        view = f'viewBox="0 0 {WIDTH} {self._height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {view} role="img">',
                f"<title>{escape(title)}</title>",
                f"<style>{STYLE}</style>",
                f'<rect width="{WIDTH}" height="{self._height}" rx="8" class="paper"/>',
                *self._parts,
                "</svg>",
                "",
            ]
        )


def guarded_commit() -> Picture:
    """Two processes commit; the guard keeps their times in the order of revisions."""
    p = Picture(330)
    for x, name in ((110, "process A"), (380, "the engine"), (650, "process B")):
        p.text(x, 28, name, "bold")
        p.line((x, 40), (x, 290), kind="line dash")
    p.box(285, 48, 190, 34, "timestamp key = 100", kind="plain")
    p.arrow((110, 105), (280, 122))
    p.text(195, 100, "T = 105", "code")
    p.box(285, 100, 190, 52, "100 < 105: applied", "revision 8", kind="box")
    p.arrow((280, 140), (114, 157))
    p.text(195, 175, "committed at 105", "soft")
    p.arrow((650, 150), (480, 182), kind="late")
    p.text(568, 148, "T = 103", "code")
    p.box(285, 164, 190, 52, "105 is not < 103:", "nothing is written", kind="warm")
    p.arrow((480, 206), (646, 223), kind="late")
    p.text(568, 240, "it is 105 by now", "soft")
    p.arrow((650, 250), (480, 262))
    p.text(568, 279, "again: T = 106", "code")
    p.box(285, 232, 190, 52, "105 < 106: applied", "revision 9", kind="box")
    p.text(380, 306, "revision 8 is 105, revision 9 is 106: one order", "soft")
    return p


def ring_and_search() -> Picture:
    """The newest marks are in a ring; older ones are found by a search."""
    p = Picture(330)
    p.text(20, 30, "the marks of a store: (timestamp, revision), oldest first", "soft", "start")
    p.line((20, 60), (740, 60))
    for n in range(37):
        x = 24 + n * 19.6
        p.dot(x, 60, "dot" if n >= 24 or n in (0, 11, 12, 13, 14) else "plain", 4.5)
    p.line((486, 78), (486, 86), (740, 86), (740, 78))
    p.text(613, 106, "the ring: the newest 1,024", "bold")
    p.line((234, 78), (234, 86), (304, 86), (304, 78))
    p.text(268, 106, "a block that was read", "bold")
    p.text(24, 106, "an anchor", "bold", "start")
    p.text(20, 150, "in memory the ring is one array; its two runs rise", "soft", "start")
    values = ("109", "110", "111", "112", "103", "104", "105", "106", "107", "108")
    for n, value in enumerate(values):
        p.box(20 + n * 46, 162, 42, 32, value, kind="box" if n < 4 else "plain")
    p.arrow((179, 222), (179, 200))
    p.text(179, 240, "newest", "soft")
    p.arrow((225, 222), (225, 200))
    p.text(238, 240, "oldest", "soft")
    p.text(610, 176, "T = 106?", "code")
    p.text(610, 196, "one bisection of the right run", "soft")
    p.box(20, 264, 226, 48, "T in the ring:", "nothing is read", kind="box")
    p.box(266, 264, 226, 48, "T in a block:", "nothing is read", kind="box")
    p.box(512, 264, 228, 48, "T elsewhere: a guess, then", "128 marks at once", kind="warm")
    return p


def finality() -> Picture:
    """Up to the newest commit a moment is final; after a tick more of it is."""
    p = Picture(300)
    for top, title, end in ((60, "before", 430), (200, "after a tick", 640)):
        p.text(20, top - 28, title, "bold", "start")
        p.line((40, top), (720, top))
        p.line((40, top), (end, top), kind="thick")
        for x in (90, 210, 300, 430):
            p.dot(x, top, size=6)
        p.line((560, top - 16), (560, top + 16), kind="late")
        p.text(560, top + 34, "you ask about 14:06", "soft")
        p.text(240, top + 34, "final: no commit can come here any more", "soft")
    p.text(400, 40, "newest commit, 14:05", "soft")
    p.arrow((500, 30), (500, 54), kind="late dash")
    p.text(508, 26, "a commit may still come here", "soft", "start")
    p.dot(640, 200, "warmdot", 6)
    p.text(640, 180, "tick, 14:07", "soft")
    p.text(560, 118, "final == False", "code")
    p.text(560, 258, "final == True", "code")
    rule = (
        "Every later commit gets a greater timestamp than the newest one: the guard sees to that."
    )
    p.text(20, 286, rule, "soft", "start")
    return p


def versionstamps() -> Picture:
    """A versionstamp is the timestamp of a commit and two numbers; the feed is in its order."""
    p = Picture(320)
    p.text(20, 30, "a versionstamp: 12 bytes, compared as bytes", "bold", "start")
    p.box(20, 44, 330, 44, "milliseconds since 1970 (46 bits)", kind="box")
    p.box(350, 44, 110, 44, "logical (18)", kind="box")
    p.box(460, 44, 140, 44, "batch (16)", kind="plain")
    p.box(600, 44, 140, 44, "row (16)", kind="plain")
    p.text(240, 108, "the commit's own timestamp", "soft")
    p.text(530, 108, "call of the group", "soft")
    p.text(670, 108, "document of the call", "soft")
    p.text(20, 152, "the feed before", "bold", "start")
    p.text(20, 232, "after an edit of users", "bold", "start")
    for n, (stamp, name) in enumerate(
        (("100.0.0", "users"), ("101.0.0", "orders"), ("101.0.1", "prices"))
    ):
        p.box(200 + n * 130, 132, 120, 46, stamp, name, kind="box")
    p.box(200, 212, 120, 46, "100.0.0", kind="gone")
    for n, (stamp, name) in enumerate((("101.0.0", "orders"), ("101.0.1", "prices"))):
        p.box(330 + n * 130, 212, 120, 46, stamp, name, kind="box")
    p.box(590, 212, 120, 46, "102.0.0", "users", kind="warm")
    p.arrow((590, 290), (700, 290), kind="late")
    p.text(
        585,
        295,
        "a reader that was here has missed nothing: new rows come behind all old ones",
        "soft",
        "end",
    )
    return p


def generations() -> Picture:
    """A generation maps the ring of tokens to streams, from one time on."""
    p = Picture(370)
    for x, title, cuts in (
        (190, "generation 1", (0, 150, 360)),
        (570, "generation 2: a node joined", (0, 150, 250, 360)),
    ):
        p.text(x, 26, title, "bold")
        for n, (start, end) in enumerate(pairwise(cuts)):
            kind = "warm" if (n == 1 and len(cuts) == 4) else "box" if n % 2 == 0 else "plain"
            p.slice(x, 120, 82, start, end, kind)
            turn = math.radians((start + end) / 2 - 90)
            p.text(x + 65 * math.cos(turn), 125 + 65 * math.sin(turn), f"s{n + 1}", "code")
        p.text(x, 125, "tokens", "soft")
    p.text(570, 218, "the same row, another stream", "soft")
    p.line((40, 270), (720, 270))
    p.line((40, 270), (430, 270), kind="thick")
    for x, kind in (
        (100, "dot"),
        (250, "dot"),
        (330, "dot"),
        (430, "warmdot"),
        (540, "dot"),
        (640, "dot"),
    ):
        p.dot(x, 270, kind, 6)
    p.arrow((190, 246), (190, 263))
    p.text(190, 240, "1. every writer has read the streams", "soft")
    p.arrow((310, 312), (310, 278))
    p.text(310, 328, "2. the switch is committed", "soft")
    p.text(430, 250, "generation 2 begins", "soft")
    p.text(660, 297, "time", "soft")
    p.text(380, 356, "A write takes its stream by the very timestamp of its commit.", "soft")
    return p


def two_phase_scheduling() -> Picture:
    """A table moves from capture A to capture B: B prepares while A still writes."""
    p = Picture(300)
    p.text(20, 92, "capture A", "bold", "start")
    p.text(20, 182, "capture B", "bold", "start")
    p.box(120, 70, 340, 36, "writes", kind="box")
    p.box(180, 160, 190, 36, "prepares: reads ahead", kind="plain")
    p.box(370, 160, 90, 36, "prepared", kind="plain")
    p.box(520, 160, 220, 36, "writes", kind="box")
    for x, words in (
        (180, "prepare(B)"),
        (370, "B is prepared"),
        (460, "A has stopped"),
        (520, "commit(B)"),
    ):
        p.line((x, 44), (x, 236), kind="line dash")
        p.text(x, 252 if x in (180, 460) else 34, words, "soft")
    p.arrow((120, 274), (740, 274))
    p.text(20, 279, "the owner", "bold", "start")
    p.text(530, 132, "for a moment no writer, never two", "soft", "start")
    p.text(275, 218, "if B dies, A goes on", "soft")
    return p


def archive() -> Picture:
    """An archive has what the engine has forgotten; both together answer for any moment."""
    p = Picture(340)
    p.text(20, 40, "the engine", "bold", "start")
    p.box(130, 22, 354, 30, "compacted", kind="gone")
    p.box(488, 22, 252, 30, "etcd or lmdb keeps these", kind="box")
    p.text(20, 110, "the archive", "bold", "start")
    p.box(130, 84, 52, 44, "base", "1", kind="warm")
    for n, span in enumerate(("2-40", "41-80", "81-120")):
        p.box(190 + n * 150, 84, 142, 44, f"delta {span}", kind="plain")
        p.box(190 + n * 150, 134, 142, 28, f"log {span}", kind="plain")
    p.box(130, 172, 352, 30, "manifest: which files are the archive", kind="plain")
    p.text(690, 110, "a minute", "soft")
    p.text(690, 128, "behind", "soft")
    p.line((130, 226), (740, 226))
    p.text(20, 231, "revisions", "bold", "start")
    for x, words, at in ((300, "revision 60", 300), (580, "revision 110", 590)):
        p.arrow((x, 268), (x, 234))
        p.text(at, 284, words, "code")
    p.text(300, 304, "base 1, then the deltas up to 60", "soft")
    p.text(590, 304, "the engine answers", "soft")
    p.line((486, 14), (486, 240), kind="late dash")
    p.text(486, 330, "the seam: where the engine's history begins", "soft")
    p.arrow((486, 316), (486, 244), kind="late")
    return p


PICTURES: list[Callable[[], Picture]] = [
    guarded_commit,
    ring_and_search,
    finality,
    versionstamps,
    generations,
    two_phase_scheduling,
    archive,
]


def pictures() -> dict[Path, str]:
    """Return the file of each picture, and what it should contain."""
    return {
        FOLDER / f"{draw.__name__}.svg": draw().drawn((draw.__doc__ or "").removesuffix("."))
        for draw in PICTURES
    }


if __name__ == "__main__":
    for file, text in pictures().items():
        file.write_text(text)

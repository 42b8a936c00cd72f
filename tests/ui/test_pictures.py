"""Pictures: escaped, styled by classes only, and drawn where the numbers say."""

import math
import re
from xml.etree import ElementTree

import pytest

from cdcmeta.changes.revisions import Leaf, Revision, Tree
from cdcmeta.generations.tokens import TOKEN_MAX, TOKEN_MIN
from cdcmeta.ui.database_pages import revision_tree, tree_picture
from cdcmeta.ui.generation_logs import (
    ARCS_MAX,
    RING,
    Arc,
    GenerationRow,
    KeyRow,
    RangeRow,
    TokenRing,
)
from cdcmeta.ui.generation_pages import ARC_RADIUS, CENTRE, GAP, ring_picture
from cdcmeta.ui.svg import (
    HEIGHT,
    WIDTH,
    WIDTH_MIN,
    LaneBar,
    LaneSpan,
    lane_picture,
    number,
    picture,
    printed,
    shape,
    text,
)

EVIL = '"><script>alert(1)</script>\u202e\0\n\udcff<!--'


def parsed(svg):
    """Return a picture's elements; raise for one that is not valid XML, or that styles itself."""
    root = ElementTree.fromstring(str(svg))
    for each in root.iter():
        assert "style" not in each.attrib
        assert not any(name.startswith("on") for name in each.attrib)
        assert each.tag in {"svg", "path", "rect", "line", "circle", "text", "title"}
    assert (root.get("role"), bool(root.get("aria-label"))) == ("img", True)
    return root


def titles(root):
    return [each.text for each in root.iter("title")]


def ring(arcs, *, streams=4, key=None):
    ranges = sum(arc.ranges for arc in arcs)
    row = GenerationRow(5, None, "operates", "00", ranges, streams, 5, None, None)
    return TokenRing("log", row, arcs, [], None, key)


def ends(path):
    """Return the angles at which a curve begins and ends, as parts of a turn, and its radius."""
    points = re.findall(r"(?:M|0 0 1 )(-?[\d.]+) (-?[\d.]+)", path)
    places = [(float(x) - CENTRE, CENTRE - float(y)) for x, y in points]
    turns = [math.atan2(x, y) / (2 * math.pi) % 1 for x, y in places]
    return turns[0], turns[-1], math.hypot(*places[0]), len(places) - 1


def test_texts_cannot_become_markup_and_have_no_controls():
    parts = [shape("rect", "k0", EVIL, x=1.0), text(0, 0, EVIL, "middle")]
    found = picture(10, 10, EVIL, parts, name="lane")
    shown = parsed(found)
    escaped = '"><script>alert(1)</script>\\u202e\\u0000\\n\\xff<!--'
    assert (shown.get("aria-label"), titles(shown)) == (escaped, [escaped])
    assert [each.text for each in shown.iter("text")] == [escaped]
    assert "<script>" not in found
    assert printed("x" * 500, 5) == "xxxxx…"


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-9, -0.0, 12345.678, 7])
def test_numbers_are_short(value):
    assert float(number(value)) == pytest.approx(value, abs=0.006)
    assert len(number(value)) <= 8


def test_the_arcs_of_a_small_ring():
    quarter = RING // 4
    bounds = [TOKEN_MIN + quarter * n for n in range(4)]
    arcs = [Arc(bounds[n - 1], bounds[n], 1, 2) for n in range(4)]  # the first crosses the end
    root = parsed(ring_picture(ring(arcs, streams=8)))
    drawn = [each for each in root.iter("path") if "arc" in each.get("class").split()]
    for arc, path in zip(arcs, drawn, strict=True):
        start, end, radius, pieces = ends(path.get("d"))
        assert radius == pytest.approx(ARC_RADIUS, abs=0.02)
        assert pieces == 1
        begin = (arc.start + RING // 2) / RING % 1
        assert start == pytest.approx((begin + GAP / 2) % 1, abs=1e-3)
        assert end == pytest.approx((begin + 0.25 - GAP / 2) % 1, abs=1e-3)
    assert len({path.get("class") for path in drawn}) >= 2  # neighbours differ
    assert titles(root)[0] == f"({arcs[0].start}, {arcs[0].end}]: 2 streams"
    assert titles(root)[-2:] == ["Streams of shard 0", "Streams of shard 1"]
    assert [each.text for each in root.iter("text")] == ["4 ranges", "8 streams", "operates"]


def test_a_ring_of_one_range_is_two_halves():
    root = parsed(ring_picture(ring([Arc(7, 7, 1, 1)], streams=1)))
    start, end, _, pieces = ends(next(root.iter("path")).get("d"))
    assert pieces == 2
    assert (start - end) % 1 == pytest.approx(GAP, abs=1e-3)


def test_a_large_ring_has_shades():
    width = RING // ARCS_MAX
    arcs = [
        Arc(TOKEN_MIN - 1 + n * width, TOKEN_MIN - 1 + (n + 1) * width, n, None)
        for n in range(ARCS_MAX)
    ]
    root = parsed(ring_picture(ring(arcs)))
    shades = [each.get("class") for each in root.iter("path")]
    assert shades[0] == "arc d0"
    assert shades[1] == "arc d1"
    assert shades[-1] == "arc d4"
    assert shades == sorted(shades)


def test_a_key_is_marked_where_its_token_is():
    row = RangeRow(0, 5, 0.1, 1, 12, [])
    for token, turn in ((TOKEN_MIN, 0.0), (0, 0.5), (TOKEN_MAX, 1.0)):
        key = KeyRow(EVIL, token, row, 0, "ab")
        root = parsed(ring_picture(ring([Arc(0, 0, 1, 1)], key=key)))
        (mark,) = [each for each in root.iter("path") if each.get("class") == "key"]
        x, y = map(float, re.match(r"M(\S+) (\S+)", mark.get("d")).groups())
        found = math.atan2(x - CENTRE, CENTRE - y) / (2 * math.pi)
        assert abs(found - turn) % 1 == pytest.approx(0, abs=1e-3) or abs(found - turn) > 0.999


def test_streams_of_a_very_wide_ring_are_not_drawn():
    arcs = [Arc(n, n + 1, 1, 50) for n in range(100)]
    root = parsed(ring_picture(ring(arcs, streams=5_000)))
    assert not [each for each in root.iter("path") if "shard" in each.get("class")]


def bars(svg):
    return [
        (each.get("class"), float(each.get("x")), float(each.get("width")))
        for each in parsed(svg).iter("rect")
    ]


def test_bars_are_where_their_times_are():
    span = LaneSpan(1_000, 2_000, 1_500)
    found = lane_picture(
        [
            LaneBar(900, 1_100, "k0", "clipped at the beginning"),
            LaneBar(1_250, None, "k1", "still"),
            LaneBar(1_300, 1_300, "k2", "a moment"),
            LaneBar(100, 200, "k3", "before"),
            LaneBar(2_100, None, "k4", "after"),
            LaneBar(2_000, 2_000, "k5", "at the very end"),
        ],
        span,
        "lane",
    )
    assert bars(found) == [
        ("k0", 0.0, 100.0),
        ("k1", 250.0, 750.0),
        ("k2", 300.0, WIDTH_MIN),
        ("k5", WIDTH - WIDTH_MIN, WIDTH_MIN),
    ]
    (line,) = parsed(found).iter("line")
    assert (line.get("class"), float(line.get("x1")), line.get("y2")) == ("at", 500.0, str(HEIGHT))


def test_what_was_not_looked_up_is_marked_and_a_moment_outside_is_not():
    found = lane_picture([], LaneSpan(0, 100, 500), EVIL, known_ms=40)
    assert bars(found) == [("unknown", 0.0, 400.0)]
    assert not list(parsed(found).iter("line"))
    assert bars(lane_picture([LaneBar(5, 6, "k0", "")], LaneSpan(5, 5, 5), "no time at all")) != []


def test_branches_are_drawn_from_their_parent():
    hashes = [bytes([n]) * 16 for n in range(4)]
    winner = Leaf(True, Revision(3, hashes[3]), (hashes[1], hashes[0]))
    loser = Leaf(False, Revision(2, hashes[2]), (hashes[0],))
    root = parsed(tree_picture(revision_tree(Tree.of([winner, loser]))))
    kinds = [each.get("class") for each in root.iter("circle")]
    assert sorted(kinds) == ["node deleted", "node inner", "node inner", "node wins"]
    places = {each.get("class"): (each.get("cx"), each.get("cy")) for each in root.iter("circle")}
    assert places["node wins"][1] != places["node deleted"][1]
    edges = [each for each in root.iter("path") if each.get("class") == "edge"]
    assert len(edges) == 3
    assert root.get("aria-label") == "4 revisions in 2 branches"
    older = parsed(tree_picture(revision_tree(Tree((Leaf(True, Revision(9, hashes[0])),)))))
    assert [each.get("class") for each in older.iter("path")] == ["edge older"]

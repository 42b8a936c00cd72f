"""A document's revisions as a picture: branches from left to right, the winner's on top."""

from __future__ import annotations

from markupsafe import Markup

from cdcmeta.ui.revisions import RevisionTree
from cdcmeta.ui.svg import picture, shape, text

STEP, LANE = 44, 36
MARGIN_X, MARGIN_Y, RADIUS = 34, 22, 8
LABELS = {"wins": "the winner", "conflict": "a conflict", "deleted": "deleted", "inner": ""}


def tree_picture(tree: RevisionTree) -> Markup:
    """Return the newest revisions of a document's branches; each is labelled with its position."""
    parts = []
    places = [(MARGIN_X + n.column * STEP, MARGIN_Y + n.lane * LANE) for n in tree.nodes]
    for node, (x, y) in zip(tree.nodes, places, strict=True):
        if node.parent is not None:
            from_x, from_y = places[node.parent]
            bend = f"M{from_x} {from_y} C{from_x + STEP // 2} {from_y} {from_x + STEP // 2} {y}"
            parts.append(shape("path", "edge", d=f"{bend} {x} {y}"))
        elif tree.older and node.column == 0:
            parts.append(shape("path", "edge older", d=f"M{x - MARGIN_X + 4} {y} L{x} {y}"))
    for node, (x, y) in zip(tree.nodes, places, strict=True):
        title = ": ".join(filter(None, (node.rev, LABELS[node.kind])))
        parts.append(shape("circle", f"node {node.kind}", title, cx=x, cy=y, r=RADIUS))
        parts.append(text(x, y + RADIUS + 11, node.rev.partition("-")[0], "middle small"))
    width = 2 * MARGIN_X + (tree.columns - 1) * STEP
    height = 2 * MARGIN_Y + (tree.lanes - 1) * LANE
    title = f"{len(tree.nodes)} revisions in {tree.lanes} branches"
    return picture(width, height, title, parts, name="revisions")

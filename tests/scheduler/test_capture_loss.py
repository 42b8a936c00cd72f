"""Facts 1.6: who dies when, and what becomes of the table."""

from cdcmeta.scheduler import AddTable, CaptureLost, Token, rebuilt

from .making import BEFORE, TABLE, Story, says


def dies(story: Story, capture: str) -> str:
    return story.happens(CaptureLost(capture))


def test_the_secondary_dies_in_prepare():
    story = Story()
    story.happens(AddTable(TABLE, "a"))
    assert dies(story, "a") == ""
    assert str(story) == "ABSENT"


def test_who_was_promoted_dies_in_commit():
    story = Story()
    story.happens(AddTable(TABLE, "a"))
    story.says("a", "Pd")
    assert str(story) == "COMMIT a:P"
    assert dies(story, "a") == ""
    assert str(story) == "ABSENT"


def test_the_primary_dies_while_it_replicates():
    story = Story().added("a")
    assert dies(story, "a") == ""
    assert str(story) == "ABSENT"


def test_the_primary_of_a_move_dies_in_prepare():
    story = Story().added("a").moving("b")
    assert dies(story, "a") == ""
    assert str(story) == "PREPARE b:S"
    assert story.says("b", "Pd") == "commit b"
    assert story.says("b", "R") == ""
    assert str(story) == "REPLICATING b:P"


def test_both_of_a_move_die_in_prepare():
    story = Story().added("a").moving("b")
    dies(story, "a")
    assert dies(story, "b") == ""
    assert str(story) == "ABSENT"


def test_the_secondary_of_a_move_dies_in_prepare():
    story = Story().added("a").moving("b")
    assert dies(story, "b") == ""
    assert str(story) == "REPLICATING a:P"


def test_the_primary_of_a_move_dies_in_commit():
    story = Story().added("a").moving("b")
    assert story.says("b", "Pd") == "remove a"
    assert dies(story, "a") == "commit b"
    assert str(story) == "COMMIT b:P"
    assert dies(story, "b") == ""
    assert str(story) == "ABSENT"


def secondary_died_in_commit() -> Story:
    story = Story().added("a").moving("b")
    assert story.says("b", "Pd") == "remove a"
    assert dies(story, "b") == ""
    assert str(story) == "COMMIT a:P"
    return story


def test_the_secondary_dies_in_commit_and_the_primary_goes_on():
    """Its removal was lost, or has not come yet."""
    story = secondary_died_in_commit()
    assert story.says("a", "R") == ""
    assert str(story) == "REPLICATING a:P"


def test_the_secondary_dies_in_commit_and_the_primary_has_stopped():
    story = secondary_died_in_commit()
    assert story.says("a", "Sd") == ""
    assert str(story) == "ABSENT"


def test_the_secondary_dies_in_commit_and_the_primary_has_nothing_more():
    """v3 lets the same capture prepare again; here whoever has least gets the table next."""
    story = secondary_died_in_commit()
    assert story.says("a", "A") == ""
    assert str(story) == "ABSENT"


def test_the_secondary_dies_in_commit_and_the_primary_is_stopping():
    """v3 ignores it; here nobody gets the table before it has stopped."""
    story = secondary_died_in_commit()
    assert story.says("a", "Sg") == ""
    assert str(story) == "ABSENT a:U"
    story.happens(AddTable(TABLE, "c"))
    assert story.says("c", "Pd") == ""
    assert story.says("a", "Sd") == "commit c"


def test_who_took_over_dies_in_commit():
    story = Story().added("a").moving("b")
    story.says("b", "Pd")
    assert story.says("a", "Sd") == "commit b"
    assert dies(story, "b") == ""
    assert str(story) == "ABSENT"


def test_the_only_one_dies_that_a_new_owner_found_prepared():
    """#6477: stuck after a capture stopped while it was added."""
    found = [("a", says("a", "Pd", Token(4, 1)).status)]
    story = Story(rebuilt(TABLE, BEFORE, found))
    assert str(story) == "COMMIT a:S"
    assert dies(story, "a") == ""
    assert str(story) == "ABSENT"


def test_a_capture_that_nobody_knows_dies():
    story = Story().added("a")
    assert dies(story, "b") == ""
    assert str(story) == "REPLICATING a:P"


def test_one_that_was_stopping_dies_while_another_waits():
    """v3 ignores it in Prepare, and Commit waits for it for ever: B4."""
    story = Story().added("a").moving("b")
    story.says("a", "Sg")
    assert str(story) == "PREPARE a:U b:S"
    assert story.says("b", "Pd") == ""
    assert dies(story, "a") == "commit b"
    assert str(story) == "COMMIT b:P"

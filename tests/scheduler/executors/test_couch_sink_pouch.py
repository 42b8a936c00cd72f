"""The same with PouchDB's revision trees, an implementation that is not ours."""

import os
import subprocess
from pathlib import Path

import pytest
from couch_http.pouched import installed

from . import test_couch_cut as cut
from . import test_couch_fencing as fencing
from . import test_couch_replica as replica
from . import test_couch_sink as sink
from .between import Between
from .mirror import Mirror

pytestmark = pytest.mark.slow

SERVER = Path(__file__).parent / "pouch_server.js"


@pytest.fixture(scope="module")
def pouch(pytestconfig):
    packages = installed(pytestconfig.rootpath / ".pytest_cache" / "pouch")
    environment = {**os.environ, "NODE_PATH": str(packages / "node_modules")}
    process = subprocess.Popen(
        ["node", str(SERVER)], stdout=subprocess.PIPE, text=True, env=environment
    )
    port = process.stdout.readline().strip()
    assert port, "the server did not start"
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.communicate()


@pytest.fixture
def mirror(pouch):
    mirror = Mirror(pouch)
    yield mirror
    mirror.close()


@pytest.fixture
def between(pouch):
    with Between(pouch) as between:
        yield between


source, executors = sink.source, sink.executors
documents, copying = cut.documents, cut.copying
test_content = sink.test_content_equals_the_sources_after_state_updates_removals_and_re_creations
test_repeated_batches_change_nothing = sink.test_repeated_batches_change_nothing
test_an_earlier_assignment = fencing.test_an_earlier_assignment_that_wakes_up_changes_nothing
test_documents_on_their_way = fencing.test_documents_on_their_way_do_not_win_over_later_ones
test_a_checkpoint_on_its_way = fencing.test_a_checkpoint_on_its_way_does_not_replace_a_later_one
test_a_lost_answer_is_no_conflict = fencing.test_a_lost_answer_is_no_conflict
test_random_writers = fencing.test_random_writers_that_overtake_each_other_make_one_chain
test_replicated_documents = replica.test_documents_conflicts_and_removals_are_the_same
test_a_replica_is_fenced = replica.test_an_earlier_assignment_is_fenced
test_removed_after_a_pause = cut.test_a_document_that_was_removed_after_a_pause_is_removed
test_only_edited = cut.test_a_document_that_was_only_edited_has_no_conflict
test_deleted_leaves = cut.test_of_deleted_leaves_at_one_position_the_sources_wins
test_edited_there = cut.test_what_was_edited_there_remains


@pytest.mark.long
def test_cut_at_random(documents, mirror, copying):
    cut.test_whatever_the_source_cuts_the_same_leaves_are_living(documents, mirror, copying)

"""What a fast run leaves to the whole one: it has less than two minutes, and needs only Python."""

import pytest

SLOW_FOLDERS = {"captures", "crash", "etcd", "property", "spark", "tour"}
"""Spark's, those of servers and of killed processes, and random programs."""
SLOW_FILES = {
    "test_archive_down",
    "test_archive_faults",
    "test_archive_objects",
    "test_arrow_compacted",
    "test_arrow_costs",
    "test_batches_of_rows",
    "test_broken_captures",
    "test_bulk_cost",
    "test_cdc_log",
    "test_cli_docs",
    "test_cli_etcd",
    "test_cli_exits",
    "test_cli_help",
    "test_cli_processes",
    "test_cli_reading",
    "test_cli_recording",
    "test_cli_ticking",
    "test_cli_times",
    "test_cli_writing",
    "test_clocks_apart",
    "test_compare",
    "test_consuming",
    "test_couch_batch_size",
    "test_couch_bodies",
    "test_couch_browser",
    "test_couch_bulk",
    "test_couch_changes",
    "test_couch_cli",
    "test_couch_clients",
    "test_couch_databases",
    "test_couch_endpoints",
    "test_couch_feeds",
    "test_couch_heads",
    "test_couch_limits",
    "test_couch_pouch",
    "test_couch_processes",
    "test_couch_session",
    "test_couch_sharing",
    "test_couch_sink_pouch",
    "test_couch_stored_bytes",
    "test_couch_updates",
    "test_dumping",
    "test_election_ends",
    "test_elections",
    "test_encoding",
    "test_engine_columns",
    "test_engine_leases",
    "test_engine_model",
    "test_engine_pieces",
    "test_engine_scanning",
    "test_exploration",
    "test_extras",
    "test_flaky_engine",
    "test_fold_changes",
    "test_following_log",
    "test_foreign_data",
    "test_generations_cli",
    "test_holding_on",
    "test_hostile_dumps",
    "test_importing",
    "test_importing_among_others",
    "test_in_nobodys_way",
    "test_left_switches",
    "test_lmdb_lease_records",
    "test_lmdb_leases",
    "test_lmdb_processes",
    "test_lmdb_readonly",
    "test_observing",
    "test_observing_holding_on",
    "test_overtaking",
    "test_packaging",
    "test_progress",
    "test_protocol_exhaustive",
    "test_protocol_group_outcomes",
    "test_protocol_groups",
    "test_protocol_interrupts",
    "test_protocol_simulation",
    "test_protocol_undecidable",
    "test_recording_killed",
    "test_restored_engines",
    "test_ring_filling",
    "test_scheduler_simulation",
    "test_sessions",
    "test_simulation",
    "test_switching",
    "test_topologies",
    "test_traffic",
    "test_two_processes",
    "test_watching",
    "test_windows",
}
"""They start processes or servers, or took more than four seconds on memory and LMDB together."""


def reason_when_fast(item: pytest.Item) -> str:
    """Return why a test is left to `make test`, "" when it is not."""
    if item.path.parent.name in SLOW_FOLDERS or item.path.stem in SLOW_FILES:
        return "slow ones, and those of Spark and other processes"
    if item.get_closest_marker("forks"):
        return "tests that fork"
    if {"s3", "proxy"} & set(getattr(item, "fixturenames", ())) or "s3" in item.name:
        return "tests on a server of S3's protocol"
    needs_etcd = {"etcd", "etcd_cli"} & set(getattr(item, "fixturenames", ()))
    is_on_etcd = any(engine in item.name for engine in ("etcd", "three nodes"))
    return "tests on etcd" if needs_etcd or is_on_etcd else ""

"""docs/cli.md and docs/etcd.md are what happens: every session runs, the tables are the code's."""

import os
import re
import shlex

import pytest
from cli_runner import Cli
from cli_sessions import Samples, check_sessions, steps
from etcd_server import EtcdServer
from etcd_server.programs import etcdctl

from snapkv.cli.app import COMMANDS
from snapkv.cli.exits import MEANINGS
from snapkv.cli.importing import FROM_VARIABLES
from snapkv.engine.etcd.options import VARIABLES
from snapkv.store.location import _ENGINES
from tests.project.pages import ROOT, pages_run_by

pytestmark = pytest.mark.slow

(PAGE,) = pages_run_by("test_every_session_gives_what_it_shows_on_lmdb")
DOCUMENT = (ROOT / PAGE).read_text()
ETCD_PAGES = pages_run_by("test_every_session_on_etcd_gives_what_it_shows")
ETCD_DOCUMENT = (ROOT / ETCD_PAGES[0]).read_text()
SERVER = "localhost:2379"


def test_every_session_gives_what_it_shows_on_lmdb(cli: Cli) -> None:
    samples = check_sessions(cli, PAGE, DOCUMENT)
    assert len(set(samples.actual.values())) == len(samples.actual)


@pytest.mark.parametrize("page", ETCD_PAGES)
def test_every_session_on_etcd_gives_what_it_shows(
    page: str, etcd_cli: Cli, etcd: EtcdServer
) -> None:
    """With the server of the test for the one of the document, and the etcdctl beside it."""
    etcd_cli.patch.setenv("ETCDCTL_ENDPOINTS", etcd.endpoint)
    etcd_cli.patch.setenv("PATH", str(etcdctl().parent), prepend=os.pathsep)
    for variable in ("SNAPKV_ETCD_USER", "SNAPKV_ETCD_PASSWORD"):
        etcd_cli.patch.delenv(variable, raising=False)
    text = (ROOT / page).read_text()
    here = text.replace(SERVER, etcd.endpoint)
    assert here != text
    assert len(list(steps(here))) > 5
    check_sessions(etcd_cli, page, here)


def test_every_option_and_variable_of_etcd_is_told() -> None:
    rows = "\n".join(re.findall(r"^\| `.*$", ETCD_DOCUMENT, re.MULTILINE))
    for option in _ENGINES["etcd"][1]:
        assert f"`{option}`" in rows, option
    for name in VARIABLES.values():
        assert f"`{name}`" in rows, name
    for name in FROM_VARIABLES.values():
        assert f"`{name}`" in rows, name
        assert f"`{name}`" in DOCUMENT, name


def test_every_command_has_a_section_and_a_session() -> None:
    shown = {shlex.split(line)[0] for c, _ in steps(DOCUMENT) for line in c.split("snapkv ")[1:]}
    for command in COMMANDS:
        assert re.search(rf"^## .*\b{command}\b", DOCUMENT, re.MULTILINE), command
        assert command in shown | {"archive", "tour"}, f"{command} has no session"


def test_the_table_of_exit_codes_is_that_of_the_code() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", DOCUMENT, re.MULTILINE))
    assert rows == {str(int(code)): meaning for code, meaning in MEANINGS.items()}


def test_help_shows_every_exit_code(cli: Cli) -> None:
    cli.patch.setenv("COLUMNS", "200")
    shown = " ".join(cli.ok("--help").out.split())
    for code, meaning in MEANINGS.items():
        assert f"{int(code)} = {meaning}" in shown


def test_a_sample_means_one_moment() -> None:
    samples, a, b = Samples(), "2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.002Z"
    assert samples.match("2000-01-01T00:00:00Z is x\n", f"{a} is x\n")
    assert not samples.match("2000-01-01T00:00:00Z\n", f"{b}\n")
    assert samples.match("... 2000-01-01T00:00:00Z\n", f"any\nthing {a}\n")
    assert not samples.match("x\n", "y\n")


@pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="the sessions need bash")
def test_the_document_has_sessions() -> None:
    assert len(list(steps(DOCUMENT))) > 50

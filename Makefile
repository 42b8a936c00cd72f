# Two commands for a new clone: `make tour` and `make test`. Both do their own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
RELEASE_ARGS ?=
# Clones for make tour-all, and its options: TOUR_ARGS="./service --embedded"
TOUR_ARGS ?=
# Each a path of its own, with its etcdctl and etcdutl beside it: make test-etcd ETCDS="~/3.6/etcd ~/3.7/etcd"
ETCDS ?= $(shell command -v etcd etcd-3.5 etcd-3.6 etcd-3.7) $(wildcard build/kubernetes/etcd)
# Many tests wait for leases, deadlines and servers: on two cores five take 8:40 minutes, four 9:20.
JOBS ?= 5
# Besides the PySpark of `make test`; each has a virtual environment of its own.
OLD_SPARKS := 4.0 4.1

# Copied, not linked, into the environment: Spark and pytest look for them beside the packages.
COPIED := snapkv/spark/pyspark_snapkv.py cdcmeta/spark/pyspark_cdcmeta.py snapkv/pytest_plugin.py

# What the site is made of: pages, pictures, and the docstrings of both packages.
PAGES := $(wildcard *.md) $(shell find docs snapkv cdcmeta examples benchmarks/results \
  -name '*.md' -o -name '*.py' -o -name '*.svg' -o -name '*.png' -o -name '*.css')

# Every process of the tests that may not keep compiled Python compiles all of snapkv, or all tests.
TEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.PHONY: help tour tour-spark tour-all java-found test test-fast test-all test-etcd lint docs soak release-check bench clean
help:
	@echo "make tour   a store filled with this clone's git history, and true answers about it"
	@echo "make tour-spark  make tour-all, and Spark's answers: downloads PySpark (450 MB), needs Java 17"
	@echo "make tour-all  captures replicate git histories while they are killed; true answers from all parts"
	@echo "make test   the tests, but for the long ones"
	@echo "make test-fast  a minute of them: memory and LMDB, no etcd, Java or Node"
	@echo "make test-all  make test, and then the long ones: killed drivers, large data, whole tours"
	@echo "make test-etcd  what depends on the version of etcd, on each etcd of ETCDS='PATH PATH ...'"
	@echo "make lint   formatting, style and types, and the documentation as a site"
	@echo "make docs   the documentation as a site, in build/site"
	@echo "make soak   the random tests for longer, etcd's in full, Spark's on older versions of it"
	@echo "make release-check  what must hold before a release: builds, installs and tries everything"
	@echo "make bench  the benchmarks; results go to benchmarks/results"
	@echo "make clean  remove what the others made"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "snapkv needs Python 3.11 or newer; say which: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "no virtual environment: install Debian's python3-venv" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml $(COPIED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-spark: $(VENV)/.installed
	@echo "PySpark is 450 MB to download, once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[spark]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml $(COPIED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $(VENV)/.installed $(VENV)/.installed-spark $@

$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

.PRECIOUS: $(VENV)-spark%/.installed
$(VENV)-spark%/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark==$*.*'
	@touch $@

$(VENV)-release/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

$(VENV)/.installed-lint: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[lint]'
	@touch $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

# A link that leads nowhere, or a page that is in no menu, ends the build.
build/site/index.html: $(VENV)/.installed-docs mkdocs.yml $(PAGES)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@touch $@

tour: $(VENV)/.installed
	$(BIN)/snapkv tour

tour-all: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[archive,generations,ui]' 'duckdb>=1.1'
	PYTHONPATH=tests $(BIN)/python -m system.everything $(TOUR_ARGS)

tour-spark: java-found $(VENV)/.installed-spark
	@$(MAKE) --no-print-directory tour-all

# Before 450 MB are downloaded in vain.
java-found:
	@command -v java > /dev/null || [ -x "$$JAVA_HOME/bin/java" ] || \
	  { echo "no Java: Spark needs Java 17 or newer; make tour-all does without" >&2; exit 1; }

# Each process of the tests collects all of them, and would compile all of them if they were new.
$(VENV)/.compiled: $(VENV)/.installed-test
	@$(TEST) --collect-only -qq -p no:cacheprovider tests/[a-e]*/ > /dev/null 2>&1 & \
	  $(TEST) --collect-only -qq -p no:cacheprovider tests/[f-z]*/ > /dev/null 2>&1; wait
	@touch $@

test: $(VENV)/.installed-test $(VENV)/.compiled
	$(TEST) -n $(JOBS) --dist loadgroup --speed test $(PYTEST_ARGS)

test-all: test
	$(TEST) -n $(JOBS) --dist loadgroup --speed long $(PYTEST_ARGS) || [ $$? = 5 ]  # 5: none

test-fast: $(VENV)/.installed-test $(VENV)/.compiled
	$(TEST) -n 2 --dist loadgroup --speed fast $(PYTEST_ARGS)

test-etcd: $(VENV)/.installed-test $(VENV)/.compiled
	for etcd in $(ETCDS); do $$etcd --version | head -1 && SNAPKV_TEST_ETCD=$$etcd $(TEST) -n $(JOBS) \
	  --dist loadgroup $(PYTEST_ARGS) tests/engine tests/conformance tests/copying tests/cli/test_cli_docs.py \
	  tests/cli/test_cli_snapshots.py \
	  || exit; done

lint: $(VENV)/.installed-lint docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .  # where an import stands hangs on other files
	$(BIN)/mypy

docs: build/site/index.html

soak: $(VENV)/.installed-test soak-kubernetes $(OLD_SPARKS:%=soak-spark%)
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest tests/archive tests/base tests/changes tests/cli \
	  tests/committer tests/conformance tests/coordination tests/copying tests/couch_http tests/engine \
	  tests/fleet tests/generations tests/project tests/protocol tests/reading tests/scheduler tests/spark \
	  tests/store tests/system tests/timeline tests/ui

# Needs Go; builds the servers once, in some ten to twenty minutes.
soak-kubernetes: $(VENV)/.installed-test
	tools/kubernetes/build build/kubernetes
	$(BIN)/python -m tools.kubernetes trial build/trial

soak-spark%: $(VENV)-spark%/.installed
	$(VENV)-spark$*/bin/python -m pytest tests/spark

release-check: $(VENV)-release/.installed
	$(VENV)-release/bin/python -m tools.release $(RELEASE_ARGS)

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VENV)-spark* $(VENV)-release .tour .tour-all build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache

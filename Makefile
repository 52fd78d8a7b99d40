# Everything runs in .venv, which is made on first use and again whenever pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The suite waits more than it works: three at a time, also on two cores.
SUITE := -n 3 --dist worksteal
# It starts our programs hundreds of times: none compiles them anew, also where Python was told to write no bytecode.
COMPILED := $(BIN)/python -m compileall -q core tui tests/doubles

.PHONY: demo test suite lint bench screenshots venv clean

demo: $(READY)
	$(BIN)/vf-tui demo

test: $(READY)
	@$(COMPILED)
	$(BIN)/pytest $(SUITE)

# As CI does: what fails beside others gets a second chance alone, and is told as flaky.
suite: $(READY)
	@$(COMPILED)
	$(BIN)/python .ci/suite.py $(SUITE)

lint: $(READY)
	$(BIN)/ruff format --check core tui tests
	$(BIN)/ruff check core tui tests
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m tests.perf

screenshots: $(READY)
	$(BIN)/python tests/perf/screenshots.py docs/img

venv: $(READY)

# A virtual environment without pip (Debian without python3-venv) is made by virtualenv or uv where they are.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 2; }
	@echo "Installing into $(VENV) (a minute or more)…"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); uv venv --seed $(VENV); } || { echo "No way to make a virtual environment: install python3-venv or uv."; exit 2; }
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'; else uv pip install -q --python $(BIN)/python -e '.[dev]'; fi
	@touch $@

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

# `make demo` and `make test` set up all they need in .venv; nothing else is required but Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
ifneq ($(wildcard ../shared/data),)
export NFK_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help demo test test-core families tasks paper bench peers bench-quick docs lint clean

help:
	@echo "make demo         embed 5,000 real digits with a small network; table and figures (minutes)"
	@echo "make test         the whole test suite"
	@echo "make test-core    the tests of the library itself: no experiments, no commands, pages or packaging (two minutes)"
	@echo "make families     every family of models on real data: results/families.json and the tables in docs/families.md"
	@echo "make tasks        probing, few labels, distillation, inversion, ... on real data: results/tasks/ (hours; resumes)"
	@echo "make paper        the paper's tables on networks that others trained: results/ and docs/results.md (hours; resumes)"
	@echo "make bench        the benchmarks of docs/results.md, as JSON in results/core.json (about half an hour)"
	@echo "make peers        nfk against other libraries, each in an environment of its own: docs/benchmarks.md (hours; resumes)"
	@echo "make bench-quick  the same at a small size (under a minute)"
	@echo "make docs         the documentation as pages: docs/_build/html/index.html"
	@echo "make lint         ruff and pyright"

$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nfk needs Python 3.11 or newer; name one with make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[demo,reproduction]'
	@touch $@

# torch pinned and in one command with the rest, so that no other package chooses its version.
$(VENV)/ready-test: $(VENV)/ready
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[demo,reproduction,test]' torch==2.13.0
	@touch $@

demo: $(VENV)/ready
	$(VENV)/bin/nfk demo --force

test: $(VENV)/ready-test
	$(RUN) -m pytest

test-core: $(VENV)/ready-test
	$(RUN) -m pytest -m "not reproduction and not around"

families: $(VENV)/ready
	$(RUN) -m reproduction families
	$(RUN) -m benchmarks.report

tasks: $(VENV)/ready
	$(RUN) -m reproduction tasks
	$(RUN) -m benchmarks.report

paper: $(VENV)/ready-test
	$(RUN) -m reproduction paper
	$(RUN) -m benchmarks.report

bench: $(VENV)/ready
	$(RUN) -m benchmarks.core --output results/core.json > /dev/null
	$(RUN) -m benchmarks.report

peers: $(VENV)/ready-test
	$(RUN) -m benchmarks.peers --resume --contestants all > /dev/null
	$(RUN) -m benchmarks.report

bench-quick: $(VENV)/ready
	$(RUN) -m benchmarks.core --quick

docs: $(VENV)/ready-test
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[docs]' torch==2.13.0
	$(RUN) -m sphinx --fail-on-warning --keep-going --quiet --fresh-env --write-all -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html: open it in a browser"

lint: $(VENV)/ready-test
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/pyright

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache demo docs/_build

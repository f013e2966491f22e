# make demo   analyze a real capture, in an environment of its own
# make test   install what the tests need, the browser included, and run them
# make test-traceview   traceview's tests, in an environment of their own, without torch
# make test-instrument  the tests that need torch
# make structure   measures of the code beside their targets, and import circles
# make check  lint, types, import contracts, the pages' scripts, the structure, then the tests of both: what CI runs
# make nsys   unpack a real nsys into .nsys where PATH has none, for the end-to-end test
# make trace-processor  have Perfetto's trace_processor in .trace-processor, for the tests of the export
# make bench  speed and memory against a plain SQL scan
# make docs   build the documentation site in out/docs
# make dist   build the wheel and the sdist in dist/, and check both; a release does the same
# make screenshots  draw the manual's pictures anew, in the browser that the tests use
# make check-screenshots  draw them anew, and fail where one of the manual is out of date
# make lint-scripts  types and format of the pages' scripts, where there is Node; npm run format formats them
# make clean  remove what the others made

PYTHON ?= python3
VENV := .venv
WITHOUT_TORCH := .venv-traceview
EXTRA := test
BIN := $(VENV)/bin
SOURCES := $(shell find traceview instrument -type f -not -name '*.pyc')
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
DEMO := samples/dual.sqlite

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: dist docs help demo test test-traceview test-instrument check lint lint-scripts structure bench clean browser screenshots check-screenshots nsys trace-processor

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/installed
	@mkdir -p out
	@$(BIN)/traceview analyze $(DEMO) --html out/dual.overlap.html --json out/dual.json
	@echo
	@echo "Open it in any browser:   file://$(CURDIR)/out/dual.overlap.html"
	@echo "Its figures as JSON:       out/dual.json"
	@echo "Your own capture:          $(BIN)/traceview analyze report.sqlite"

test: $(VENV)/installed-tests browser
	OMP_NUM_THREADS=1 POLARS_MAX_THREADS=2 $(BIN)/python -m pytest -n 3 --dist loadfile $(PYTEST)

test-traceview:
	@$(MAKE) --no-print-directory test VENV=$(WITHOUT_TORCH) EXTRA=test-traceview PYTEST='--ignore=tests/instrument $(PYTEST)'

test-instrument:
	@$(MAKE) --no-print-directory test PYTEST='tests/instrument $(PYTEST)'

# In turn, also under make -j: two runs of the tests at a time are short of memory.
check: lint structure
	@$(MAKE) --no-print-directory test-traceview
	@$(MAKE) --no-print-directory test-instrument

structure: $(VENV)/installed
	@$(BIN)/python scripts/structure

lint: $(VENV)/installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory lint-scripts; \
	else echo "No Node: the pages' scripts are not checked. Debian has it as nodejs and npm."; fi

lint-scripts: node_modules/.package-lock.json
	npm run --silent check

node_modules/.package-lock.json: package.json package-lock.json
	npm ci --silent --no-audit --no-fund
	@touch $@

bench: $(VENV)/installed
	$(BIN)/python benchmarks/run $(BENCH)

docs: $(VENV)/installed-docs
	$(BIN)/python scripts/column-reference > docs/columns.md
	$(BIN)/python scripts/rule-reference > docs/rules.md
	mkdir -p docs/schemas
	$(BIN)/python scripts/json-schema docs/schemas
	$(BIN)/python scripts/render-notebooks docs/notebooks
	sed "s#](docs/#](#g" CHANGELOG.md > docs/changelog.md
	$(BIN)/zensical build --strict
	@echo "Open it in any browser:   file://$(CURDIR)/out/docs/index.html"
	@echo "Its search needs a server: $(PYTHON) -m http.server --directory out/docs"

dist: $(VENV)/installed-dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

screenshots: $(VENV)/installed-tests browser
	$(BIN)/python scripts/make-screenshots

check-screenshots: $(VENV)/installed-tests browser
	$(BIN)/python scripts/make-screenshots --check

browser:
	@command -v chromium >/dev/null || scripts/need-debian-packages chromium fonts-dejavu-core

nsys:
	@scripts/need-nsys .nsys

trace-processor:
	@scripts/need-trace-processor .trace-processor

clean:
	rm -rf $(VENV) $(WITHOUT_TORCH) out dist benchmarks/data .nsys .trace-processor node_modules

# Debian ships Python without ensurepip, so `python3 -m venv` fails there until python3-venv is installed.
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "$(PYTHON) is older than 3.10: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || scripts/need-debian-packages python3-venv
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/made pyproject.toml constraints.txt README.md $(SOURCES)
	@echo "Installing traceview and what it needs into $(VENV)"
	@$(PIP) .
	@touch $@

$(VENV)/installed-tests: $(VENV)/made pyproject.toml constraints.txt README.md $(SOURCES)
	@echo "Installing traceview and what its tests need into $(VENV)"
	@$(PIP) '.[$(EXTRA)]'
	@touch $(VENV)/installed $@

$(VENV)/installed-dist: $(VENV)/made pyproject.toml constraints.txt
	@$(PIP) 'build>=1.2' 'twine>=6.1' 'check-wheel-contents>=0.6'
	@touch $@

$(VENV)/installed-docs: $(VENV)/made pyproject.toml constraints.txt README.md $(SOURCES)
	@echo "Installing traceview and what its documentation needs into $(VENV)"
	@$(PIP) '.[docs]'
	@touch $@

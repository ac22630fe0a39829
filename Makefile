# Every target makes .venv and installs the package into it first, so that a fresh clone needs only Python and make.
# An existing .venv is reused; PYTHON=python3.12 picks the interpreter for a new one.

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
SERVING := .venv-serving
# the first of these that is new enough; run, not just looked up: version managers leave shims that only complain
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
JOBS ?= 2
FUZZ_SECONDS ?= 600
FUZZ_FIRST ?= 1000000

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-serving check fuzz bench docs clean

help:
	@echo "make demo    build, verify and time a real model against ONNX Runtime"
	@echo "make test    the test suite (JOBS=$(JOBS) processes; TESTS=path or -k name for a part of it)"
	@echo "make test-serving  Triton's own clients and perf_analyzer against ridge serve, in an environment of theirs"
	@echo "make check   ruff, formatting, mypy --strict"
	@echo "make fuzz    hostile models, files and requests, FUZZ_SECONDS=$(FUZZ_SECONDS) of each kind (FUZZ_FIRST: the first seed)"
	@echo "make bench   the CPU table in bench/results (BENCH_ARGS=--quick for a short one)"
	@echo "make docs    write the generated pages of docs/, and the site in build/site"
	@echo "make clean   remove caches and outputs; .venv and downloaded models stay"

venv: $(STAMP)

$(PY):
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(STAMP): pyproject.toml | $(PY)
	@echo "installing ridgeline and its dependencies into $(VENV) (about 1.2 GB, most of it torch)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(VENV)/bin/ridge demo

# one thread per worker: the suite checks results, and pools of two workers on two cores only wait for each other;
# compiled modules are kept, whatever the environment says: tests start hundreds of processes that import them
test: $(STAMP)
	@OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $(JOBS) --dist loadfile $(TESTS)

# Triton's clients need another protobuf than ours, so they have an environment of their own; where perf_analyzer
# cannot be had, missing.txt says why, and the next run tries again
$(SERVING)/.installed: tests/serving_clients/requirements.txt tests/serving_clients/fetch_perf_analyzer.py
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "installing Triton's clients and perf_analyzer into $(SERVING) (about 150 MB)"
	@test -x $(SERVING)/bin/python || $(PYTHON) -m venv $(SERVING)
	@$(SERVING)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/serving_clients/requirements.txt
	@$(SERVING)/bin/python tests/serving_clients/fetch_perf_analyzer.py $(SERVING)/perf_analyzer
	@test -e $(SERVING)/perf_analyzer/missing.txt || touch $@

test-serving: $(STAMP) $(SERVING)/.installed
	@OMP_NUM_THREADS=1 $(SERVING)/bin/python -m pytest -c tests/serving_clients/pytest.ini -p no:cacheprovider \
		--confcutdir tests/serving_clients tests/serving_clients $(SERVING_ARGS)

check: $(STAMP)
	@$(PY) -m ruff check --no-cache .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

fuzz: $(STAMP)
	@$(PY) tests/fuzz/hostile_many.py --bytes --first $(FUZZ_FIRST) --count 1000000000 --seconds $(FUZZ_SECONDS)
	@$(PY) tests/fuzz/hostile_many.py --first $(FUZZ_FIRST) --count 1000000000 --seconds $(FUZZ_SECONDS)
	@$(PY) tests/serve/fuzz_http.py --seconds $(FUZZ_SECONDS) --seed $(FUZZ_FIRST)

bench: $(STAMP)
	@$(PY) -m bench.models_cpu $(BENCH_ARGS)

$(VENV)/.docs: pyproject.toml | $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: $(STAMP) $(VENV)/.docs
	@$(PY) docs/make_errors.py
	@$(PY) docs/make_json.py
	@$(PY) docs/make_pipeline.py
	@$(PY) docs/make_notebook.py
	@$(PY) docs/make_site.py
	@$(PY) -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

clean:
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache
	find src tests bench docs examples -name __pycache__ -type d -prune -exec rm -rf {} +

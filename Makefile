# Everything from a fresh clone: make demo, make test, make lab. `make help` lists the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP_ARGS ?=
# what shares a Dask cluster, JupyterLab or a browser goes to the same of four processes (tests/conftest.py), of
# which three wait now and then: four fill two cores, and each imports and collects everything for itself
PYTEST ?= $(BIN)/python -m pytest -q -n 4 --dist loadscope --durations=25
# notebooks at small sizes
SMALL := PSBENCH_SMOKE=1 PYTHONPATH=tests:$$PYTHONPATH
export OMP_NUM_THREADS ?= 1
# those that run tests are as many as there are cores: none of them starts others beside them for a sweep
quick unit: export PSBENCH_CORES := 1
# compiled files spare each of the many processes that tests start half a second
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint types javascript unit notebooks nightly lowest prerelease lock lab pictures notebooks-fresh docs bench slurm clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18
	@echo 'PIP_ARGS is passed to pip, for example to choose a smaller build of torch.'

$(VENV)/.python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'psbench needs Python 3.11 or newer; set PYTHON=/path/to/python3.11'; exit 1; }
	@echo '== creating $(VENV) with $(PYTHON)'
	@"$(PYTHON)" -m venv $(VENV) && touch $@

$(VENV)/.run: pyproject.toml $(VENV)/.python
	@echo '== installing psbench (torch is large: this takes a few minutes the first time)'
	@$(BIN)/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) -e . && touch $@

$(VENV)/.lab: $(VENV)/.run
	@echo '== installing JupyterLab and the widgets'
	@$(BIN)/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) -e '.[lab]' && touch $@

$(VENV)/.dev: $(VENV)/.lab
	@echo '== installing what the tests need'
	@$(BIN)/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) -e '.[dev]' && touch $@

demo: $(VENV)/.run  ## compare three strategies, simulated and live, and write demo.html
	@$(BIN)/psbench demo

lab: $(VENV)/.lab  ## open JupyterLab on the notebooks
	@$(BIN)/psbench lab

test: lint  ## every check and every test but the nightly ones
	@$(MAKE) --no-print-directory -j 2 types unit javascript

# what decides: the engine, the parts, and what composes them
QUICK := $(addprefix tests/,core strategies sharding clusters \
  training testing backends/simulated/test_local_workers.py backends/simulated/test_simulation.py \
  test_identities.py test_experiment.py test_refusals*.py test_equivalence_map.py)
quick: $(VENV)/.dev lint  ## the inner loop, under a minute
	@echo '== quick tests: of decisions and updates, but live runs, what is resumed, and the slow ones'
	@$(PYTEST) -n 2 -p no:nbval -m 'not (slow or nightly or dask)' -k '(not live and not resume) or test_live_runs' $(QUICK)

lint: $(VENV)/.dev
	@echo '== ruff'
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev
	@echo '== pyrefly'
	@$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

JS := widgets/psbench_widgets/js
TOOLS := $(JS)/node_modules/.package-lock.json
javascript: $(if $(shell command -v npm),$(TOOLS))  ## types (tsc) and style (eslint) of the panel's JavaScript, where npm is found
	@if [ -e $(TOOLS) ]; then echo '== tsc and eslint' && npm --prefix $(JS) run --silent check; \
	else echo '== no npm, or it installs nothing: the types of the JavaScript are not checked'; fi

$(TOOLS): $(JS)/package-lock.json
	@npm --prefix $(JS) ci --silent --no-audit --no-fund --ignore-scripts && touch $@ || rm -f $@

unit: $(VENV)/.dev
	@echo '== tests, the examples in the docstrings, and the notebooks'
	@PSBENCH_PICTURES=0 $(SMALL) $(PYTEST) -p smoke_sizes -m 'not nightly' --nbval-lax --nbval-kernel-startup-timeout=300 \
	  --ignore=notebooks/site tests notebooks

notebooks: $(VENV)/.dev  ## the notebooks alone
	@echo '== notebooks'
	@$(SMALL) $(PYTEST) -p smoke_sizes --dist loadfile --nbval-lax --nbval-kernel-startup-timeout=300 notebooks

$(VENV)/.uv: $(VENV)/.python
	@$(BIN)/python -m pip install --disable-pip-version-check -q 'uv>=0.5' && touch $@

# other versions than pip would choose, in an environment of their own under build/; UV_TORCH_BACKEND=cpu has uv
# take a torch without CUDA from PyTorch's own index, where that can be reached
lowest: CHOICE := --resolution lowest-direct
prerelease: CHOICE := --prerelease allow
LANE = build/$@/bin
lowest prerelease: $(VENV)/.uv  ## tests with the lowest versions that are allowed, or with pre-releases
	@echo '== an environment with $@ versions'
	@rm -rf build/$@ && $(BIN)/uv venv -q --python '$(PYTHON)' build/$@
	@$(BIN)/uv pip install -q --python $(LANE)/python $(CHOICE) -e '.[test]'
	@echo '== $@: quick tests, the demo with a live run, the command line, the widgets in a browser'
	@$(LANE)/python -m pytest -q -n 2 -p no:nbval -m 'not (slow or nightly or dask)' $(QUICK) tests/test_cli.py
	@cd build/$@ && bin/psbench demo
	@$(LANE)/python -m pytest -q -p no:nbval -n 0 $(LIVE) $(BROWSER)
	@rm -rf build/$@
LIVE := tests/backends/dask/test_tls.py tests/backends/dask/test_own_objects.py
BROWSER := tests/widgets/test_browser_chart.py

lock: $(VENV)/.uv  ## rewrite constraints.txt: the newest version of everything, for any platform
	@$(BIN)/uv pip compile -q --universal --upgrade --no-header --no-annotate --no-emit-index-url \
	  --no-emit-find-links --extra dev --extra docs -o constraints.txt pyproject.toml

TODAY := $(shell date +%Y%m%d)
nightly: test notebooks lowest prerelease slurm  ## and the tests that are long and rarely find anything
	@echo '== long tests'
	@$(PYTEST) -m nightly tests
	@echo '== property tests, with other examples every time'
	@$(PYTEST) --hypothesis-profile=other -m 'hypothesis and not nightly' tests
	@echo "== random schedules of events, other ones every day (seed $(TODAY))"
	@$(BIN)/psbench fuzz --schedules 100000 --seed $(TODAY)
	@echo "== mutants of what is derived and kept (sample $(TODAY))"
	@$(BIN)/python -m tests.mutation --seed $(TODAY) --seconds 10
	@echo "== faults in the engine and the parts, of which the fuzzer is to find nine in ten (sample $(TODAY))"
	@$(BIN)/python -m tests.mutation.fuzz --planted
	@$(BIN)/python -m tests.mutation.fuzz --seed $(TODAY)
	@echo '== the notebooks at full size, whose text must be the stored one'
	@$(BIN)/python -m tests.fresh_notebooks --check
	@echo '== signals at random to the processes of live runs'
	@$(BIN)/python -m tests.chaos --minutes 20
	@$(BIN)/python -m tests.chaos --minutes 10 --one

# as in .ci/run: only where root calls it; the tests start and end SLURM themselves, with files of their own
slurm:  ## install Debian's SLURM for the nightly tests, as root on Debian or Ubuntu
	@if command -v slurmctld slurmd munged >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo '== installing SLURM and munge'; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge; } >/dev/null \
	  || echo 'SLURM could not be installed: its tests will be skipped'; \
	else echo '== no SLURM, and no root to install it: its tests will be skipped'; fi

pictures: $(VENV)/.dev  ## take the pictures of README and texts again: the panel's with its browser tests
	@$(PYTEST) -n 0 -m browser tests/widgets/test_browser_student.py
	@cp build/screenshots/lab.webp notebooks/pictures/
	@$(BIN)/python -m tests.pictures

# two cores at most: notebooks run one after another; `make pictures notebooks-fresh` recreates all stored output
notebooks-fresh: $(VENV)/.dev  ## run the notebooks at full size, and store their outputs (an hour)
	@$(BIN)/python -m tests.fresh_notebooks

$(VENV)/.docs: $(VENV)/.lab
	@echo '== installing Sphinx'
	@$(BIN)/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) -e '.[docs]' && touch $@

docs: $(VENV)/.docs  ## the documentation site, into build/site
	@rm -rf build/site-source && mkdir -p build && cp -r notebooks/site build/site-source
	@$(BIN)/python -m sphinx -q -W --keep-going -b html build/site-source build/site
	@echo 'open build/site/index.html'

$(VENV)/.bench: $(VENV)/.dev
	@echo '== installing Ray and TensorFlow, which are measured beside psbench (large; without them their rows are left out)'
	@$(BIN)/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) -e '.[bench]' \
	  || echo 'they could not be installed'
	@touch $@

bench: $(VENV)/.bench  ## speed against peers, as ratios; build/bench.md is the table for notebooks/site/measurements.md
	@mkdir -p build && $(BIN)/python -m tests.benchmarks --markdown build/bench.md

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis

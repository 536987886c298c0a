# Everything is one `make` away on a machine that has Python 3.11 or newer, pip and make:
#
#   make demo     the whole way once, on real input      make test     every check, every test but interop
#   make bench    the benchmarks                          make soak     a long run under load and kills
#   make interop  against genuine RocketMQ (java, mvn)    make lint     only the static checks
#   make proof    measures anew what docs/proof.md says
#   make format   let ruff format the code                make map      every file in a line
#   make docs     the documents as a site in build/site   make extras   each extra, installed fresh and used once
#   make pythons  the unit tests on every Python there is  make lock     requirements.lock anew from constraints.txt
#   make sbom     what the environment holds, as CycloneDX in build/sbom.json
#   make clean    remove what builds and tests left       make distclean  the environments too
#
# PYTHON=/path/to/python3.12 chooses the Python of a new environment. Pip's settings come from its usual places.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-run
DEV_READY := $(VENV)/.ready-dev
INPUTS := pyproject.toml constraints.txt requirements.lock tools/bootstrap.sh

.DEFAULT_GOAL := help
.PHONY: help demo test bench soak proof interop lint format map docs extras pythons lock sbom clean distclean

help:
	@sed -n 's/^# \{0,1\}//; 3,13p' Makefile

# A stamp is as new as what was installed; a second `make` finds it and does nothing.
$(RUN_READY): $(INPUTS)
	@PYTHON="$(PYTHON)" sh tools/bootstrap.sh $(VENV) spark
	@touch $@

$(DEV_READY): $(INPUTS)
	@PYTHON="$(PYTHON)" sh tools/bootstrap.sh $(VENV) spark,dev
	@touch $(RUN_READY) $@

demo: $(RUN_READY)
	@$(BIN)/rocketcrew demo $(ARGS)

test: $(DEV_READY)
	@$(BIN)/python tools/check.py all

lint: $(DEV_READY)
	@$(BIN)/python tools/check.py static

format: $(DEV_READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEV_READY)
	@$(BIN)/python bench/run.py $(ARGS)

soak: $(DEV_READY)
	@$(BIN)/python bench/soak.py $(ARGS)

proof: $(DEV_READY)
	@$(BIN)/python tools/proof.py $(ARGS)

interop: $(DEV_READY)
	@$(BIN)/python tools/check.py interop

map: $(DEV_READY)
	@$(BIN)/python tools/file_map.py

docs: $(DEV_READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo build/site/index.html

extras: $(DEV_READY)
	@$(BIN)/python tools/wheel.py
	@$(BIN)/python tools/extras.py $(ARGS)

pythons: $(DEV_READY)
	@$(BIN)/python tools/pythons.py $(ARGS)

lock:
	@test -x $(BIN)/uv || UNLOCKED=1 sh tools/bootstrap.sh $(VENV) spark,dev
	@$(BIN)/python tools/lock.py

sbom: $(DEV_READY)
	@$(BIN)/python tools/sbom.py

clean:
	@rm -rf build dist demo-data bench/results .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache .coverage .coverage.*
	@rm -rf .venv-wheel src/*.egg-info
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV)

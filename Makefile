# Two commands do everything: `make demo` runs the main job, `make test` passes the tests.
BIN := .venv/bin
PYTHON ?= $(BIN)/python
WHEEL_ENV := .cache/wheel-env
# Test workers: one more than two cores, since browsers and servers wait.
JOBS ?= 3
# Tests that `make test` passes over: what is not run is at least type-checked.
NOT_RUN = $(shell grep -rlE --include='*.py' 'mark\.(slow|gpu|detectron2|release)' tests --exclude-dir=recipes)
CHOSEN := "not slow and not gpu and not detectron2 and not release"
# Compiled modules are kept even where the environment says otherwise: every worker reads all tests.
TEST_ENV := OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.PHONY: help setup demo pinned test test-slow test-types release-check test-detectron2 check docs wheel bench gpu-check gpu-bundle format clean

help: ## this text
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: ## virtual environment, pinned packages, a Chromium, fonts and OCR data
	@scripts/setup.sh

demo: setup ## the whole pipeline on a simulated web, six minutes on two idle cores: see demo/site/index.html
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/demo.sh

pinned: setup ## the pinned web as a release, hours on two cores; SITES=50 FROM=mirrors OUT=folder
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/pinned.sh

test: setup check wheel ## lint, types, import contracts, then the tests against the built wheel
	$(TEST_ENV) NOW_TEST_WHEEL=1 PATH="$(CURDIR)/$(WHEEL_ENV)/bin:$$PATH" \
	  $(WHEEL_ENV)/bin/python -m pytest -n $(JOBS) --dist loadfile -m $(CHOSEN)

test-slow: setup wheel ## long kills and trainings
	$(TEST_ENV) NOW_TEST_WHEEL=1 PATH="$(CURDIR)/$(WHEEL_ENV)/bin:$$PATH" \
	  $(WHEEL_ENV)/bin/python -m pytest -m "slow"

test-types: setup ## the tests with the types and shapes enforced that signatures promise
	$(TEST_ENV) NOW_TEST_TYPES=1 PATH="$(CURDIR)/$(BIN):$$PATH" \
	  $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m $(CHOSEN)

release-check: setup wheel ## before a release: docs site, notebook, extras, recipes
	$(TEST_ENV) NOW_TEST_WHEEL=1 PATH="$(CURDIR)/$(WHEEL_ENV)/bin:$$PATH" \
	  $(WHEEL_ENV)/bin/python -m pytest -m "release"

test-detectron2: ## detectron2 in the detector; PYTHON=… has it and this project's packages
	$(PYTHON) -c "import detectron2"
	$(TEST_ENV) PYTHONPATH="$(CURDIR)" \
	  $(PYTHON) -m pytest -m detectron2 tests/now_builder/detect

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy now_builder pc2_baseline leaderboard benchmarks recipes scripts docs/figures $(NOT_RUN)
	$(BIN)/lint-imports
	PYTHONPATH=. $(BIN)/python scripts/house.py

docs: setup ## the documentation as a site, links checked: site-docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: setup # a second environment: the wheel itself, and the packages of the first beneath it
	@scripts/wheel.sh $(WHEEL_ENV)

bench: demo ## ratios against the plain way of doing the same work, in one run
	@for file in $(filter-out benchmarks/rehearsal.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; PYTHONPATH=. OMP_NUM_THREADS=2 $(BIN)/python $$file || exit 1; done

gpu-check: ## what only a GPU can prove, see docs/gpu.md; DEVICE=cpu SIZE=tiny rehearses it
	@scripts/gpu_check.sh

gpu-bundle: setup ## what gpu-check needs where there is no network, into .gpu-bundle
	@scripts/gpu_bundle.sh

format: setup ## let ruff write the layout
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## drop what was built, keep the virtual environment
	rm -rf demo dist build site-docs .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

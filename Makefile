# Each target sets up what it needs: `make demo` or `make test` may be the first command ever run here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PYTHONDONTWRITEBYTECODE :=  # what is imported again and again is compiled once

.PHONY: demo test check format lint types levels bench kernels notebooks site clean

demo: $(READY)  ## level 03's lesson on the default model
	@echo "== level 03, continuous batching (the first run converts the default model, once)"
	$(BIN)/python -m levels.03_continuous_batching

test: $(READY)  ## the whole test suite
	@echo "== the default model, which some tests use (fetched once; without a network they are skipped)"
	-@$(BIN)/python -c "from minipaged.models.hub import resolve_model; print(resolve_model('smollm2-135m'))"
	@echo "== tests"
	$(BIN)/python -m pytest -n auto --dist worksteal -q

check: format lint types test notebooks  ## what CI runs

format: $(READY)
	@echo "== format"
	$(BIN)/ruff format --check .

lint: $(READY)
	@echo "== lint"
	$(BIN)/ruff check .

types: $(READY)
	@echo "== types"
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

levels: $(READY)  ## every level on one workload: table and picture
	$(BIN)/python -m levels
	$(BIN)/python -m levels compare --plot compare.png

bench: $(READY)  ## the ladder, measured; results in benchmarks/results/ (make bench ARGS=--quick: does it run at all?)
	$(BIN)/python -m benchmarks.run $(ARGS)

kernels: $(READY)  ## what the compilers of four GPUs make of the kernels: registers, memory, matrix units
	$(BIN)/python -m benchmarks.compile_kernels

notebooks: $(READY)  ## run every walkthrough from top to bottom; what it says must be what it said
	@echo "== notebooks"
	$(BIN)/python walkthroughs/run.py

site: $(READY)  ## READMEs, docs and walkthroughs as pages to read; build/site/index.html
	@echo "== site"
	$(BIN)/python -c "import material" 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[site]'
	$(BIN)/python docs/site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet -f build/mkdocs.yml

$(READY): pyproject.toml constraints.txt
	@echo "== set-up: a virtual environment in $(VENV), about 2.6 GB"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "minipaged needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench,dev,serve]'
	@touch $(READY)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

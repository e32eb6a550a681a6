# A convenience for shells that have make: each target is one line that README.md shows without it.
#   make lab                     the notebooks in JupyterLab (installs what 00 to 06 need: no torch)
#   make lab EXTRAS=all          the same with everything installed
#   make lab ARGS=--no-browser   words after ARGS= go to the command
PYTHON ?= python3
EXTRAS ?= notebooks
ARGS ?=
ifeq ($(OS),Windows_NT)
PY := .venv/Scripts/python
else
PY := .venv/bin/python
endif
# An environment with everything serves the notebooks too.
INSTALLED := $(or $(wildcard .venv/installed-all),.venv/installed-$(EXTRAS))

.PHONY: lab test test-portable test-kernels notebooks student verify laws-thorough mutants mutation lint doctor
lab: $(INSTALLED)
	$(PY) -m fdmath lab $(ARGS)
test: .venv/installed-all
	$(PY) -m fdmath test $(ARGS)
test-portable: .venv/installed-all
	$(PY) -m fdmath test --portable $(ARGS)
test-kernels: .venv/installed-all
	$(PY) -m fdmath test kernels --thorough $(ARGS)
notebooks: .venv/installed-all
	$(PY) -m fdmath notebooks $(ARGS)
student: $(INSTALLED)
	$(PY) -m fdmath student $(ARGS)
verify: .venv/installed-all
	$(PY) -m fdmath verify $(ARGS)
laws-thorough: .venv/installed-all
	$(PY) -m fdmath verify --cases 1000 $(ARGS)
mutants: .venv/installed-all
	$(PY) -m fdmath mutants $(ARGS)
mutation: .venv/installed-all
	$(PY) -m fdmath mutation $(ARGS)
lint: .venv/installed-all
	$(PY) -m fdmath lint $(ARGS)
doctor: $(INSTALLED)
	$(PY) -m fdmath doctor $(ARGS)

# The stamp makes an install that is up to date a no-op; a changed pin or dependency renews it.
.venv/installed-%: pyproject.toml constraints.txt | .venv/pyvenv.cfg
	$(PY) -m pip install --constraint constraints.txt --editable ".[$*]"
	$(PY) -c "import pathlib; pathlib.Path('$@').touch()"
.venv/pyvenv.cfg:
	$(PYTHON) -m venv .venv

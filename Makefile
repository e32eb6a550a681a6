# A convenience for shells that have make: each target is one line that README.md shows without it.
#   make                         what there is
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

define HELP
make lab             the notebooks in JupyterLab; installs what 00 to 06 need (EXTRAS=all: everything)
make notebooks       execute every notebook and store its outputs
make book            the reading copy: pages that open without a network, in build/book
make figures         every figure as SVG and PNG with its caption, in build/figures
make student         copies of the notebooks without the answers
make test            every phase of the tests
make test-portable   unit tests, laws and notebooks as on older processors
make test-kernels    the Triton kernels, with more cases
make verify          every law of merging, for every implementation here
make laws-thorough   the same with many more cases
make mutants         wrong implementations, each to die by the law named for it
make mutation        small changes of the code, each to be noticed by a test
make claims          the verdict on every statement of the two documents
make lint            style, imports, tolerances, notebook rules
make doctor          versions, and which backends work here

All but lab, student and doctor install everything first (gigabytes where torch comes with CUDA).
Your own function with NumPy alone:  python -m pip install ".[verify,oracle]"
                                     fdmath verify package.module:function
Words after ARGS= go to the command: make verify ARGS="--only shift"
endef

.PHONY: help lab test test-portable test-kernels notebooks book figures student verify laws-thorough mutants mutation claims lint doctor
help:
	$(info $(HELP))@:
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
book: .venv/installed-all
	$(PY) -m fdmath book $(ARGS)
figures: .venv/installed-all
	$(PY) -m fdmath figures $(ARGS)
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
claims: .venv/installed-all
	$(PY) -m fdmath claims $(ARGS)
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
.DEFAULT:
	$(error no target $@; make help lists them)

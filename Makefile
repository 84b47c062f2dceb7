# make demo and make test are all that a newcomer needs; each sets itself up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ORACLE := .venv-mxnet
JOBS ?= 2
PORT ?= 8000
PARTS := protocol ops client service

.PHONY: help demo test fuzz nvrtc packages pythons lint format conformance record bench serve schema gpu-check gpu-wheels image clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# What a demo needs: the packages, without bytecode that Python writes when it needs it, and the digits that scikit-learn has.
$(VENV)/.packages: constraints.txt $(foreach part,$(PARTS),$(part)/pyproject.toml)
	@PYTHON=$(PYTHON) sh .ci/make-venv.sh $(VENV)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt scikit-learn setuptools
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt --no-build-isolation \
	  $(foreach part,$(PARTS),-e $(part))
	@touch $@

$(READY): $(VENV)/.packages requirements-dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

demo: $(VENV)/.packages  ## train LeNet on handwritten digits through HTTP (DATA=folder of MNIST idx files)
	$(BIN)/python examples/lenet_demo.py $(if $(DATA),--data $(DATA))

test: $(READY)  ## all tests that need neither MXNet nor a GPU
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not conformance and not nvrtc" $(ARGS)

fuzz: $(READY)  ## the generated campaigns over frames, JSON, graphs and commands, FUZZ (100) times as long as in make test
	OPBOX_FUZZ=$(or $(FUZZ),100) $(BIN)/python -m pytest -n $(JOBS) --timeout 0 tests/service/test_wire_fuzz.py \
	  tests/service/test_graph_fuzz.py $(ARGS)

$(VENV)/.nvrtc: $(READY) .ci/nvrtc.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/nvrtc.txt
	@touch $@

nvrtc: $(VENV)/.nvrtc  ## compile every CUDA kernel for sm_90, which needs no GPU (the compiler takes 225 MB)
	$(BIN)/python -m pytest -m nvrtc tests/nvrtc $(ARGS)

$(VENV)/.packaging: $(READY) .ci/packaging.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/packaging.txt
	@touch $@

packages: $(VENV)/.packaging  ## build the four distributions into dist, and check them as an index would
	rm -rf dist
	for part in $(PARTS); do $(BIN)/python -m build -q --outdir dist $$part || exit 1; done
	$(BIN)/python -m twine check --strict dist/*

pythons:  ## the tests that need no server, on Python 3.12 and 3.13 where this machine has them
	sh .ci/pythons.sh -n $(JOBS) $(ARGS)

lint: $(READY)  ## ruff and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)  ## let ruff rewrite
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(ORACLE)/.ready:
	@PYTHON=$(PYTHON) sh .ci/make-venv.sh $(ORACLE)
	$(ORACLE)/bin/python -m pip install -q --disable-pip-version-check mxnet==1.9.1 numpy==1.23.5
	@touch $@

conformance: $(READY) $(ORACLE)/.ready  ## the operator table and generated cases, live against MXNet 1.9.1 (Python 3.11)
	$(BIN)/python -m pytest -n $(JOBS) -m conformance $(ARGS)

record: $(ORACLE)/.ready  ## record MXNet's values for the operator table again
	$(ORACLE)/bin/python -m tests.conformance.record

schema: $(READY)  ## write the client's operator schema, its stubs and the catalogue anew from the registry
	$(BIN)/python -m opbox_service.schema
	$(BIN)/python docs/make_operators_page.py

bench: $(READY)  ## every benchmark, one after the other
	@for each in benchmarks/*.py; do echo "== $$each"; $(BIN)/python $$each || exit 1; done

serve: $(READY)  ## a server on PORT (8000)
	$(BIN)/opbox serve --port $(PORT)

gpu-wheels:  ## the packages that an offline GPU machine lacks, into .wheels
	$(PYTHON) -m pip download -q -d .wheels --only-binary=:all: --no-deps --python-version 3.12 --implementation cp \
	  $(foreach tag,2_28 2_27 2_17,--platform manylinux_$(tag)_x86_64) --platform manylinux2014_x86_64 -r .ci/gpu-wheels.txt

gpu-check:  ## all GPU tests and benchmarks, with the machine's own PYTHON (and .wheels, when it is there)
	PYTHON=$(PYTHON) sh .ci/gpu-check.sh

image:  ## the CPU image
	docker build -f docker/cpu.Dockerfile -t opbox:cpu .

clean:  ## remove the virtual environments and build outputs
	rm -rf $(VENV) .venv-3* $(ORACLE) .wheels build dist $(foreach part,$(PARTS),$(part)/build $(part)/*.egg-info)

# make demo and make test are all that a newcomer needs; each sets itself up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ORACLE := .venv-mxnet
TORCH := .venv-torch
SERVING := .venv-serving
JOBS ?= 2
PORT ?= 8000
PARTS := protocol ops client service

.PHONY: help perf-analyzer demo test test-all test-processors fuzz attack soak schemas test-gpu-pretend test-torch kernels gpu-counts gpu-launches nvrtc cubins docs clients browser nginx test-page screenshots test-cluster packages pythons lint format conformance record bench bench-peers bench-serving serve schema gpu-check gpu-wheels image check-compose test-image clean haproxy test-bare

help:  ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# What a demo needs: the packages, without bytecode that Python writes when it needs it, and the digits that scikit-learn has.
# oneDNN's wheel has its library three times, 55 MB each: two become links.
$(VENV)/.packages: constraints.txt $(foreach part,$(PARTS),$(part)/pyproject.toml)
	@PYTHON=$(PYTHON) sh .ci/make-venv.sh $(VENV)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt scikit-learn setuptools
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt --no-build-isolation \
	  $(foreach part,$(PARTS),-e $(part))
	@cd $(VENV)/lib && if [ -f libdnnl.so.3.2 ]; then for copy in libdnnl.so libdnnl.so.3; do ln -f libdnnl.so.3.2 $$copy; done; fi
	@$(BIN)/python -m opbox_ops.cpu.description
	@touch $@

$(READY): $(VENV)/.packages requirements-dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

demo: $(VENV)/.packages  ## start a server and train LeNet on handwritten digits over HTTP (DATA=folder of MNIST idx files)
	$(BIN)/python examples/lenet_demo.py $(if $(DATA),--data $(DATA))

# Many tests wait for a server or a deadline: three at once keep two cores busy.
test: JOBS = 3
test: $(READY)  ## run the tests that need neither MXNet nor a GPU, thinned by tests/slices.py (WHOLE=1: all)
	OPBOX_TEST_SLICE=$(if $(WHOLE),,$(or $(OPBOX_TEST_SLICE),test)) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not conformance and not nvrtc and not compose and not image and not docs and not clients and not packages and not browser and not cluster and not bare" $(ARGS)

NUMERIC := tests/ops tests/executor tests/training
test-processors: $(READY)  ## run the tests of numbers with one thread, then as on a processor without AVX-512
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not gpu" $(NUMERIC) $(ARGS)
	ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not gpu" $(NUMERIC) $(ARGS)

test-all: export OPBOX_TEST_SLICE =
test-all:  ## run every suite of .ci/run as a whole; takes hours
	for suite in test nvrtc test-gpu-pretend packages pythons check-compose docs clients schemas test-page test-torch test-bare \
	  test-cluster test-processors; do \
	  $(MAKE) $$suite WHOLE=1 || exit 1; done

# A minute of each campaign that coverage guides, and a million generated inputs where FUZZ is about 1000.
$(VENV)/.fuzzing: $(READY) .ci/fuzzing.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/fuzzing.txt
	@touch $@

fuzz: $(VENV)/.fuzzing  ## send hostile frames, JSON, graphs, commands, operators and messages of code, FUZZ (100) times as long as make test
	OPBOX_FUZZ=$(or $(FUZZ),100) $(BIN)/python -m pytest -n $(JOBS) --timeout 0 tests/service/test_wire_fuzz.py \
	  tests/service/test_graph_fuzz.py tests/service/test_json_pieces.py tests/fuzz $(ARGS)
	for target in frames json graphs commands operators code_messages; do mkdir -p .fuzz/$$target && $(BIN)/python \
	  -m tests.fuzz.coverage $$target .fuzz/$$target -max_total_time=$(or $(FUZZ),60) -rss_limit_mb=4096 \
	  -artifact_prefix=.fuzz/ || exit 1; done

$(VENV)/.nvrtc: $(READY) .ci/nvrtc.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/nvrtc.txt
	@touch $@

nvrtc: $(VENV)/.nvrtc  ## compile every CUDA kernel for sm_80, sm_90 and sm_100 without a GPU (the compiler takes 225 MB)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m nvrtc tests/nvrtc $(ARGS)

# In a folder of its own: with CuPy among the packages, the type checker and the CPU's tests would see it.
PRETEND := .pretend-gpu
$(PRETEND)/.ready: $(READY) constraints.txt .ci/pretend-gpu.txt
	rm -rf $(PRETEND)/site
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $(PRETEND)/site -c constraints.txt \
	  -r .ci/pretend-gpu.txt
	@touch $@

PRETEND_PATH = PYTHONPATH=$(CURDIR)/tests/pretend_gpu/site:$(CURDIR)/$(PRETEND)/site
PRETEND_TESTS := tests/pretend_gpu tests/ops tests/contract/test_devices.py tests/contract/test_code_on_devices.py \
  tests/service/test_device_sums.py

test-gpu-pretend: $(PRETEND)/.ready  ## run the GPU's tests on a pretend GPU: real CuPy, kernels compiled by g++ (WHOLE=1: every row)
	$(PRETEND_PATH) OPBOX_PRETEND_GPU=$(if $(WHOLE),whole,part) \
	  $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m gpu $(PRETEND_TESTS) $(ARGS)

kernels: $(PRETEND)/.ready  ## print registers, spills and shared memory of every CUDA kernel, by NVRTC (OWN=1: opbox's own only)
ifndef OWN
	rm -rf $(PRETEND)/sources
	PRETEND_GPU_SOURCES=$(CURDIR)/$(PRETEND)/sources $(MAKE) --no-print-directory test-gpu-pretend
endif
	$(PRETEND_PATH) $(BIN)/python -m tests.nvrtc.report $(if $(OWN),,$(PRETEND)/sources)

gpu-counts: $(PRETEND)/.ready  ## count launches, allocations and unrecordable calls of a training step, on the pretend GPU
	$(PRETEND_PATH) $(BIN)/python -m tests.pretend_gpu.counts

gpu-launches: $(PRETEND)/.ready  ## print what each operator launches on a GPU at a large size: kernels, blocks, threads (ARGS="--only REGEX")
	$(PRETEND_PATH) $(BIN)/python -m tests.pretend_gpu.launches $(ARGS)

# In a folder of its own too: a wheel of 190 MB to 900 MB that a few tests need. Elsewhere they are skipped, and say so.
TENSORS := .torch
$(TENSORS)/.ready: $(READY) constraints.txt .ci/torch.txt
	rm -rf $(TENSORS)/site
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check --target $(TENSORS)/site -c constraints.txt \
	  -r .ci/torch.txt
	@touch $@

test-torch: $(TENSORS)/.ready  ## test PyTorch's tensors as inputs and arrays as tensors (installs 880 MB)
	PYTHONPATH=$(CURDIR)/$(TENSORS)/site OPBOX_TEST_REQUIRE_TORCH=1 $(BIN)/python -m pytest -k torch tests/client/test_foreign.py $(ARGS)

$(VENV)/.page: $(READY) .ci/page.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/page.txt
	@touch $@

browser:  ## install Debian's Chromium for the tests of the page; needs root
	@sh .ci/browser.sh

haproxy:  ## unpack Debian's HAProxy into .haproxy for the test of its configuration, where there is none
	@sh .ci/haproxy.sh

nginx:  ## unpack Debian's nginx into .nginx for the tests behind it, where there is none
	@sh .ci/nginx.sh

test-page: $(VENV)/.page browser  ## test the page in a real browser: signing in, watching, running, ending; accessibility
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m browser tests/page $(ARGS)

screenshots: $(VENV)/.page browser  ## take new pictures of the page for docs/images
	$(BIN)/python docs/make_screenshots.py

$(VENV)/.docs: $(READY) .ci/docs.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/docs.txt
	@touch $@

docs: $(VENV)/.docs  ## build the documentation's site into build/site and check it; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q
	$(BIN)/python -m pytest -m docs tests/docs $(ARGS)

$(VENV)/.clients: $(READY) .ci/clients.txt $(wildcard tests/clients/typescript/package*.json)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/clients.txt
	mkdir -p .clients && cp tests/clients/typescript/package*.json .clients
	cd .clients && npm ci --no-audit --no-fund --loglevel=error || echo "clients: no TypeScript tools, so their tests are skipped"
	@touch $@

perf-analyzer: $(VENV)/.clients  ## unpack Triton's perf_analyzer into .perf-analyzer for its test, where it can be had
	@sh .ci/perf-analyzer.sh $(BIN)/python

clients: $(VENV)/.clients perf-analyzer  ## generate clients from the OpenAPI document, for Python and TypeScript, and run a program on each
	$(BIN)/python -m pytest -rs -m clients tests/clients $(ARGS)

$(VENV)/.cluster: $(READY) .ci/cluster.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/cluster.txt
	@touch $@

test-cluster: $(VENV)/.cluster  ## run nodes of Ray on this machine: placement, deaths, draining, tokens
	$(BIN)/python -m pytest -m cluster tests/cluster $(ARGS)

attack: $(READY)  ## attack a server in every known way, beside a user who trains: memory, times, that user's waits (OTHER=Python of another version)
	$(BIN)/python -m tests.attack $(if $(OTHER),--python $(OTHER)) $(ARGS)

test-bare: $(READY)  ## run README's commands on a minimal Debian as a user without rights; needs root (DEBIAN=trixie: another version)
	@sh .ci/bare.sh $(DEBIAN)
	DEBIAN=$(DEBIAN) $(BIN)/python -m pytest -n 0 -m bare tests/bare $(ARGS)

soak: $(READY)  ## run 20,000 training steps and 200,000 forwards, and a model under load with 10 minutes of reloads
	OPBOX_SOAK=$(or $(STEPS),20000) $(BIN)/python -m pytest -n 0 -s tests/faults tests/models -k long_use $(ARGS)

$(VENV)/.schemas: $(READY) .ci/schemas.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/schemas.txt
	@touch $@

schemas: $(VENV)/.schemas  ## test a server against its OpenAPI document with schemathesis
	sh .ci/schemas.sh $(ARGS)

$(VENV)/.packaging: $(READY) .ci/packaging.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/packaging.txt
	@touch $@

packages: $(VENV)/.packaging  ## build the four distributions into dist, and check them (HOMEPAGE, DOCUMENTATION, SOURCE, CHANGELOG: their addresses)
	rm -rf dist
	$(BIN)/python .ci/packages.py build/packages \
	  "Homepage=$(HOMEPAGE)" "Documentation=$(DOCUMENTATION)" "Source=$(SOURCE)" "Changelog=$(CHANGELOG)"
	for part in $(PARTS); do $(BIN)/python -m build -q --outdir dist build/packages/$$part || exit 1; done
	for wheel in dist/opbox_ops-*-linux_*.whl; do [ ! -e "$$wheel" ] || { export PATH=$(CURDIR)/$(BIN):$$PATH; \
	  $(BIN)/python .ci/bundle_libgomp.py "$$wheel" && $(BIN)/python -m auditwheel repair --plat manylinux_2_17_x86_64 --wheel-dir dist "$$wheel" && rm "$$wheel"; } || exit 1; done
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest -m packages tests/packages $(ARGS)

pythons:  ## run a slice of the tests on Python 3.12 and 3.13, if installed
	@sh .ci/pythons.sh $(ARGS)

KERNELS := ops/opbox_ops/cpu/kernels/*.[ch]

lint: $(READY)  ## run ruff, clang-format and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)
	$(BIN)/mypy

format: $(READY)  ## let ruff and clang-format format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(KERNELS)

$(ORACLE)/.ready:
	@PYTHON=$(PYTHON) sh .ci/make-venv.sh $(ORACLE)
	$(ORACLE)/bin/python -m pip install -q --disable-pip-version-check mxnet==1.9.1 numpy==1.23.5
	@touch $@

conformance: $(READY) $(ORACLE)/.ready  ## compare the operator table and generated cases with a live MXNet 1.9.1 (Python 3.11)
	$(BIN)/python -m pytest -n $(JOBS) -m conformance $(ARGS)
	$(MAKE) --no-print-directory test-gpu-pretend WHOLE=1

record: $(ORACLE)/.ready  ## record MXNet's values for the operator table and the programs
	$(ORACLE)/bin/python -m tests.conformance.record
	$(ORACLE)/bin/python -m tests.compat.record
	$(ORACLE)/bin/python -m tests.compat.record_names
	$(ORACLE)/bin/python -m tests.images.record

schema: $(READY)  ## generate the client's operator schema and stubs, the catalogue, the page's presets, docs/compatibility.md
	$(BIN)/python -m opbox_service.schema
	$(BIN)/python -m tests.cases.presets
	$(BIN)/python docs/make_operators_page.py
	$(BIN)/python docs/make_compatibility_page.py

$(TORCH)/.ready:
	@PYTHON=$(PYTHON) sh .ci/make-venv.sh $(TORCH)
	$(TORCH)/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0 numpy
	@touch $@

bench-peers: $(READY) $(ORACLE)/.ready $(TORCH)/.ready  ## time networks on the CPU beside MXNet and PyTorch, in one run
	$(BIN)/python benchmarks/cpu_vs_peers.py --http $(ARGS)

$(SERVING)/.ready: .ci/serving-peers.txt
	@PYTHON=$(PYTHON) sh .ci/make-venv.sh $(SERVING)
	$(SERVING)/bin/python -m pip install -q --disable-pip-version-check -r .ci/serving-peers.txt
	@touch $@

bench-serving: $(READY) $(SERVING)/.ready  ## time small requests to a model beside Triton, FastAPI and MLServer, in one run
	$(BIN)/python benchmarks/serving_vs_peers.py --peers $(SERVING)/bin/python $(ARGS)

bench: $(READY)  ## run every benchmark
	@for each in benchmarks/*.py; do echo "== $$each"; $(BIN)/python $$each || exit 1; done

serve: $(VENV)/.packages  ## start a server on PORT (8000)
	$(BIN)/opbox serve --port $(PORT)

cubins: $(VENV)/.nvrtc  ## compile opbox's CUDA kernels into build/cubins, without a GPU, for sm_80, sm_90 and sm_100 (ARCH="sm_90": for that alone)
	$(BIN)/python -m opbox_ops.cuda.build build/cubins $(ARCH:%=--architecture %)

gpu-wheels:  ## download the packages that an offline GPU machine lacks, into .wheels (HAS="numpy scipy": without what it has; FOR: its Python, 3.12)
	$(PYTHON) .ci/gpu_wheels.py .wheels $(FOR:%=--python %) $(HAS:%=--has %)

gpu-check:  ## run GPU tests and benchmarks with the machine's own PYTHON (and .wheels, if any); results in build/gpu-check
	PYTHON=$(PYTHON) sh .ci/gpu-check.sh $(ARGS)

image:  ## build the image, VARIANT=cpu or cuda
	docker build -f docker/Dockerfile -t opbox:$(or $(VARIANT),cpu) --build-arg VARIANT=$(or $(VARIANT),cpu) \
	  --build-arg REVISION=$$(git rev-parse HEAD) .

$(VENV)/.compose: $(READY) .ci/compose.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r .ci/compose.txt
	@touch $@

check-compose: $(VENV)/.compose  ## check the Dockerfile with hadolint, compose.yaml with its schema, the mounted files, alerts with promtool and amtool, and kubernetes/
	@sh .ci/prometheus.sh
	$(BIN)/python -m pytest -m compose tests/docker $(ARGS)

# IMAGE_BUILDER names a program where there is no Docker: tests/docker/engine.py says how it is called.
test-image: $(READY)  ## build the image (VARIANT, COMPILER), start it, train with a client, stop it; with Docker, or IMAGE_BUILDER=program
	VARIANT=$(VARIANT) COMPILER=$(COMPILER) $(BIN)/python -m pytest -m image tests/docker $(ARGS)

clean:  ## remove the virtual environments and build outputs
	rm -rf $(VENV) .venv-3* $(ORACLE) $(TENSORS) .bare .clients .haproxy .nginx .perf-analyzer .prometheus .wheels build dist $(foreach part,$(PARTS),$(part)/build $(part)/*.egg-info)

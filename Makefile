# README's two commands need nothing but this file: `make demo` and `make test` make the environment they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
HOSTS ?= 4

.PHONY: demo test pythons test-alone test-together test-fast durations api-page again fuzz simulate replay kills ends chaos soak lint style types format bench bench-hangs profile lab lab-down test-slurm test-playbooks test-frameworks test-torchx malformed dist test-installed test-installs release release-files completions site site-links man screens system-packages

$(VENV)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.stamp  ## train DDP over two nodes on this machine
	$(BIN)/clusterddp run examples/toy_ddp.py --steps 5

# What the lab and its peers need; without root the lab's tests are skipped by name.
SYSTEM := openssh-server openssh-client iproute2 iptables tcsh zsh fish procps rsync util-linux gcc libc6-dev chromium slurm-wlm munge nftables
system-packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  dpkg -s $(SYSTEM) >/dev/null 2>&1 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SYSTEM) >/dev/null; }; \
	else echo "not root or no apt-get: tests that need the lab are skipped by name"; fi

# Tests of the lab wait most of their time, so more files than twice the CPUs at once; what is measured runs alone.
JOBS ?= 5
# Every process compiles all tests anew where the environment forbids to keep what is compiled.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest
SIDE_BY_SIDE := --dist=loadfile --no-loadscope-reorder

pythons: $(VENV)/.stamp  ## the oldest and the newest Python of hosts, where they are missing
	@$(BIN)/python -m tests.pythons

test: $(VENV)/.stamp system-packages pythons  ## everything that can run here
	@status=0; \
	$(MAKE) --no-print-directory test-alone || status=1; \
	$(MAKE) --no-print-directory test-together || status=1; \
	exit $$status

# By their files: to collect all tests takes longer than most of these.
test-alone: $(VENV)/.stamp
	$(PYTEST) -m alone $$(grep -rl --include='*.py' 'mark\.alone' tests)

# Every process collects all tests that it may be given, so unit tests, three quarters of them, run by themselves. They
# seldom wait: one process a CPU is enough.
UNIT := $(PYTEST) tests/unit -m 'not alone' --numprocesses=auto --maxprocesses=$(JOBS) $(SIDE_BY_SIDE)
HOSTED := $(PYTEST) -m 'not alone' --ignore=tests/unit --numprocesses=$(JOBS) $(SIDE_BY_SIDE)

test-together: $(VENV)/.stamp
	@status=0; \
	$(UNIT) || status=1; \
	$(HOSTED) || status=1; \
	exit $$status

test-fast: $(VENV)/.stamp  ## no hosts: within a minute
	$(UNIT)

durations: $(VENV)/.stamp system-packages  ## record anew which files take long
	$(UNIT) --junitxml=$(VENV)/durations-unit.xml
	$(HOSTED) --junitxml=$(VENV)/durations.xml
	$(BIN)/python -m tests.order $(VENV)/durations-unit.xml $(VENV)/durations.xml

api-page: $(VENV)/.stamp  ## write the tables of docs/python-api.md, and the keywords of a run, anew
	$(BIN)/python -m tests.api_page
	$(BIN)/python -m tests.run_keywords

again: $(VENV)/.stamp  ## those that failed the last time
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures=none --maxfail=3

ROUNDS ?= 5
COUNT ?= 1000000
EXAMPLES ?= 10000
fuzz: $(VENV)/.stamp  ## COUNT changed inputs for every decoder of what comes from elsewhere, EXAMPLES made ones
	CLUSTERDDP_FUZZ=$(COUNT) $(BIN)/python -m pytest tests/unit/test_fuzz.py
	CLUSTERDDP_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/unit/remote/shared tests/unit/remote/control/test_messages.py \
	  tests/unit/logs/test_incoming.py tests/unit/facts/test_host.py tests/unit/discover/test_message.py

chaos: $(VENV)/.stamp system-packages  ## every fault ROUNDS times, and a table of what was seen
	CLUSTERDDP_CHAOS=$(ROUNDS) $(BIN)/python -m pytest tests/chaos

SEEDS ?= 10000
SCRIPT ?= faults
simulate: $(VENV)/.stamp  ## SEEDS runs of run control in virtual time, with faults; SCRIPT=losses: fifty hosts lost and back in each; =joins: hosts join; =cuts: hosts cut off
	$(BIN)/python -m tests.unit.simulated $(SEEDS) --script $(SCRIPT)

replay: $(VENV)/.stamp  ## one of them again, told line by line. SEED=288
	$(BIN)/python -m tests.unit.simulated --seed $(SEED) --script $(SCRIPT)

KILLS ?= 400
kills: $(VENV)/.stamp  ## helper, connection or operator killed at KILLS places each of a sync and of a push
	CLUSTERDDP_KILLS=$(KILLS) $(PYTEST) tests/integration/sync/test_sync_killed.py

test-slurm: SYSTEM += slurmdbd mariadb-server-core mariadb-client-core
test-slurm: $(VENV)/.stamp system-packages  ## all that is tried on real Slurm; `make test` has a part of it
	CLUSTERDDP_SLURM=1 $(PYTEST) tests/slurm

test-playbooks: $(VENV)/.stamp system-packages  ## all tests of the playbooks; `make test` has the short ones
	CLUSTERDDP_PLAYBOOKS=1 $(PYTEST) tests/integration/provision/test_playbooks.py tests/integration/provision/test_playbooks_systemd.py

# Of its own, for what is installed beside torch is imported beside it.
FRAMEWORKS := $(VENV)/frameworks
$(FRAMEWORKS)/.stamp: $(VENV)/.stamp
	$(BIN)/python -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/pip install --quiet '.[frameworks]'
	touch $@

# What examples/locked locks, here before its test: a test has no settings of package indexes, and asks none.
$(FRAMEWORKS)/.wheels: examples/locked/requirements.txt $(FRAMEWORKS)/.stamp
	$(if $(PIP_FIND_LINKS),grep -v '^--',cat) $< | $(BIN)/pip download --quiet --no-deps --dest $(FRAMEWORKS)/wheels --requirement /dev/stdin
	touch $@

test-frameworks: $(FRAMEWORKS)/.wheels system-packages  ## Lightning, accelerate, Trainer, Inductor: plainly, forked, warm; examples and docs/metrics.md by their lines
	CLUSTERDDP_FRAMEWORKS=$(CURDIR)/$(FRAMEWORKS)/bin/python $(PYTEST) tests/frameworks

TORCHX := $(VENV)/torchx
$(TORCHX)/.stamp: $(VENV)/.stamp
	$(BIN)/python -m venv $(TORCHX)
	$(TORCHX)/bin/pip install --quiet --editable '.[torchx]'
	touch $@

test-torchx: $(TORCHX)/.stamp system-packages  ## torchx's own commands with our scheduler, on this machine and on the lab
	CLUSTERDDP_TORCHX=$(CURDIR)/$(TORCHX)/bin/torchx $(PYTEST) tests/torchx

malformed: $(VENV)/.stamp  ## what is said of two hundred malformed inventories, as a table
	$(BIN)/python benchmarks/malformed_inventories.py

ENDS ?= 100
ends: $(VENV)/.stamp  ## workers with a server for traces, ENDS for each way to end at once: none hangs, none prints
	TRACE_SERVER_ENDS=$(ENDS) $(PYTEST) tests/integration/worker/test_trace_server_ends.py

MINUTES ?= 30
soak: $(VENV)/.stamp system-packages  ## a run with --relaunch in bad weather: no host is taken for lost
	$(BIN)/python -m tests.chaos.soak $(MINUTES)

dist: $(VENV)/.stamp  ## sdist, and the wheel made of it
	rm -rf build/dist && $(BIN)/python -m build --quiet --outdir build/dist

# Units of the operator's side, away from the sources; what is about the sources themselves stays out.
test-installed: dist  ## unit tests against the wheel, installed
	rm -rf build/installed && $(BIN)/pip install --quiet --no-deps --target build/installed build/dist/*.whl
	PYTHONPATH=build/installed:$(CURDIR) PYTHONSAFEPATH=1 $(BIN)/pytest --import-mode=importlib tests/unit \
	  --ignore=tests/unit/remote --ignore=tests/unit/test_layers.py --ignore=tests/unit/test_docs.py --ignore=tests/unit/test_hints.py \
	  --deselect=tests/unit/inventory/test_load.py::test_the_built_in_inventory_is_two_nodes_on_this_machine

# A warning is an error: a link that leads nowhere, a page in no table of contents, a docstring that cannot be read.
SITE := $(BIN)/python -m sphinx --quiet --fail-on-warning --conf-dir docs/site
site: $(VENV)/.stamp  ## docs, examples and the API reference as pages with search, in build/site
	$(SITE) --doctree-dir build/doctrees --builder html . build/site

site-links: $(VENV)/.stamp  ## whether links to elsewhere answer; needs the internet
	$(SITE) --builder linkcheck . build/site-links

man: $(VENV)/.stamp  ## man pages of all commands, in build/man
	$(BIN)/python -m tests.man_pages build/man

completions: $(VENV)/.stamp  ## completion for bash, zsh and fish, in build/completions
	@mkdir -p build/completions
	_CLUSTERDDP_COMPLETE=bash_source $(BIN)/clusterddp > build/completions/clusterddp.bash
	_CLUSTERDDP_COMPLETE=zsh_source $(BIN)/clusterddp > build/completions/_clusterddp
	_CLUSTERDDP_COMPLETE=fish_source $(BIN)/clusterddp > build/completions/clusterddp.fish

# The version stands in clusterddp/__init__.py alone; a tag `v1.2.3` of what passes here is published by .github/workflows/release.yml.
release: $(VENV)/.stamp  ## check that this checkout can be released, and make all that is: in build/release
	$(BIN)/python -m tests.release
	$(MAKE) --no-print-directory release-files

release-files: test-installed man completions  ## the same without the check: wheel and sdist tried, man pages, completions
	rm -rf build/release && mkdir -p build/release && cp build/dist/* build/release/
	tar -C build -cJf build/release/clusterddp-man-and-completions.tar.xz man completions
	@ls -l build/release

test-installs: dist  ## the wheel by pip, pipx and uv in clean environments, on each Python at hand
	$(BIN)/python -m tests.installs build/dist

screens: $(VENV)/.stamp system-packages  ## the pictures in docs/screens: commands at a real terminal (tmux), on the lab
	$(BIN)/python -m tests.screens docs/screens

lint: style types

style: $(VENV)/.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.stamp
	$(BIN)/mypy

format: $(VENV)/.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.stamp system-packages
	@for each in $(filter-out benchmarks/bench_hangs.py,$(wildcard benchmarks/bench_*.py)); do \
		echo "== $$each"; $(BIN)/python $$each || exit 1; done

bench-hangs: $(VENV)/.stamp system-packages  ## what `why` says of each script of benchmarks/hangs. NAMES=missing: those alone; CLEAN=50: so many clean runs instead
	$(BIN)/python benchmarks/bench_hangs.py $(if $(CLEAN),--clean $(CLEAN)) $(NAMES)

profile: $(VENV)/.stamp  ## where the time of a run's start goes, on this machine
	@mkdir -p build && $(BIN)/clusterddp run --timeline build/profile.txt examples/toy_ddp.py --steps 5 >/dev/null && cat build/profile.txt

lab: $(VENV)/.stamp system-packages  ## test hosts to try things on; drops into a shell. SLURM=1: with Slurm on them
	$(BIN)/python -m tests.lab up --hosts $(HOSTS) --shell $(if $(SLURM),--slurm)

lab-down: $(VENV)/.stamp
	$(BIN)/python -m tests.lab down

# `make help` lists the targets.
#
# A recipe that needs tools first has scripts/bootstrap install what is missing, and then sources
# scripts/env to find the tools. cargo uses all cores by itself, so the targets do not run in parallel.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

PREFIX = /usr/local
DESTDIR =
# make test STAGES="eunit ct" runs only these stages; make test-verbs has stages of its own.
STAGES =
# make store-histories KILLS=2000 stops and kills that often.
KILLS = 300
# make otp-suites ARGS="--suite rpc_SUITE", make apps ARGS="--queue quorum".
ARGS =

root = $(DESTDIR)$(PREFIX)
library = $(root)/lib/caravan
documents = $(root)/share/doc/caravan
# Short names of the commands for pipes between hosts (caravan pipe, send, recv, cp).
names = rdpipe rdsend rdrecv rdcp

.PHONY: build
build: ## build the command, the driver and the Erlang applications
	@scripts/bootstrap build
	@scripts/cargo_build
	@for name in $(names); do ln -sfn caravan "target/release/$$name"; done
	@scripts/place target/release/libcaravan_driver.so erlang/priv/caravan_driver.so
	@. scripts/env && escript scripts/erlang_build erlang bench/erlang

.PHONY: driver
driver: ## build only the driver (rebar3 and mix run this in a project that depends on Caravan)
	@scripts/bootstrap build
	@scripts/cargo_build --package caravan-carrier
	@scripts/place target/release/libcaravan_driver.so erlang/priv/caravan_driver.so

.PHONY: demo
demo: build ## measure four Erlang nodes over TCP and over Caravan on this machine (3 minutes after the build)
	@target/release/caravan bench erlang

.PHONY: test
test: ## run every test except those over RDMA (STAGES="..." for some of them)
	@scripts/bootstrap test
	@$(MAKE) --no-print-directory build
	@scripts/test $(STAGES)

# Each number is many times that of `make test`.
.PHONY: test-long
test-long: ## run the randomized tests for two or three hours
	@scripts/bootstrap test
	@$(MAKE) --no-print-directory build
	@CARAVAN_MINUTES=300 CARAVAN_SEEDS=500 CARAVAN_PIPE_CHAINS=200 CARAVAN_PIPE_ROUNDS=50 CARAVAN_PIPE_BYTES=500000000 \
	    CARAVAN_KILLS=10000 CARAVAN_COPY_KILLS=2000 CARAVAN_HISTORIES=300 CARAVAN_CUTS=2000 CARAVAN_MOVES=10000 CARAVAN_READS=100 CARAVAN_REDIS_RUNS=200 CARAVAN_WORLDS=20000 \
	    scripts/test rust
	@. scripts/env && "$$CARGO" test --locked --quiet --package caravan-store-server --test store_server -- --ignored soak
	@. scripts/env && "$$CARGO" test --locked --quiet --package caravan-store --test replication -- --ignored
	@$(MAKE) --no-print-directory store-histories KILLS=2000
	@CARAVAN_MINUTES=300 CARAVAN_KILLS=1000 CARAVAN_RECONNECTS=10000 scripts/test ct
	@[ "$$(uname -m)" != x86_64 ] || \
	    { scripts/bootstrap verbs && CARAVAN_KILLS=32 CARAVAN_PULLS=16 tests/verbs/run nodes; }

# The worlds of `make test` are 1,000; the demonstration kills a server every three seconds or so.
.PHONY: test-store
test-store: ## run the long tests of a store of several servers (three hours; as root, or without those between hosts)
	@scripts/bootstrap test
	@$(MAKE) --no-print-directory build
	@. scripts/env && CARAVAN_WORLDS=20000 "$$CARGO" test --release --locked --quiet --package caravan-cluster --test members
	@. scripts/env && CARAVAN_CLUSTER_KILLS=1000 "$$CARGO" test --locked --quiet --package caravan-store-server --test store_server \
	    -- --include-ignored --skip write_histories histories::hosts_storms
	@STORE_NET_ROUNDS=30 tests/store-net/run
	@target/release/caravan store demo --kill --nodes 5 --seconds 3600

.PHONY: test-verbs
test-verbs: ## run the tests over RDMA, in a virtual machine with software devices (STAGES="..." for some)
	@scripts/bootstrap test
	@scripts/bootstrap verbs
	@$(MAKE) --no-print-directory build
	@tests/verbs/run $(STAGES)

.PHONY: store-histories
store-histories: ## judge histories of the store with Porcupine, which is written in Go (KILLS=2000 for a long run)
	@scripts/bootstrap histories
	@CARAVAN_KILLS=$(KILLS) tests/histories/run

.PHONY: example
example: ## run the example app in a packet engine for a second
	@scripts/bootstrap build
	@. scripts/env && "$$CARGO" run --release --locked --quiet --package caravan-engine --example my_app

.PHONY: bench
bench: build ## measure the ring beside a plain loop in C
	@. scripts/env && bench/ring/run $(ARGS)

# These targets install what else they need.
.PHONY: otp-suites
otp-suites: build ## run OTP's own distribution suites over TCP and over Caravan (an hour)
	@. scripts/env && tests/otp-suites/run $(ARGS)

.PHONY: redis-suite
redis-suite: build ## run Redis's own tests on redis-server and on a store (5 minutes)
	@tests/redis-suite/run $(ARGS)

.PHONY: apps
apps: build ## run a RabbitMQ cluster over Caravan, and kill its nodes
	@. scripts/env && tests/apps/rabbitmq $(ARGS)

.PHONY: doc
doc: ## generate the reference of the crates and of the Erlang modules
	@scripts/bootstrap test
	@scripts/test cargo-doc edoc
	@echo "caravan: target/doc/caravan_fabric/index.html and erlang/_build/edoc/index.html"

# This only copies files: `sudo make install` must not build as root, with root's tools.
.PHONY: install
install: ## copy the built files to PREFIX (/usr/local)
	@for file in target/release/caravan erlang/priv/caravan_driver.so erlang/ebin/caravan.app \
	    bench/erlang/ebin/caravan_bench.app; do \
	    test -e "$$file" || { echo "caravan: $$file is not built: run make first." >&2; exit 1; }; done
	@made=$$(for directory in "$(PREFIX)/bin" "$(PREFIX)/lib" "$(PREFIX)/share/doc"; do \
	    until [ -e "$(DESTDIR)$$directory" ] || [ "$$directory" = "$$(dirname "$$directory")" ]; do \
	    echo "$$directory"; directory=$$(dirname "$$directory"); done; done); \
	    install -d "$(root)/bin" "$(library)/erlang/ebin" "$(library)/erlang/priv" \
	    "$(library)/bench/erlang/ebin" "$(documents)" && \
	    if [ -n "$$made" ]; then echo "$$made" >>"$(library)/made"; fi
	@install -m 755 target/release/caravan "$(root)/bin/caravan"
	@for name in $(names); do \
	    if [ -e "$(root)/bin/$$name" ] && [ "$$(readlink "$(root)/bin/$$name")" != caravan ]; then \
	        echo "caravan: $(root)/bin/$$name is another program; make install leaves it as it is." >&2; \
	    else ln -sfn caravan "$(root)/bin/$$name"; fi; done
	@install -m 644 erlang/ebin/*.beam erlang/ebin/*.app "$(library)/erlang/ebin"
	@install -m 755 erlang/priv/caravan_driver.so "$(library)/erlang/priv/caravan_driver.so"
	@install -m 644 bench/erlang/ebin/*.beam bench/erlang/ebin/*.app "$(library)/bench/erlang/ebin"
	@install -m 644 README.md CHANGELOG.md LICENSE docs/*.md "$(documents)"
	@echo "caravan: installed. Start a node with: erl -sname a -proto_dist caravan -pa $(PREFIX)/lib/caravan/erlang/ebin"

.PHONY: uninstall
uninstall: ## remove what install copied, and the directories that it made, if they are empty
	@rm -f "$(root)/bin/caravan"
	@for name in $(names); do \
	    [ "$$(readlink "$(root)/bin/$$name")" != caravan ] || rm -f "$(root)/bin/$$name"; done
	@made=$$(LC_ALL=C sort -ru "$(library)/made" 2>/dev/null); rm -rf "$(library)" "$(documents)"; \
	    echo "$$made" | while IFS= read -r directory; do \
	    [ -z "$$directory" ] || rmdir "$(DESTDIR)$$directory" 2>/dev/null || :; done
	@echo "caravan: removed from $(root)."

.PHONY: clean
clean: ## remove all built files
	@rm -rf target erlang/ebin erlang/priv erlang/_build bench/erlang/ebin bench/erlang/_build results

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20

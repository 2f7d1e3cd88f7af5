# The commands of the project. `make test` is what the continuous build runs.

CARGO ?= cargo
GO ?= go
GO_MIN := 1.26
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
ORACLE := $(TARGET)/oracle
KUORUM_BIN ?= $(TARGET)/fast/kuorum

# A kill round is about a second; the full run is what a release asks for.
KUORUM_KILL_ROUNDS ?= 20
# Rounds of each kind of fault in a cluster, of which there are eight; a round is about four seconds.
KUORUM_FAULT_ROUNDS ?= 2

# Times that a plugin is replaced under load; some twenty a second.
KUORUM_PLUGIN_RELOADS ?= 60

# The oracle's programs that are ours: a reader of log directories, a load made with etcd's client.
ORACLE_OWN := walcheck mixedload
ORACLE_SOURCES := $(wildcard tests/oracle/*.* tests/oracle/*/*.go)

.PHONY: run build test lint unit sim fast blackbox blackbox-full bench bench-quick bench-client profile microbench oracle go-present \
	wasm-present clean

run:
	$(CARGO) run --release --bin kuorum

build:
	$(CARGO) build --release --workspace --exclude kuorum-tests

# Cheap checks first; the suites that start processes come last.
test: wasm-present lint oracle unit fast blackbox

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings

unit:
	$(CARGO) test --workspace --exclude kuorum-tests

# More seeds of the simulation than the unit tests run; some 10 ms each. It ends at the first that breaks a rule and says
# how to replay it.
SEEDS ?= 0..10000

sim:
	$(CARGO) run --profile fast -p kuorum --features sim --bin sim -- --seeds $(SEEDS)

fast:
	$(CARGO) build --profile fast --bin kuorum

# One suite binary after the other. Two tests at a time: each drives two servers.
blackbox:
	KUORUM_BIN=$(KUORUM_BIN) KUORUM_ORACLE_DIR=$(ORACLE) KUORUM_KILL_ROUNDS=$(KUORUM_KILL_ROUNDS) \
		KUORUM_FAULT_ROUNDS=$(KUORUM_FAULT_ROUNDS) KUORUM_PLUGIN_RELOADS=$(KUORUM_PLUGIN_RELOADS) \
		$(CARGO) test -p kuorum-tests -- --test-threads=2

blackbox-full: oracle fast
	$(MAKE) blackbox KUORUM_KILL_ROUNDS=200 KUORUM_FAULT_ROUNDS=100 KUORUM_PLUGIN_RELOADS=1000

# Kuorum beside a real etcd under the same load: about twenty-five minutes, or four. The table goes to $(TARGET)/bench.
# Never part of `make test`. One row: make bench BENCH='--row "put, 100"'
BENCH ?=

bench: oracle build bench-client
	KUORUM_BIN=$(TARGET)/release/kuorum KUORUM_ORACLE_DIR=$(ORACLE) $(TARGET)/fast/bench $(BENCH)

bench-quick:
	$(MAKE) bench BENCH='--quick $(BENCH)'

# A flame graph of Kuorum under the rows whose name contains ROW, in $(TARGET)/bench. Needs perf (Debian: linux-perf).
# Built apart, with the frame pointers that perf walks.
ROW ?= put, 100 clients

profile: bench-client
	CARGO_TARGET_DIR=$(TARGET)/profile RUSTFLAGS="-C force-frame-pointers=yes" $(CARGO) build --release --bin kuorum
	KUORUM_BIN=$(TARGET)/profile/release/kuorum $(TARGET)/fast/bench --profile --row "$(ROW)"

bench-client:
	$(CARGO) build --profile fast -p kuorum-tests --bin bench

# The inner loops of the node by themselves: about two minutes on an idle machine. Never part of `make test`, but `make
# lint` compiles them. Only some: make microbench MICROBENCH='--bench mvcc -- range'
MICROBENCH ?=

microbench:
	$(CARGO) bench -p kuorum --features bench $(MICROBENCH)

oracle: $(ORACLE)/etcd $(ORACLE)/etcdctl $(ORACLE)/etcdutl $(ORACLE_OWN:%=$(ORACLE)/%)

GO_BUILD = cd tests/oracle && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -o $@

$(ORACLE)/etcd: tests/oracle/go.mod tests/oracle/go.sum | go-present
	$(GO_BUILD) go.etcd.io/etcd/server/v3

$(ORACLE)/etcdctl: tests/oracle/go.mod tests/oracle/go.sum | go-present
	$(GO_BUILD) go.etcd.io/etcd/etcdctl/v3

$(ORACLE)/etcdutl: tests/oracle/go.mod tests/oracle/go.sum | go-present
	$(GO_BUILD) go.etcd.io/etcd/etcdutl/v3

$(ORACLE_OWN:%=$(ORACLE)/%): $(ORACLE)/%: $(ORACLE_SOURCES) | go-present
	$(GO_BUILD) ./$*

go-present:
	@command -v $(GO) >/dev/null || { \
		echo "Go $(GO_MIN) or newer is needed to build the etcd the suites compare with: no '$(GO)' on PATH" >&2; exit 1; }
	@have=$$(cd tests/oracle && $(GO) env GOVERSION 2>/dev/null | sed 's/^go//'); \
	oldest=$$(printf '%s\n%s\n' "$(GO_MIN)" "$$have" | sort -V | head -n 1); \
	[ -n "$$have" ] && [ "$$oldest" = "$(GO_MIN)" ] || { \
		echo "Go $(GO_MIN) or newer is needed to build the etcd the suites compare with: '$(GO)' is $$($(GO) version)" >&2; exit 1; }

# What `kuorum plugin build` looks for: the target's library, or what it builds that from.
wasm-present:
	@ls "$$(rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null)"/libstd-*.rlib >/dev/null 2>&1 || \
		{ [ -x /usr/bin/wasm-ld ] && [ -d "$$(/usr/bin/rustc --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/std" ]; } || { \
		echo "plugins are built for wasm32-unknown-unknown: rustup target add wasm32-unknown-unknown, or on Debian" \
			"apt-get install rustc-web cargo-web rust-web-src lld" >&2; exit 1; }

clean:
	$(CARGO) clean

# TensorGrid. "make help" lists the targets. Everything is plain Go; nothing here needs root but what
# says so, and what cannot run as you are skips with the reason.
SHELL   := /bin/bash
GO      ?= go
BIN     := bin
PREFIX  ?= /usr/local
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/tensorgrid/tensorgrid/internal/version.Version=$(VERSION)
BUF     := $(GO) run github.com/bufbuild/buf/cmd/buf@v1.75.0
STATICCHECK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
export CGO_ENABLED ?= 0

MAINS := grid:./cli gctld:./ctld gnoded:./nodeagent gnode-launch:./nodeagent/launcher gstepd:./nodeagent/stepd gsim:./ctld/gsim
BINS  := $(foreach m,$(MAINS),$(BIN)/$(firstword $(subst :, ,$(m))))
LINKS := gsub gqueue gcancel ginfo gacct gctl gacctmgr gshare gprio sbatch squeue scancel sinfo sacct scontrol sacctmgr sshare sprio

.PHONY: help build test race lint proto man sim sim-traces e2e robust robust-failover robust-agent robust-members robust-security bench bench-submit bench-launch bench-sched bench-slurm-install cover fuzz demo install check clean need-go

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

need-go:
	@command -v $(GO) >/dev/null || { echo "Go 1.26 or newer is needed: https://go.dev/dl, or your system's package golang" >&2; exit 1; }

build: need-go ## build all programs into bin/
	@mkdir -p $(BIN)
	@set -e; for m in $(MAINS); do $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/$${m%%:*} $${m#*:}; done
	@for l in $(LINKS); do ln -sf grid $(BIN)/$$l; done

test: need-go ## run all tests (what CI runs)
	$(GO) test ./...

race: need-go ## the tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -short ./...

lint: need-go ## gofmt, vet, staticcheck, and the house rules of deps_test.go
	@out=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "not formatted: $$out" >&2; exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	$(GO) test -count=1 .

check: lint test ## lint + test

proto: need-go ## generate api/*/*.pb.go again
	$(BUF) generate api --template .ci/buf.gen.yaml

man: need-go ## write the generated manual pages again
	$(GO) test ./conf -run TestManPage -update
	CASES_FOLDER=none $(GO) test ./cli -run TestManPages -update

sim: need-go sim-traces ## sim-traces, then the seeded simulator of state, planner and log with fresh seeds (SIM_TIME=60s)
	GOGC=400 $(GO) test ./ctld/sim -count=1 -timeout 24h -v -run '^TestSim$$' -sim-time $${SIM_TIME:-60s}

sim-traces: need-go ## the published traces of ../shared/traces: answers to all digits, and the policies' figures
	@[ -r ../shared/traces/KTH-SP2-1996-2.swf ] || echo "sim-traces: skipped: the published traces are not in ../shared/traces"
	$(GO) test ./ctld/gsim/replay -count=1 -timeout 60m -v -run 'Published|Targets' -sim-traces

e2e: need-go ## the user cases against a real cluster on loopback
	$(GO) test -count=1 -v -run "Cases|Killed|Reconfigure" ./cli

ROBUST := $(GO) test -count=1 -v -timeout 60m ./internal/robust -robust

robust: need-go ## random faults under load for ROBUST_TIME (15m), seed after seed from SEED (root)
	$(ROBUST) -run 'TestRobust$$' -robust-time $(or $(ROBUST_TIME),15m) -robust-seed $(or $(SEED),0)

robust-failover: need-go ## the leader killed under submissions, beside Slurm's where it is installed (root)
	$(ROBUST) -run 'TestFailover|TestAllKilled|TestSlurm'

robust-agent: need-go ## no leader, silent agents, read-only spools, stale orders, nodes cut off, reboots (root)
	$(ROBUST) -run 'TestNoLeader|TestBlackHole|TestReadOnly|TestStale|TestReboot|TestCutOff|TestStopped'

robust-members: need-go ## controllers come and go, emptied disks, backups, certificates, old logs (root)
	$(ROBUST) -run 'TestMembers|TestRemoved|TestEmptied|TestBackup|TestRenewal|TestStranger'
	$(GO) test -count=1 -v -run 'Golden|Newer|Levels' ./ctld/fsm

robust-security: need-go ## every method by everybody at every door, broken frames, swapped paths, secrets, audit (root)
	$(ROBUST) -run 'TestSecurity'

bench: bench-submit bench-launch bench-sched ## all benchmarks, each beside its baseline in the same run

bench-submit: need-go ## durable submissions on three replicas, beside bare raft
	$(GO) test -count=1 -v -timeout 15m -run 'TestBenchSubmit' ./ctld/daemon -bench-submit

bench-launch: build ## jobs a second end to end, beside a bare fork loop (root)
	$(GO) test -count=1 -v -timeout 15m -run 'TestBenchLaunch' ./cli -bench-launch

bench-sched: need-go ## rounds of the planner, the whole controller on 5,000 simulated nodes, calls beside full passes
	@short=0; for part in './ctld/sched -run TestBench$$' \
	  './ctld/daemon -run TestBench(Controller|Depth|Replicas|Queues|Sockets|Calls)$$ -bench-seconds 5'; do \
	  $(GO) test -count=1 -v -timeout 20m $$part -bench-sched || short=1; done; exit $$short

bench-slurm-install: ## Debian's Slurm, the rival that bench-launch measures when it is there (root)
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge

cover: need-go ## coverage of the unit tests
	$(GO) test -short -coverprofile=cover.out ./... && $(GO) tool cover -func=cover.out | tail -1

fuzz: need-go ## each fuzz target for 30 s (FUZZTIME=30s)
	@# Go's fuzzer can end with "context deadline exceeded" when its time is up. That run is repeated once; an
	@# input that really fails is kept in testdata and fails the second run too.
	@set -e; for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p 2>/dev/null | grep ^Fuzz || true); do \
	    echo "== $$p $$f"; \
	    one() { $(GO) test -run '^$$' -fuzz "^$$f"'$$' -fuzztime $${FUZZTIME:-30s} $$p; }; \
	    one || one; done; done

demo: build ## three controllers, four agents, real jobs, and the leader killed in the middle
	@$(BIN)/grid demo

install: build ## install programs, links and manual pages under PREFIX (default /usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 755 $(BIN)/grid $(BIN)/gsim $(DESTDIR)$(PREFIX)/bin/
	for l in $(LINKS); do ln -sf grid $(DESTDIR)$(PREFIX)/bin/$$l; done
	install -m 755 $(BIN)/gctld $(BIN)/gnoded $(BIN)/gnode-launch $(BIN)/gstepd $(DESTDIR)$(PREFIX)/sbin/
	for s in 1 5 8; do install -m 644 man/man$$s/*.$$s $(DESTDIR)$(PREFIX)/share/man/man$$s/; done

clean: ## remove what was built
	rm -rf $(BIN) cover.out

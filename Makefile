# make demo   shows the product on real calls, needs Go only
# make test   the check of a change: format, vet, tests with -race, real peers, conformance, cases
# make check  all of that and the slow part: lint, vulnerabilities, fuzzing, chaos
# make bench  the figures of docs/performance.md

# The standard library of 1.27.3 has no known reachable vulnerability; go.mod allows 1.26 for a plain go build.
export GOTOOLCHAIN = go1.27.3

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X doorward.dev/doorward/internal/cli.version=$(VERSION)
TOOL    := go tool -modfile=devtools/go.mod

.DEFAULT_GOAL := build
.PHONY: build demo test unit outside postgres check lint vuln fuzz chaos bench fmt generate setup clean

build: ## the binary: bin/doorward
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/doorward ./cmd/doorward

demo: build ## a readable walk through the product on real calls, then it keeps serving
	./bin/doorward demo

setup: ## install what the tests need, or say what is missing
	bash test/setup.sh

test: unit outside ## the check of a change

unit: ## format, vet and the tests of the packages
	@test -z "$$(gofmt -l cmd internal test)" || { echo 'gofmt is needed (make fmt):'; gofmt -l cmd internal test; exit 1; }
	go vet ./...
	bash test/postgres.sh
	go test -race -timeout 8m ./cmd/... ./internal/...

outside: setup ## the built binary from outside: cases, real peers, a real identity provider, conformance
	go test -count=1 -timeout 15m -p 1 ./test/cases ./test/replicas ./test/peers ./test/oidc ./test/conformance ./test/bench/run

postgres: ## the tests of the gate and the doors once more, on PostgreSQL
	bash test/postgres.sh
	DOORWARD_TEST_DATABASE=postgres go test -count=1 -timeout 15m ./internal/gate ./internal/door

check: test postgres lint vuln fuzz chaos ## everything

lint: ## SA1019 (deprecated) is off: older revisions of the protocol are spoken, and tested, on purpose
	$(TOOL) staticcheck -checks inherit,-SA1019 ./...

vuln: ## known vulnerabilities, from a database that comes as a module: needs no network but the module proxy
	bash devtools/vuln.sh

fuzz: ## each fuzz test for ten seconds
	bash devtools/fuzz.sh 10s

chaos: ## kill -9 under load, leaks
	go test -count=1 -timeout 20m ./test/chaos

bench:
	bash test/bench/run.sh

fmt:
	gofmt -w cmd internal test

generate:
	go generate ./...

clean:
	rm -rf bin dist

# Everything works as root and as an ordinary user (who needs sudo for missing packages only).
# PG picks the major version (15, 16, 17 or 18), for instance: make test PG=18

PG ?= 15
export PG INPUT
MAJORS := 15 16 17 18

.DEFAULT_GOAL := help
.PHONY: help setup build cluster psql stop clean-cluster demo test test-rules test-sql test-effects test-all lint bench api-page package

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the packages and Python modules that are missing
	@scripts/setup

build: ## build the library for PG
	@scripts/build

cluster: ## build, start a private server with the extension, print its URI
	@scripts/cluster start

psql: ## open psql in that server
	@scripts/cluster psql

stop: ## stop that server, keep its data
	@scripts/cluster stop

clean-cluster: ## stop the servers of all majors and remove them with their data
	@scripts/cluster clean

demo: cluster ## run the demo on that server (INPUT=…)
	@eval "$$(scripts/cluster env)" && scripts/demo "$$INPUT"

test: test-rules test-sql ## run all tests on PG (T='-k name' goes to pytest)

test-rules: ## run the tests of the rules, which need no Postgres
	@cargo test --quiet --package sayiir-rules

test-sql: ## run the tests against a new server
	@scripts/test $(T)

test-effects: ## run the published suite of agent-effects on PG (T=… goes to cargo test)
	@scripts/test-effects $(T)

test-all: test-rules ## run all tests on all majors
	@failed=; for major in $(MAJORS); do \
	    echo "==> Postgres $$major" >&2; \
	    PG=$$major scripts/test $(T) || failed="$$failed $$major"; \
	done; \
	[ -z "$$failed" ] || { echo "failed on Postgres$$failed" >&2; exit 1; }

lint: ## check formatting, lints, the generated script and its safety
	@scripts/lint

bench: ## run the benchmarks on a release build (B='…' goes to bench/run)
	@PROFILE=release scripts/with-cluster bench/run $(B)

api-page: ## write docs/api.md from the comments in the database
	@scripts/with-cluster target/venv/bin/python tests/api_page.py

package: ## make a tarball and a .deb for PG below target/package
	@scripts/package

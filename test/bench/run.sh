#!/usr/bin/env bash
# make bench: builds everything, measures, prints the table; all samples go to bin/bench.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
export GOTOOLCHAIN=go1.27.3
mkdir -p bin
exec go run ./test/bench/run -json bin/bench.json "$@"

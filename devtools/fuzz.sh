#!/usr/bin/env bash
# Runs every fuzz test of the module for the given time: fuzz.sh 10s
set -euo pipefail
cd "$(dirname "$0")/.."
export GOTOOLCHAIN=go1.27.3
time=${1:-10s}
count=0
while IFS=: read -r file name; do
  dir=./$(dirname "$file")
  echo "== $dir $name"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$dir"
  count=$((count + 1))
done < <(grep -rhoHE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cmd internal | sed -E 's/:func /:/' | sort)
[ "$count" -gt 0 ] || { echo 'no fuzz test found' >&2; exit 1; }
echo "$count fuzz tests ran"

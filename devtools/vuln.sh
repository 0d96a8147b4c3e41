#!/usr/bin/env bash
# govulncheck against the vulnerability database as the module golang.org/x/vulndb holds it: the database's own
# address need not be reachable. The version in devtools/go.mod is the date of our knowledge; raise it often.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOTOOLCHAIN=go1.27.3
osv=$(cd devtools && go mod download -json golang.org/x/vulndb | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
db=$(mktemp -d)
trap 'rm -rf "$db"' EXIT
go tool -modfile=devtools/go.mod indexdb -vulns "$osv/data/osv" -out "$db"
go tool -modfile=devtools/go.mod govulncheck -db "file://$db" ./...

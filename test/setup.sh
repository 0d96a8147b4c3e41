#!/usr/bin/env bash
# Installs what the tests from outside need: the pinned npm packages of test/peers and test/oidc, a PostgreSQL where none answers. Says exactly what is missing when it
# cannot. Fast when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
node_ok() { command -v node >/dev/null 2>&1 && [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 18 ]; }

need git git
need gcc gcc # go test -race
node_ok || missing+=(nodejs)
need npm npm

if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing: ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
  missing=()
  node_ok || missing+=("nodejs (18 or newer)")
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "missing: ${missing[*]}" >&2
  echo "install them (Debian: apt-get install ${missing[*]%% *}) and run again" >&2
  exit 1
fi

bash test/postgres.sh

# npm ci takes half a minute, so it runs only when the lock file is not the one that is installed.
install() (
  cd "$1"
  stamp=node_modules/.doorward-lock
  if [ -f "$stamp" ] && cmp -s package-lock.json "$stamp"; then return; fi
  for try in 1 2 3; do
    if npm ci --no-audit --no-fund --loglevel=error; then break; fi
    [ "$try" = 3 ] && { echo "npm ci failed three times in $1: is the npm registry reachable?" >&2; exit 1; }
    sleep 3
  done
  cp package-lock.json "$stamp"
)
install test/peers
install test/oidc

# The Inspector and the conformance suite need Node 22, which comes as an npm package.
test/peers/node_modules/.bin/node -e 'if (+process.versions.node.split(".")[0] < 22) process.exit(1)' ||
  { echo 'test/peers/node_modules/.bin/node is not Node 22: remove test/peers/node_modules and run again' >&2; exit 1; }

#!/usr/bin/env bash
# Starts a PostgreSQL for the tests at 127.0.0.1:5432 where none answers, from Debian's package, with data in a folder of its
# own. Says so when it cannot: the tests then skip what needs one, and say that too. Fast when one answers.
# Stop it with: pg_ctl -D FOLDER stop (the folder is printed at the start).
set -uo pipefail

port=${1:-5432}
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
cannot() {
  echo "no PostgreSQL at 127.0.0.1:$port, and none could be started: $1" >&2
  echo 'tests on PostgreSQL are skipped; start one that trusts user postgres, or set DOORWARD_TEST_POSTGRES' >&2
  exit 0
}
bin() { ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1; }

if [ -n "${DOORWARD_TEST_POSTGRES:-}" ] || answers; then exit 0; fi
if [ -z "$(bin)" ]; then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || cannot 'install the package postgresql'
  echo 'installing: postgresql'
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql; } >/dev/null 2>&1 || cannot 'apt-get install postgresql failed'
  answers && cannot 'the one that came with the package does not trust user postgres over TCP; set DOORWARD_TEST_POSTGRES'
fi

# PostgreSQL refuses to run as root: there it runs as the user that the package made.
as=() base=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}
if [ "$(id -u)" = 0 ]; then
  as=(runuser -u postgres --) base=/var/lib/postgresql
fi
data=$base/doorward-test-$port
if [ ! -f "$data/PG_VERSION" ]; then
  "${as[@]}" mkdir -p "$base" && "${as[@]}" "$(bin)/initdb" -D "$data" -U postgres -A trust -E UTF8 --no-sync >/dev/null || cannot "initdb in $data failed"
fi
# Only the loopback address may connect without a password, and there is no socket file.
"${as[@]}" "$(bin)/pg_ctl" -D "$data" -l "$data/log" -w -t 30 start \
  -o "-c listen_addresses=127.0.0.1 -c port=$port -c unix_socket_directories= -c max_connections=200" >/dev/null || cannot "pg_ctl start failed, see $data/log"
echo "started PostgreSQL at 127.0.0.1:$port with its data in $data"

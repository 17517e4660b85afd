#!/usr/bin/env bash
# Makes .venv with the pinned dependencies, and sees that Java is there; with `services`, also what the tests start;
# with `services compiler`, also what compiles the peers of the benchmarks; with `services clocks`, also what lets tests
# run at another time of the day.
# Does nothing when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

debian_install() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $* from Debian"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >&2
  else
    return 1
  fi
}

java_version() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
  command -v "$java" >/dev/null 2>&1 || return 1
  "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1
}

version="$(java_version || true)"
if [ -z "$version" ] || [ "$version" -lt 17 ]; then
  debian_install openjdk-17-jre-headless || {
    say "admitone needs Java 17 or later, found '${version:-none}'."
    say "Install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME, then try again."
    exit 3
  }
fi

# Only the programs are wanted: the tests run clusters of their own, so the package must not start one.
debian_postgres() {
  debian_install postgresql-common || return 1
  sed -i 's/^#\? *create_main_cluster .*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
  debian_install postgresql
}

if [ "${1:-}" = services ] && ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 && ! command -v postgres >/dev/null; then
  debian_postgres || say "PostgreSQL is not installed: the tests of the ledger on it will fail (Debian: apt-get install postgresql)."
fi

# The package starts a server of its own where it can; the tests start theirs.
debian_redis() {
  debian_install redis-server && { invoke-rc.d redis-server stop >/dev/null 2>&1 || true; }
}

if [ "${1:-}" = services ] && ! command -v redis-server >/dev/null; then
  debian_redis || say "Redis is not installed: the tests of results in it will fail (Debian: apt-get install redis-server)."
fi

if [ "${1:-}" = services ]; then
  command -v mvn >/dev/null || debian_install maven || true
  command -v chromium >/dev/null || debian_install chromium fonts-dejavu-core ||
    say "Chromium is not installed: the tests of the dashboard will fail (Debian: apt-get install chromium)."
  command -v curl >/dev/null || debian_install curl || say "curl is not installed: the test of the guides will fail."
  command -v openssl >/dev/null || debian_install openssl || say "openssl is not installed: the tests of TLS will fail."
  scripts/kafka.sh >/dev/null || say "There is no Kafka to start: the tests on it will fail."
fi

if [ "${2:-}" = compiler ]; then
  command -v "${JAVA_HOME:+$JAVA_HOME/bin/}javac" >/dev/null || debian_install openjdk-17-jdk-headless ||
    say "There is no javac: the benchmarks next to Kafka Streams will fail (Debian: apt-get install openjdk-17-jdk-headless)."
fi

if [ "${2:-}" = clocks ] && ! ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1; then
  debian_install faketime || say "There is no libfaketime: nothing can be run near midnight (Debian: apt-get install faketime)."
fi

python=""
for candidate in python3.13 python3.12 python3.11 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info)' 2>/dev/null; then
    python="$candidate"
    break
  fi
done
if [ -z "$python" ]; then
  debian_install python3 python3-venv || { say "admitone needs Python 3.11 or later."; exit 3; }
  python=python3
fi
"$python" -c 'import ensurepip' 2>/dev/null || debian_install python3-venv ||
  { say "Python's venv module is missing (Debian: apt-get install python3-venv)."; exit 3; }

stamp=".venv/installed"
wanted="$(cat pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1) $PWD"
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  say "setting up .venv"
  "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
  printf '%s\n' "$wanted" > "$stamp"
fi

# Spark starts in half the time with its classes in memory form; the tests start it often.
if [ "${1:-}" = services ]; then
  .venv/bin/python -m admitone.spark.class_archive >/dev/null ||
    say "Spark's classes could not be kept: sessions start as slowly as without."
fi

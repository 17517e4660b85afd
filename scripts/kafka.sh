#!/usr/bin/env bash
# Resolves the broker of the tests from Maven, once for all clones, and prints the folder with its jars.
set -euo pipefail
pom="$(cd "$(dirname "$0")" && pwd)/kafka/pom.xml"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/admitone"
jars="$cache/kafka-4.1.0"

mkdir -p "$cache"
exec 9> "$jars.lock"
flock 9
if [ ! -d "$jars" ]; then
  command -v mvn >/dev/null || {
    echo "Kafka's jars are not in $jars and Maven is not there to fetch them (Debian: apt-get install maven)." >&2
    exit 3
  }
  echo "fetching Kafka 4.1.0 into $jars" >&2
  unfinished="$(mktemp -d "$jars.XXXXXX")"
  trap 'rm -rf "$unfinished"' EXIT
  mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$unfinished" >&2 || {
    echo "Maven could not fetch Kafka's jars: see its message above; behind a proxy or mirror, set up ~/.m2/settings.xml." >&2
    exit 4
  }
  chmod 755 "$unfinished"
  mv -T "$unfinished" "$jars"
fi
echo "$jars"

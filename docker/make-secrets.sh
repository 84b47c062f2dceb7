#!/bin/sh
# Writes what compose.yaml mounts as secrets, once, into ./secrets: the server's token with every scope, one that may read metrics alone (for
# Prometheus, and in tokens.json for the server), and Grafana's password. What is there stays as it is.
set -eu
cd "$(dirname "$0")/.."
umask 077
mkdir -p secrets
# Containers read the files as users of their own; the folder lets nobody else of this machine in.
umask 022
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
for name in token metrics-token grafana-password; do
  [ -s "secrets/$name" ] || random > "secrets/$name"
done
[ -s secrets/tokens.json ] ||
  printf '[{"name": "prometheus", "token": "%s", "scopes": ["metrics"]}]\n' "$(cat secrets/metrics-token)" > secrets/tokens.json
echo "secrets/ has the token (secrets/token) and Grafana's password for admin (secrets/grafana-password)"

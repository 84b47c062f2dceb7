#!/bin/sh
# Writes the secrets that compose.yaml mounts into ./secrets: a token with every scope, a token with the scope metrics
# (for Prometheus, and its hash in tokens.json for the server), and Grafana's password. Files that exist stay as they are.
set -eu
cd "$(dirname "$0")/.."
umask 077
mkdir -p secrets
# Containers read the files as other users, so the files are readable. Only you can enter the folder.
umask 022
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
for name in token metrics-token grafana-password; do
  [ -s "secrets/$name" ] || random > "secrets/$name"
done
if command -v sha256sum > /dev/null; then sha256="sha256sum"; else sha256="shasum -a 256"; fi
[ -s secrets/tokens.json ] ||
  printf '[{"name": "prometheus", "sha256": "%s", "scopes": ["metrics"]}]\n' \
    "$($sha256 < secrets/metrics-token | cut -d ' ' -f 1)" > secrets/tokens.json
echo "secrets/token is the server's token, secrets/grafana-password the password of Grafana's user admin"

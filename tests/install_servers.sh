#!/usr/bin/env bash
# `make servers`: what the tests start by hand. Debian and Ubuntu, as root; elsewhere it says what is missing.
set -euo pipefail

missing=()
command -v redis-server > /dev/null || missing+=(redis-server)
command -v epmd > /dev/null && { command -v rabbitmq-server || [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]; } > /dev/null \
  || missing+=(rabbitmq-server)
command -v faketime > /dev/null || missing+=(faketime)
command -v openssl > /dev/null || missing+=(openssl)
for name in slurmctld slurmd munged; do # Debian has them in directories that are not on everyone's PATH
  [ -x "/usr/sbin/$name" ] || command -v "$name" > /dev/null || { missing+=(slurm-wlm munge) && break; }
done
[ -x /usr/sbin/ip ] || command -v ip > /dev/null || missing+=(iproute2)
command -v nsenter > /dev/null || missing+=(util-linux)
command -v mpicc > /dev/null || missing+=(openmpi-bin libopenmpi-dev)
command -v cc > /dev/null || missing+=(gcc libc6-dev)
browser=() # which Ubuntu does not have as a package
command -v chromium-headless-shell > /dev/null || command -v chromium > /dev/null || browser=(chromium-headless-shell fonts-dejavu-core)
all=("${missing[@]}" "${browser[@]}")
[ ${#all[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
  echo "not installed: ${all[*]}; the tests that need them are skipped (install them, or run make servers as root)"
  exit 0
fi

log=$(mktemp)
policy=/usr/sbin/policy-rc.d
# a package's scripts ask this program whether they may start its service: no
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
echo "installing ${all[*]}"
apt() { apt-get -o DPkg::Lock::Timeout=600 -q -y "$@" >> "$log" 2>&1; }
update() { # another apt-get may hold the lists, and the timeout above is not for them
  for _ in 1 2 3 4 5 6; do
    if apt update; then return 0; fi
    sleep 10
  done
  return 1
}
if ! { update && { [ ${#missing[@]} -eq 0 ] || apt install --no-install-recommends "${missing[@]}"; }; }; then
  tail -n 30 "$log" >&2
  echo "could not install ${missing[*]}; the whole log: $log" >&2
  exit 1
fi
if [ ${#browser[@]} -gt 0 ] && ! apt install --no-install-recommends "${browser[@]}"; then
  echo "could not install ${browser[*]}; the tests of pages need one of chromium-headless-shell and chromium"
fi
rm -f "$log"

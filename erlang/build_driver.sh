#!/bin/sh
# rebar3 calls this before it compiles. It brings priv/caravan_driver.so up to date if this directory
# is in Caravan's source tree. An installed copy has the library and no tree above it. Without the
# library, the application still works over TCP, and logs that.
set -eu
[ -n "${CARAVAN_SKIP_DRIVER:-}" ] && exit 0
cd "$(dirname "$0")"
[ -f ../Makefile ] && [ -d ../crates/carrier ] || exit 0
mkdir -p priv
if [ -f priv/caravan_driver.so ] &&
   [ -z "$(find ../crates ../Cargo.toml ../Cargo.lock -newer priv/caravan_driver.so -name '*.[rt][so]*' -print -quit)" ]
then
    exit 0
fi
exec make -C .. driver

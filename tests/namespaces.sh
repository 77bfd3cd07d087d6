# shellcheck shell=bash
# Sourced by tests/engine-net/run, tests/pipe-net/run and tests/store-net/run, which run in namespaces of their own (network, mounts,
# processes): these end with the script, however it ends, and nothing stays behind.

# in_namespaces NAME CASES PROGRAMS [ARGUMENT]...: runs this script again in such namespaces, where this returns, and
# exits as it did. --list prints the cases; without root or one of the programs, nothing runs.
in_namespaces() {
    local name=$1 cases=$2 programs=$3 program
    shift 3
    if [ -n "${CARAVAN_NET_INSIDE:-}" ]; then
        # The names of network namespaces are mounts in /run.
        mount -t tmpfs tmpfs /run && mkdir /run/scratch /run/sshd || exit 1
        scratch=/run/scratch
        return
    fi
    if [ "${1:-}" = --list ]; then
        echo "$cases"
        exit 0
    fi
    if [ -n "${CARAVAN_SKIP_ROOT_TESTS:-}" ]; then
        echo "$name: skipped: CARAVAN_SKIP_ROOT_TESTS is set."
        exit 0
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "$name: skipped: network namespaces take root, and this is $(id -un)."
        exit 0
    fi
    for program in ip ethtool unshare setpriv $programs; do
        command -v "$program" >/dev/null || { echo "$name: there is no $program: run scripts/bootstrap test" >&2 && exit 1; }
    done
    [ -x "$caravan" ] || { echo "$name: there is no $caravan: run make build, or set CARAVAN" >&2 && exit 1; }
    export CARAVAN_NET_INSIDE=1
    # The namespaces' first process dies with unshare, that with this script, and all others with the first.
    setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@" &
    inside=$!
    trap 'kill -KILL $inside 2>/dev/null; echo "$name: interrupted." >&2; exit 130' INT TERM HUP
    wait "$inside"
    exit
}

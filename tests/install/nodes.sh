# shellcheck shell=bash
# The tests in this folder source this file. Each has one way to start a node. two_nodes starts two, and
# fails unless both report that shared memory carries their link.
#
# Each test has its own HOME, folder, cookie and epmd (on its own port), and removes them.
set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. scripts/env
checkout=$PWD
scratch=$(mktemp -d)
export HOME=$scratch/home ERL_CRASH_DUMP=$scratch/dump
export ERL_EPMD_PORT=$((20000 + RANDOM % 10000)) ERL_EPMD_ADDRESS=127.0.0.1
export PAIR_COOKIE=pair$RANDOM$RANDOM
mkdir -p "$HOME"
first_node=

end() {
    [ -n "$first_node" ] && kill "$first_node" 2>/dev/null
    epmd -kill >/dev/null 2>&1
    rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT TERM

fail() { # fail SENTENCE
    echo "  FAILED: $*" >&2
    for log in "$scratch"/*.log; do
        [ -s "$log" ] && { echo "  -- ${log##*/}"; tail -30 "$log"; } >&2
    done
    exit 1
}

# quietly COMMAND...: prints the command's output only if it fails.
quietly() {
    "$@" >"$scratch/command.log" 2>&1 </dev/null || fail "$*"
}

# Compiles the application without a build tool.
compile_pair() {
    mkdir -p "$scratch/pair/ebin"
    quietly erlc -o "$scratch/pair/ebin" tests/install/project/src/pair.erl
    cp tests/install/project/src/pair.app.src "$scratch/pair/ebin/pair.app"
}

copy_project() {
    cp -R tests/install/project "$scratch/project"
    cd "$scratch/project" || exit 1
}

# two_nodes FUNCTION: FUNCTION NAME runs a node of that name in the foreground. The second node starts
# when the first has printed that it is up.
two_nodes() {
    local line=
    exec 3< <("$1" pair_b@localhost 2>"$scratch/first.log" </dev/null)
    first_node=$!
    while [ "${line%$'\r'}" != up ]; do
        read -r -t 300 -u 3 line || fail "the first node did not come up"
        echo "$line" >>"$scratch/first.log"
    done
    (PAIR_PEER=pair_b@localhost "$1" pair_a@localhost) >"$scratch/second.log" 2>&1 </dev/null
    grep -q 'carried by shm and shm' "$scratch/second.log" || fail "shared memory did not carry the link"
    exec 3<&-
}

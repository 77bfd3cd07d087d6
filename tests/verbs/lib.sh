# shellcheck shell=bash
# Sourced by the stages of `make test-verbs`, in the root of the checkout: `. tests/verbs/lib.sh`.
set -u -o pipefail
. scripts/env

# in_guest [OPTION of tests/verbs-vm/run]... -- FUNCTION [ARGUMENT]...: runs a function of the stage, which
# may call others of it, or any command, in a guest or in two.
in_guest() {
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    tests/verbs-vm/run "${options[@]}" -- bash -c "$(declare -f)"$'\n''"$@"' bash "$@"
}

# on_all_devices FUNCTION [ARGUMENT]...: calls it, on this machine, with the options of each kind of devices
# in one guest and in two before its arguments, until one fails.
on_all_devices() {
    local kind hosts
    for kind in rxe siw; do
        for hosts in 1 2; do
            "$1" --"$kind" --hosts "$hosts" "${@:2}" || { echo "  failed on $kind, guests: $hosts" >&2 && return 1; }
        done
    done
}

# wait_for COMMAND...: until it succeeds, in a guest or here; fails after 30 s.
wait_for() {
    local deadline=$((SECONDS + 30))
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "  waited 30 s in vain for: $*" >&2 && return 1; }
        sleep 0.05
    done
}

# test_program PACKAGE TEST: builds that test of cargo's and prints the path of its program.
test_program() {
    local program
    program=$("$CARGO" test --locked --quiet -p "$1" --test "$2" --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
    [ -x "$program" ] || { echo "  cargo built no test $2 of $1" >&2 && return 1; }
    echo "$program"
}

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

# wait_for COMMAND...: until it succeeds, in a guest or here; fails after two minutes.
wait_for() {
    local deadline=$((SECONDS + 120))
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "  waited two minutes in vain for: $*" >&2 && return 1; }
        sleep 0.05
    done
}

# serve FOLDER: in a guest that is to be reached at port 2222, lets root in with the key in that folder. What
# root's start files on this machine do is none of it, and may take long: its home is another one. The usual key exchange takes ssh longer than all that is tested.
serve() {
    mkdir -p /run/sshd && cp "$1/host" /run/host_key && chmod 600 /run/host_key &&
        printf '%s\n' "Port 2222" "HostKey /run/host_key" "AuthorizedKeysFile $1/key.pub" "PidFile none" "StrictModes no" \
            "UsePAM no" "PasswordAuthentication no" "SetEnv HOME=/run" "KexAlgorithms curve25519-sha256" >/run/sshd_config &&
        /usr/sbin/sshd -f /run/sshd_config
}

# make_keys FOLDER ADDRESS: for serve at that address; the key is in /run/key as well.
make_keys() {
    ssh-keygen -q -t ed25519 -N '' -f "$1/host" && ssh-keygen -q -t ed25519 -N '' -f "$1/key" &&
        echo "[$2]:2222 $(cat "$1/host.pub")" >"$1/known_hosts" &&
        cp "$1/key" /run/key && chmod 600 /run/key
}

# until_there FILE: between two guests, as long as the other one needs, or until it has failed.
until_there() {
    until [ -e "$1" ]; do
        [ ! -e "$VERBS_SHARED/failed" ] || return 1
        sleep 0.2
    done
}

# test_program TEST: builds that test of the workspace and prints the path of its program. Of one package alone, cargo
# would compile crates with other features than `make test` does, and thus once more.
test_program() {
    local program
    program=$("$CARGO" test --locked --quiet --workspace --test "$1" --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
    [ -x "$program" ] || { echo "  cargo built no test $1" >&2 && return 1; }
    echo "$program"
}

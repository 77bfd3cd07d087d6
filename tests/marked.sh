# shellcheck shell=bash
# Sourced by tests/otp-suites/run and tests/apps/rabbitmq, whose nodes start others, also detached ones.

# end_marked VARIABLE=VALUE: kills the processes in whose environment a variable begins like this.
end_marked() {
    local environ pid
    for environ in /proc/[0-9]*/environ; do
        pid=${environ#/proc/}
        pid=${pid%/environ}
        if tr '\0' '\n' <"$environ" | grep -q "^$1"; then kill -9 "$pid" || true; fi
    done 2>/dev/null
}

# free_ports COUNT: prints that many free TCP ports.
free_ports() {
    erl -noinput -eval "Ls = [element(2, gen_tcp:listen(0, [])) || _ <- lists:seq(1, $1)],
        [begin {ok, P} = inet:port(L), io:format(\"~w~n\", [P]) end || L <- Ls], halt()."
}

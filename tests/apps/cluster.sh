# shellcheck shell=bash
# shellcheck disable=SC2154 # set by the caller
# The cluster of tests/apps/rabbitmq: its nodes, and one round of publishing and killing.
# The caller sources this and sets work, home, root, transport, messages, kills and erl_args.

# on NODE COMMAND...: runs the command in the environment of that node. All nodes share HOME (with the
# cookie) and one epmd, which belongs to this run.
on() {
    local node=$1
    shift
    env CARAVAN_APPS_RUN="$work/$node/" ERL_EPMD_PORT="$epmd_port" \
        RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_NODENAME="$node@localhost" \
        RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT="${amqp_port[$node]}" \
        RABBITMQ_DIST_PORT="${dist_port[$node]}" RABBITMQ_PID_FILE="$work/$node/pid" \
        RABBITMQ_MNESIA_BASE="$work/$node/mnesia" RABBITMQ_LOG_BASE="$work/$node/log" \
        RABBITMQ_CONFIG_FILE="$work/$node/rabbitmq" RABBITMQ_GENERATED_CONFIG_DIR="$work/$node/config" \
        RABBITMQ_ENABLED_PLUGINS_FILE="$work/$node/plugins" \
        RABBITMQ_CTL_DIST_PORT_MIN="$ctl_port" RABBITMQ_CTL_DIST_PORT_MAX="$((ctl_port + 50))" \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$erl_args" RABBITMQ_CTL_ERL_ARGS="$erl_args" \
        nice -n 5 "$@"
}

ctl() {
    local node=$1
    shift
    on "$node" "$home/sbin/rabbitmqctl" -q -n "$node@localhost" "$@"
}

start_node() {
    local node=$1
    mkdir -p "$work/$node/config"
    echo '[].' >"$work/$node/plugins"
    printf 'disk_free_limit.absolute = 50MB\nloopback_users = none\n' >"$work/$node/rabbitmq.conf"
    on "$node" setsid "$home/sbin/rabbitmq-server" >>"$work/$node.console" 2>&1 </dev/null &
    disown
    # The pid file exists when the node begins to boot. `rabbitmqctl wait` returns when it has booted.
    for _ in $(seq 1200); do [ -s "$work/$node/pid" ] && break; sleep 0.1; done
    ctl "$node" wait --timeout 300 "$work/$node/pid" >/dev/null ||
        wrong "node $node did not start: $(tail -n 3 "$work/$node.console" | tr '\n' ' ')"
}

kill_node() {
    local node=$1 pid
    pid=$(cat "$work/$node/pid")
    # With SIGKILL, as from the out-of-memory killer, the node cannot close its connections in order.
    kill -9 "$pid"
    rm -f "$work/$node/pid"
}

start_cluster() {
    local first=$1 node ports step
    shift
    mapfile -t ports < <(free_ports $((2 + 2 * ($# + 1))))
    epmd_port=${ports[0]} ctl_port=${ports[1]}
    [ "$ctl_port" -lt 65000 ] || ctl_port=64000
    declare -gA amqp_port=() dist_port=()
    local at=2
    for node in "$first" "$@"; do
        amqp_port[$node]=${ports[at]} dist_port[$node]=${ports[at + 1]}
        at=$((at + 2))
    done
    for node in "$first" "$@"; do start_node "$node"; done
    for node in "$@"; do
        for step in stop_app reset "join_cluster $first@localhost" start_app; do
            # shellcheck disable=SC2086 # a command and its argument
            ctl "$node" $step >>"$work/$node.console" 2>&1 || wrong "$step failed on $node"
        done
    done
}

# leader NODE: asks NODE which node leads the queue, and prints its name.
leader() {
    ctl "$1" eval '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"orders">>)),
        P = amqqueue:get_pid(Q),
        N = if is_pid(P) -> node(P); true -> element(2, P) end,
        io:format("~s~n", [hd(string:split(atom_to_list(N), "@"))]).' | head -n 1
}

# replicated NODE COUNT: waits until COUNT replicas of the queue are complete.
replicated() {
    local node=$1 count=$2 state=""
    for _ in $(seq 120); do
        if [ "$kind" = mirrored ]; then
            state=$(ctl "$node" list_queues name synchronised_slave_pids | grep -c "orders.*<" || true)
            [ "$state" -ge 1 ] && return 0
        else
            state=$(ctl "$node" eval '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"orders">>)),
                Online = proplists:get_value(online, rabbit_quorum_queue:info(Q, [online])),
                io:format("~w~n", [length(Online)]).' | head -n 1)
            [ "${state:-0}" -ge "$count" ] && return 0
        fi
        sleep 0.5
    done
    state=$(ctl "$node" list_queues name online members synchronised_slave_pids | tr '\n' ' ') || true
    wrong "the queue did not get $count replicas back: $state"
}

# prove_carrier NODE: prints the links of NODE. Fails unless shared memory carries each of them.
prove_carrier() {
    local node=$1 rows row sent
    if [ "$transport" = tcp ]; then
        return 0
    fi
    rows=$(ctl "$node" eval '[begin
            #{transport := T, sent_bytes := S, received_bytes := R, sent_messages := M} = I,
            io:format("~s ~s sent_bytes=~w received_bytes=~w sent_messages=~w ~ts~n",
                      [N, T, S, R, M, maps:get(reason, I, <<>>)])
        end || {N, I} <- caravan_dist:info(), lists:member(N, rabbit_nodes:all_running())], ok.' | grep '@') ||
        wrong "caravan_dist:info() on $node names no link to the cluster's other nodes"
    while read -r row; do
        say "  $node -> $row"
        case $row in
            *' shm '*) ;;
            *) [[ $erl_args == *'transport tcp'* ]] ||
                wrong "shared memory did not carry the link $node -> $row" ;;
        esac
        sent=${row#*sent_bytes=}
        sent=${sent%% *}
        [ "$sent" -gt 0 ] || wrong "the link $node -> $row carried nothing"
    done <<<"$rows"
}

# await WORD: waits for the publisher's next line that begins with WORD, and prints it.
await() {
    local line
    while read -r -t 180 line <&"${publisher[0]}"; do
        case $line in
            "$1"*) printf '%s\n' "$line"; return 0 ;;
            error*) wrong "the publisher: $line" ;;
        esac
    done
    wrong "the publisher did not print \"$1\" within 180 s"
}

# round KIND: starts a new cluster with a queue of that kind, kills its leader $kills times, and
# checks the messages.
round() {
    kind=$1
    local nodes=(caravan_a caravan_b) node leader line kill_number
    [ "$kind" = mirrored ] || nodes+=(caravan_c)
    say "$kind queue on ${#nodes[@]} nodes over $transport: starting the cluster"
    rm -rf "$work"/caravan_*
    start_cluster "${nodes[@]}"
    [ "$kind" = quorum ] || ctl caravan_a set_policy all '^orders$' '{"ha-mode":"all","ha-sync-mode":"automatic"}'
    local urls=()
    for node in "${nodes[@]}"; do urls+=("${amqp_port[$node]}"); done
    coproc publisher { ERL_LIBS=$home/plugins CARAVAN_APPS_RUN=$work/publisher/ nice -n 5 \
        erl -noshell -pa "$work/beams" -run confirmed_publisher main "$kind" "$messages" "${urls[@]}" 2>&1; }
    await declared >/dev/null
    replicated caravan_a "${#nodes[@]}"
    for ((kill_number = 1; kill_number <= kills; kill_number++)); do
        leader=$(leader "$(other "" "${nodes[@]}")")
        # The publisher is connected to another node, where confirms on their way survive the kill.
        echo "publish ${amqp_port[$(other "$leader" "${nodes[@]}")]}" >&"${publisher[1]}"
        line=$(await confirmed)
        prove_carrier "$(other "$leader" "${nodes[@]}")"
        say "  $line; killing $leader, which leads the queue"
        kill_node "$leader"
        echo "killed" >&"${publisher[1]}"
        line=$(await confirmed)
        say "  $line after the kill; starting $leader again"
        start_node "$leader"
        replicated "$leader" "${#nodes[@]}"
    done
    prove_carrier "$leader"
    echo "verify" >&"${publisher[1]}"
    line=$(await verified)
    case $line in
        *'lost=0 damaged=0'*) say "  $line" ;;
        *) wrong "$kind queue: $line" ;;
    esac
    end_marked "CARAVAN_APPS_RUN=$work/"
    wait
}

# other NODE NODES...: prints the first of NODES that is not NODE.
other() {
    local not=$1 node
    shift
    for node in "$@"; do
        [ "$node" = "$not" ] || { printf '%s\n' "$node"; return 0; }
    done
}

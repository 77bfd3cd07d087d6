%% What ends a link over RDMA, or prevents it: killed and stopped nodes, pulled cables,
%% firewalls, missing libraries, limits. Each time the nodes report it in time, and nothing is left.
%%
%% CARAVAN_KILLS and CARAVAN_PULLS: how many links end at random, each way.
-module(rdma_faults_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).
-export([stopped/1, slow_receiver/1, killed_at_random/1, pulled_at_random/1, only_rdma_cut/1, firewall/1,
         no_library/1, locked_memory/1, released/1, removed_device/1,
         ends_hold_no_scheduler/1]).

-import(caravan_hosts, [linked/2, node_at/2, pair/2, shell/2]).
-import(caravan_cluster, [with/2, call/2, call/4, connect/2, name/1, transport/2, has_logged/2, start_load/2, stop_load/1,
                          nodedown_after/3, resident_bytes/1, state/1, unchanged/1, signal/2]).

%% Seconds of net_ticktime: a link that is silent for longer has ended.
-define(TICK_S, 8).
%% How often a busy machine may spoil a measurement.
-define(ATTEMPTS, 5).
%% Nodes that are killed at each host in a round.
-define(KILLED_EACH, 2).
%% What a machine of one slow processor takes longer than it should.
-define(SLOW_MS, 20000).

suite() -> [{timetrap, {minutes, 10}}].

%% iWARP is TCP: no firewall lets only one of them through. Within one host, nothing takes the wire, and nodes without
%% RDMA take shared memory; the interface between two guests cannot be removed.
all() ->
    TwoHosts = [stopped, slow_receiver, pulled_at_random, killed_at_random, released, no_library, locked_memory],
    case {caravan_hosts:count(), caravan_hosts:kind()} of
        {1, _} -> [removed_device];
        {2, "siw"} -> TwoHosts;
        {2, "rxe"} -> [firewall, only_rdma_cut, ends_hold_no_scheduler | TwoHosts]
    end.

%% No node runs yet: what the kernel keeps now for users of devices, it must keep after every case. To start a node takes
%% seconds in a guest: the cases up to `released' have one pair, and nodes of their own besides.
init_per_suite(Config) ->
    _ = rand:seed(exsss),
    Before = caravan_hosts:devices(),
    Both = case caravan_hosts:count() of
               1 -> [];
               2 -> caravan_cluster:start_all([maps:remove(transport, O) || O <- pair(options(), options())])
           end,
    [{devices, Before}, {both, Both} | Config].

end_per_suite(Config) ->
    caravan_cluster:stop(both(Config)).

both(Config) -> proplists:get_value(both, Config).

init_per_testcase(Case, Config) when Case =:= no_library; Case =:= locked_memory; Case =:= removed_device ->
    Config;
init_per_testcase(_, Config) ->
    take(Config, rdma),
    [call(X, ets, delete_all_objects, [caravan_test_log]) || X <- both(Config)],
    Config.

%% The transport of this pair's links to come. (The command line would win.)
take(Config, Transport) ->
    [ok = call(X, application, set_env, [caravan, transport, Transport]) || X <- both(Config)].

end_per_testcase(removed_device, _) ->
    ok;
end_per_testcase(Case, Config) when Case =:= released; Case =:= no_library; Case =:= locked_memory ->
    caravan_hosts:as_before(fun caravan_hosts:devices/0, proplists:get_value(devices, Config));
end_per_testcase(_, Config) ->
    [A, B] = both(Config),
    call(A, erlang, disconnect_node, [name(B)]),
    [parted(X) || X <- [A, B]],
    caravan_hosts:as_before(fun caravan_hosts:objects/0, caravan_hosts:objects(proplists:get_value(devices, Config))).

%% What the nodes had open goes with them.
released(Config) -> caravan_cluster:stop(both(Config)).

%% Nodes that connect only when told to, and soon see that the other one is silent.
options() ->
    #{transport => rdma,
      args => caravan_cluster:no_auto_connect()
          ++ ["-kernel", "net_ticktime", integer_to_list(?TICK_S), "net_setuptime", "60"]}.

%% ---------------------------------------------------------------------------------------------

%% A stopped node's device answers as before: only the ticks notice.
stopped(Config) ->
    [A, B] = both(Config),
    [begin
         linked(A, B),
         Load andalso start_load(A, B),
         {Ms, Reason} = nodedown_after(A, B, fun() -> signal(B, "STOP") end),
         ct:pal("nodedown ~b ms after SIGSTOP (~p), load: ~p", [Ms, Reason, Load]),
         ?assertEqual(net_tick_timeout, Reason),
         ?assert(Ms < ?TICK_S * 1250 + ?SLOW_MS),
         stop_load(A),
         signal(B, "CONT"),
         parted(B)
     end || Load <- [false, true]],
    linked(A, B).

%% Whatever link this node had has ended.
parted(Node) -> caravan_hosts:forgotten(Node, ?TICK_S * 1250 + ?SLOW_MS).

%% A reader that stands still: senders are suspended, memory stays where it is, and in the end every
%% message is there.
slow_receiver(Config) ->
    [A, B] = both(Config),
    linked(A, B),
    {Senders, Each} = {20, 20},
    Counter = caravan_cluster:start_counter(B),
    signal(B, "STOP"),
    Before = resident_bytes(A),
    call(A, fun() ->
        %% 100 KB of encoded list each: 40 MB in all.
        [spawn(fun() -> [Counter ! {N, lists:seq(1, 20000)} || N <- lists:seq(1, Each)] end)
         || _ <- lists:seq(1, Senders)]
    end),
    caravan_cluster:wait_until(fun() -> maps:get(busy_count, caravan_cluster:info(A, B)) >= 1 end),
    nosuspend = call(A, erlang, send, [Counter, unsent, [nosuspend]]),
    Stalled = resident_bytes(A),
    ct:pal("stalled: memory ~b -> ~b KiB", [Before div 1024, Stalled div 1024]),
    ?assert(Stalled < Before + 30 * 1024 * 1024),
    signal(B, "CONT"),
    caravan_cluster:wait_until(fun() -> caravan_cluster:counted(B) =:= Senders * Each end).

%% ---------------------------------------------------------------------------------------------
%% Ends at random, in the middle of traffic; both hosts have nodes that live through them.

%% Rounds of nodes that are killed, at each host; each has its survivor at the other one.
killed_at_random(Config) ->
    [A, B] = both(Config),
    Kills = number("CARAVAN_KILLS", 4),
    kill_round(A, B),
    Before = [state(N) || N <- [A, B]],
    [begin
         kill_round(A, B),
         ct:pal("~b of ~b are killed", [2 * ?KILLED_EACH * Round, Kills])
     end || Round <- lists:seq(1, max(1, Kills div (2 * ?KILLED_EACH)))],
    [unchanged(State) || State <- Before].

%% Nodes at each host, linked to the survivor at the other one, are killed while they talk to it.
kill_round(A, B) ->
    Hosts = lists:duplicate(?KILLED_EACH, 1) ++ lists:duplicate(?KILLED_EACH, 0),
    Survivors = lists:duplicate(?KILLED_EACH, A) ++ lists:duplicate(?KILLED_EACH, B),
    %% All at once: most of the time goes into starting them, and each host has a processor.
    Peers = caravan_cluster:start_all([node_at(At, options()) || At <- Hosts]),
    ct:pal("~b nodes have started", [length(Peers)]),
    Links = lists:zip(Survivors, Peers),
    [begin linked(Survivor, Peer), start_load(Survivor, Peer) end || {Survivor, Peer} <- Links],
    [begin
         receive after rand:uniform(100) -> ok end,
         {Ms, Reason} = nodedown_after(Survivor, Peer, fun() -> signal(Peer, "KILL") end),
         ct:log("nodedown ~b ms after SIGKILL (~p)", [Ms, Reason]),
         ?assert(Ms < ?SLOW_MS)
     end || {Survivor, Peer} <- Links],
    caravan_cluster:stop(Peers),
    [stop_load(Survivor) || Survivor <- [A, B]].

%% Pairs of nodes, all on the one wire; its end is pulled at either host, and put back.
pulled_at_random(Config) ->
    Rounds = max(1, number("CARAVAN_PULLS", 2) div 2),
    with(pair(options(), options()), fun(Others) ->
        Both = [list_to_tuple(Pair) || Pair <- [both(Config), Others]],
        pull(Both),
        Before = [state(N) || N <- both(Config) ++ Others],
        [pull(Both) || _ <- lists:seq(1, Rounds)],
        [unchanged(State) || State <- Before]
    end).

pull(Both) ->
    [begin linked(A, B), start_load(A, B), start_load(B, A) end || {A, B} <- Both],
    receive after rand:uniform(300) -> ok end,
    Host = rand:uniform(2) - 1,
    At = erlang:monotonic_time(millisecond),
    cut(Host),
    [parted(Node) || Pair <- Both, Node <- tuple_to_list(Pair)],
    Ms = erlang:monotonic_time(millisecond) - At,
    mend(Host),
    [stop_load(Node) || Pair <- Both, Node <- tuple_to_list(Pair)],
    %% The way is there again within a moment.
    [begin
         caravan_cluster:wait_until(fun() -> connect(A, B) end),
         ?assertEqual(rdma, transport(A, B)),
         true = call(A, erlang, disconnect_node, [name(B)])
     end || {A, B} <- Both],
    ct:pal("~b links have ended ~b ms after the cable of host ~b was pulled", [length(Both), Ms, Host]),
    %% Each said so: the one who had something to send, or the one who heard nothing.
    [has_logged(Node, ["link to", "closed:"]) || {A, B} <- Both, Node <- [A, B], ended_by_device(Node)].

%% A node that was told by its ticks has net_kernel's sentence instead.
ended_by_device(Node) ->
    [] =:= caravan_cluster:logged_with(Node, "not responding").

%% A guest's interface to another one does not come up again: the wire is cut behind it, and no device sees its port
%% go down.
cut(Host) ->
    shell(Host, "tc qdisc replace dev vec0 root netem loss 100%"),
    shell(Host, "nft \"add table inet cut; add chain inet cut in { type filter hook input priority 0; }; "
                "add rule inet cut in iif vec0 drop\"").

mend(Host) ->
    shell(Host, "tc qdisc delete dev vec0 root; nft delete table inet cut").

number(Variable, Default) ->
    list_to_integer(os:getenv(Variable, integer_to_list(Default))).

%% ---------------------------------------------------------------------------------------------

%% The TCP connection lives, and RDMA's packets are dropped.
only_rdma_cut(Config) ->
    [A, B] = both(Config),
    linked(A, B),
    start_load(A, B),
    {Ms, Reason} = nodedown_after(A, B, fun wall/0),
    unwall(),
    ct:pal("nodedown ~b ms after RDMA alone was cut (~p)", [Ms, Reason]),
    ?assert(Ms < ?TICK_S * 1250 + ?SLOW_MS),
    one_has_logged([A, B], "its device does not answer"),
    parted(B),
    stop_load(A),
    linked(A, B).

%% Who notices first says so, and ends the connection: to the other one that is an end like any.
one_has_logged(Nodes, Part) ->
    caravan_cluster:wait_until(fun() ->
        [] =/= lists:append([caravan_cluster:logged_with(Node, Part) || Node <- Nodes])
            orelse {not_logged, Part, [caravan_cluster:logged(Node) || Node <- Nodes]}
    end).

wall() ->
    [shell(Host, "nft \"add table inet wall; add chain inet wall in { type filter hook input priority 0; }; "
                 "add rule inet wall in udp dport 4791 drop\"") || Host <- [0, 1]].

unwall() ->
    [shell(Host, "nft delete table inet wall") || Host <- [0, 1]].

%% Many links end at once because what is between the hosts has failed, and this node goes on meanwhile:
%% when it closes links that still have something under way, and when its device gives them up.
ends_hold_no_scheduler(Config) ->
    [A, B] = both(Config),
    with(lists:duplicate(3, node_at(1, options())), fun(Others) ->
        Peers = [B | Others],
        true = holds_none(A, Peers, [name(Peer) || Peer <- Peers], ?ATTEMPTS)
    end).

%% To wait for each link would take 200 ms, every time. A busy machine holds a node up by itself, now and then.
holds_none(A, Peers, Names, Attempts) ->
    {LostMs, _} = ended(A, Peers, fun() -> [erlang:disconnect_node(Name) || Name <- Names] end),
    {_, Held} = ended(A, Peers, fun() -> ok end),
    ct:pal("of ~b links: when closed, ~b ms held; when given up, ~b held a scheduler",
           [length(Peers), LostMs, length(Held)]),
    LostMs < length(Peers) * 150 andalso length(Held) =< 2
        orelse Attempts > 1 andalso holds_none(A, Peers, Names, Attempts - 1).

%% Links with something under way end: for how long this node did nothing else, which is counted from
%% `End' on, and which ports have held it.
ended(A, Peers, End) ->
    Names = [name(B) || B <- Peers],
    [linked(A, B) || B <- Peers],
    wall(),
    call(A, fun() ->
        watch_schedulers(),
        [erlang:send({nobody, Name}, something, [noconnect]) || Name <- Names],
        End()
    end),
    [parted(N) || N <- [A | Peers]],
    caravan_cluster:wait_until(fun() ->
        [] =:= call(A, fun() -> [Port || Port <- erlang:ports(),
                                         {name, "caravan_driver"} =:= erlang:port_info(Port, name)] end)
    end),
    Watched = call(A, fun() -> watcher ! {held, self()}, receive {held, Lost, Ports} -> {Lost, Ports} end end),
    unwall(),
    Watched.

watch_schedulers() ->
    Self = self(),
    spawn_opt(fun() ->
                  true = register(watcher, self()),
                  erlang:system_monitor(self(), [{long_schedule, 90}]),
                  Self ! watching,
                  watch_schedulers(erlang:monotonic_time(millisecond), 0, [])
              end, [{priority, max}]),
    receive watching -> ok end.

watch_schedulers(Seen, Lost, Ports) ->
    receive
        {held, From} ->
            erlang:system_monitor(undefined),
            true = unregister(watcher),
            From ! {held, Lost, lists:usort(Ports)};
        {monitor, Held, long_schedule, _} ->
            watch_schedulers(Seen, Lost, [Held || is_port(Held)] ++ Ports)
    after 5 ->
        Now = erlang:monotonic_time(millisecond),
        watch_schedulers(Now, Lost + case Now - Seen of Ms when Ms > 90 -> Ms; _ -> 0 end, Ports)
    end.

%% RDMA cannot be had: TCP, with the reason, within the time of a set-up.
falls_back(A, B, Sentence) ->
    At = erlang:monotonic_time(millisecond),
    true = connect(A, B),
    Ms = erlang:monotonic_time(millisecond) - At,
    ct:pal("~b ms to TCP: ~s", [Ms, maps:get(reason, caravan_cluster:info(A, B))]),
    ?assertEqual(tcp, transport(A, B)),
    [has_logged(X, ["caravan: TCP to", Part]) || {X, Part} <- [{A, Sentence}]],
    ?assert(Ms < 7000 + ?SLOW_MS),
    ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []])).

firewall(Config) ->
    [A, B] = both(Config),
    take(Config, auto),
    wall(),
    try falls_back(A, B, "UDP port 4791") after unwall() end.

%% Nodes that take TCP where they cannot have RDMA.
falling() -> (options())#{transport => auto}.

%% An empty file in place of the library, at the side that connects and at the other.
no_library(_) ->
    [begin
         shell(Broken, "touch /tmp/empty; for f in $(ldconfig -p | sed -n \"s/.*libibverbs.so.1 .*=> //p\"); "
                       "do mount --bind /tmp/empty $f; done"),
         try
             with(pair(falling(), falling()), fun([A, B]) -> falls_back(A, B, Sentence) end)
         after
             shell(Broken, "for f in $(ldconfig -p | sed -n \"s/.*libibverbs.so.1 .*=> //p\"); do umount $f; done")
         end
     end || {Broken, Sentence} <- [{0, "rdma-core is not installed or broken"},
                                   {1, "the peer says: rdma-core is not installed or broken"}]].

%% As an ordinary user with little memory to lock, where root has no limit.
locked_memory(_) ->
    Bounded = (falling())#{exec => {"/bin/sh", ["-c",
        "ulimit -l 64; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock erl \"$@\"", "sh"]}},
    with(pair(Bounded, falling()), fun([A, B]) -> falls_back(A, B, "this user may lock 65536") end).

%% The interface goes while its device is in use, and the device with it, once the link has let go of it.
removed_device(_) ->
    with(pair(options(), options()), fun([A, B]) ->
        linked(A, B),
        start_load(A, B),
        {Ms, Reason} = nodedown_after(A, B, fun() -> shell(0, "ip link delete veth0") end),
        ct:pal("nodedown ~b ms after the interface was removed (~p)", [Ms, Reason]),
        ?assert(Ms < ?TICK_S * 1250 + ?SLOW_MS),
        parted(B),
        stop_load(A),
        caravan_cluster:wait_until(fun() ->
            case caravan_cluster:shell("! rdma link | grep -q .") of {0, _} -> true; Other -> Other end
        end),
        ?assertEqual({error, <<"this machine has no RDMA device">>}, call(A, caravan_cluster, rdma, []))
    end).

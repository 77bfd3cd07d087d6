%% Nodes that are killed, stopped, slow, and many; nothing may be left behind.
%%
%% CARAVAN_KILLS and CARAVAN_RECONNECTS set how often; `make test-long' sets more than the default.
-module(carrier_faults_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([killed/1, stopped/1, stopped_under_load/1, random_kills/1, reconnects/1,
         reconnects_under_load/1, slow_receiver/1, port_killed/1, connection_killed/1, mesh/1,
         out_of_descriptors/1]).

-import(caravan_cluster, [with/2, call/2, call/4, connect/2, transport/2, name/1, nodedown_after/3, resident_bytes/1, state/1,
                          unchanged/1, unchanged/2]).

%% What happens at once, on a slow machine with other work.
-define(AT_ONCE_MS, 10000).

suite() -> [{timetrap, {minutes, 10}}].

all() ->
    [killed, stopped, stopped_under_load, random_kills, reconnects, reconnects_under_load,
     slow_receiver, port_killed, connection_killed, mesh, out_of_descriptors].

number(Variable, Default) ->
    list_to_integer(os:getenv(Variable, integer_to_list(Default))).

%% SIGKILL is seen at once, whether the link is silent or full, and not when a minute of ticks has passed.
killed(_) ->
    with([#{}], fun([A]) ->
        [with([#{}], fun([B]) ->
            true = connect(A, B),
            shm = transport(A, B),
            Load andalso start_load(A, B),
            {Ms, Reason} = nodedown_after(A, B, fun() -> caravan_cluster:kill(B) end),
            ct:pal("nodedown ~b ms after SIGKILL (~p), load: ~p", [Ms, Reason, Load]),
            ?assert(Ms < ?AT_ONCE_MS),
            ?assertEqual(connection_closed, Reason)
         end) || Load <- [false, true, false, true]]
    end).

%% A stopped node has all its sockets open: only the ticks notice.
stopped(_) -> stopped(false, 4).

stopped_under_load(_) -> stopped(true, 4).

stopped(Load, Ticktime) ->
    Args = ["-kernel", "net_ticktime", integer_to_list(Ticktime)],
    with([#{args => Args}, #{args => Args}], fun([A, B]) ->
        true = connect(A, B),
        shm = transport(A, B),
        Load andalso start_load(A, B),
        {Ms, Reason} = nodedown_after(A, B, fun() -> caravan_cluster:signal(B, "STOP") end),
        ct:pal("nodedown ~b ms after SIGSTOP (~p), load: ~p", [Ms, Reason, Load]),
        ?assertEqual(net_tick_timeout, Reason),
        %% As documented: between three quarters and five quarters of it, and a machine's delays.
        ?assert(Ms > Ticktime * 1000 * 70 div 100),
        ?assert(Ms < Ticktime * 1250 + ?AT_ONCE_MS),
        caravan_cluster:stop_load(A),
        caravan_cluster:signal(B, "CONT"),
        caravan_cluster:wait_until(fun() -> [] =:= call(B, erlang, nodes, []) end),
        true = connect(A, B),
        shm = transport(A, B)
    end).

%% The peer dies in the middle of traffic, again and again; the survivor loses nothing by it.
random_kills(_) ->
    Kills = number("CARAVAN_KILLS", 40),
    Seed = rand:seed(exsss),
    ct:pal("seed ~p", [rand:export_seed_s(Seed)]),
    ShmBefore = caravan_cluster:shm_files(),
    with([#{args => ["+S", "2", "-caravan", "ring_bytes", "262144"]}], fun([A]) ->
        %% Once, for what is made once.
        kill_batch(A, 5),
        Before = state(A),
        [kill_batch(A, 5) || _ <- lists:seq(1, Kills div 5)],
        unchanged(Before)
    end),
    ?assertEqual(ShmBefore, caravan_cluster:shm_files()).

kill_batch(A, Count) ->
    Peers = caravan_cluster:start_all(lists:duplicate(Count, #{})),
    [begin
         true = connect(A, B),
         shm = transport(A, B),
         start_load(A, B)
     end || B <- Peers],
    [begin
         receive after rand:uniform(20) -> ok end,
         caravan_cluster:kill(B)
     end || B <- Peers],
    caravan_cluster:stop(Peers),
    caravan_cluster:stop_load(A).

reconnects(_) ->
    Count = number("CARAVAN_RECONNECTS", 300),
    Told = #{args => caravan_cluster:no_auto_connect()},
    with([Told, Told], fun([A, B]) ->
        cycle(A, B, 20),
        cycle(B, A, 20),
        Before = [state(N) || N <- [A, B]],
        cycle(A, B, Count div 2),
        cycle(B, A, Count - Count div 2),
        [unchanged(State, 32) || State <- Before]
    end).

%% Connects, exchanges a message and disconnects, from within the node.
cycle(From, To, Count) ->
    call(From, fun() ->
        Node = name(To),
        [begin
             true = net_kernel:connect_node(Node),
             #{transport := shm} = caravan_dist:info(Node),
             Node = erpc:call(Node, erlang, node, []),
             true = erlang:disconnect_node(Node)
         end || _ <- lists:seq(1, Count)]
    end),
    ok.

%% Disconnected in the middle of traffic, from either side; traffic itself connects again.
reconnects_under_load(_) ->
    Two = #{args => ["+S", "2"]},
    with([Two, Two], fun([A, B]) ->
        true = connect(A, B),
        start_load(A, B, again),
        start_load(B, A, again),
        [begin
             call(X, erlang, disconnect_node, [name(Y)]),
             %% The other side may connect, too, and replace the link that has just come up.
             caravan_cluster:wait_until(fun() -> connect(A, B) andalso is_shm(A, B) end)
         end || _ <- lists:seq(1, 50), {X, Y} <- [{A, B}, {B, A}]],
        [caravan_cluster:stop_load(N) || N <- [A, B]],
        ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []]))
    end).

is_shm(A, B) ->
    case call(A, caravan_dist, info, [name(B)]) of
        #{transport := shm} -> true;
        Other -> Other
    end.

%% A reader that stands still: senders are suspended, memory stays where it is, and in the end
%% every message is there.
slow_receiver(_) ->
    with([#{}, #{}], fun([A, B]) ->
        true = connect(A, B),
        shm = transport(A, B),
        {Senders, Each} = {50, 40},
        Counter = caravan_cluster:start_counter(B),
        caravan_cluster:signal(B, "STOP"),
        Before = resident_bytes(A),
        call(A, fun() ->
            Self = self(),
            spawn(fun() ->
                      true = register(busy_watcher, self()),
                      erlang:system_monitor(self(), [busy_dist_port]),
                      Self ! watching,
                      watch_busy(0)
                  end),
            receive watching -> ok end,
            %% 100 KB of encoded list each: 200 MB in all.
            [spawn(fun() -> [Counter ! {N, lists:seq(1, 20000)} || N <- lists:seq(1, Each)] end)
             || _ <- lists:seq(1, Senders)]
        end),
        caravan_cluster:wait_until(fun() -> call(A, fun busy_seen/0) >= Senders end),
        Stalled = resident_bytes(A),
        ct:pal("stalled: ~b suspensions, memory ~b -> ~b KiB", [call(A, fun busy_seen/0),
                                                              Before div 1024, Stalled div 1024]),
        ?assert(Stalled < Before + 100 * 1024 * 1024),
        nosuspend = call(A, erlang, send, [Counter, unsent, [nosuspend]]),
        caravan_cluster:signal(B, "CONT"),
        caravan_cluster:wait_until(fun() -> caravan_cluster:counted(B) =:= Senders * Each end)
    end).

watch_busy(N) ->
    receive
        {monitor, _, busy_dist_port, _} -> watch_busy(N + 1);
        {busy_seen, From} -> From ! {busy_seen, N}, watch_busy(N)
    end.

busy_seen() ->
    busy_watcher ! {busy_seen, self()},
    receive {busy_seen, N} -> N end.

%% The end of any part of a link is the end of the link, and of nothing else.
port_killed(_) ->
    part_killed(fun(#{port := Port}, _) -> exit(Port, kill) end).

connection_killed(_) ->
    part_killed(fun(_, Connection) -> exit(Connection, kill) end).

part_killed(Kill) ->
    Told = #{args => caravan_cluster:no_auto_connect()},
    with([Told, Told], fun([A, B]) ->
        cycle(A, B, 1),
        Before = [state(N) || N <- [A, B]],
        true = connect(A, B),
        {Ms, _} = nodedown_after(B, A, fun() ->
            call(A, fun() ->
                        [{Connection, _, Row}] = [Entry || {Pid, _, _} = Entry <-
                                                               ets:tab2list(caravan_links),
                                                           is_pid(Pid)],
                        Kill(Row, Connection)
                    end)
        end),
        ?assert(Ms < ?AT_ONCE_MS),
        [unchanged(State) || State <- Before],
        true = connect(A, B),
        shm = transport(A, B)
    end).

mesh(_) ->
    Count = 20,
    Small = #{args => ["-caravan", "ring_bytes", "65536", "+A", "1", "+SDcpu", "1:1"]},
    Nodes = lists:append([caravan_cluster:start_all(lists:duplicate(5, Small))
                          || _ <- lists:seq(1, Count div 5)]),
    try
        Names = [name(N) || N <- Nodes],
        [[true = call(A, net_kernel, connect_node, [Name]) || Name <- Names] || A <- Nodes],
        [begin
             Infos = call(A, caravan_dist, info, []),
             ?assertEqual(Count - 1, length(Infos)),
             ?assertEqual([shm], lists:usort([T || {_, #{transport := T}} <- Infos]))
         end || A <- Nodes],
        %% Everybody calls everybody, all at once, with small and with large.
        Runs = [spawn_monitor(fun() ->
                    call(A, fun() ->
                        [begin
                             Results = erpc:multicall(Names, erlang, byte_size, [Binary]),
                             [{ok, _} = Result || Result <- Results]
                         end || Binary <- [<<>>, binary:copy(<<1>>, 100000)], _ <- lists:seq(1, 5)]
                    end)
                end) || A <- Nodes],
        [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- Runs]
    after
        caravan_cluster:stop(Nodes)
    end.

%% With few descriptors left, at either side, a link is carried by TCP, as it would be without Caravan;
%% no node is seen that comes and goes.
out_of_descriptors(_) ->
    Few = #{args => caravan_cluster:no_auto_connect(),
            exec => {"/bin/sh", ["-c", "ulimit -n 256; exec erl \"$@\"", "sh"]}},
    with([Few, Few], fun([A, B]) ->
        cycle(A, B, 1),
        [caravan_cluster:watch_nodes(N) || N <- [A, B]],
        Seen = [begin
                    call(Poor, fun() -> keep_descriptors(Left) end),
                    ?assertEqual({Left, true}, {Left, connect(A, B)}),
                    Transport = transport(A, B),
                    Transport = transport(B, A),
                    ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []])),
                    true = call(A, erlang, disconnect_node, [name(B)]),
                    caravan_cluster:wait_until(fun() -> [] =:= call(B, erlang, nodes, []) end),
                    call(Poor, fun give_descriptors/0),
                    Transport
                end || Poor <- [A, B], Left <- lists:seq(4, 16)],
        ct:pal("~p", [Seen]),
        ?assertEqual([shm, tcp], lists:usort(Seen)),
        [?assertEqual(length(Seen), length(caravan_cluster:seen_nodes(N))) || N <- [A, B]]
    end).

%% Opens all descriptors of this node except so many.
keep_descriptors(Left) ->
    Self = self(),
    spawn(fun() ->
              true = register(descriptors, self()),
              {Free, Kept} = lists:split(Left, take_descriptors()),
              [ok = file:close(File) || File <- Free],
              Self ! taken,
              receive {give, From} -> ok end,
              [ok = file:close(File) || File <- Kept],
              true = unregister(descriptors),
              From ! given
          end),
    receive taken -> ok end.

take_descriptors() ->
    case file:open("/dev/null", [read, raw]) of
        {ok, File} -> [File | take_descriptors()];
        {error, emfile} -> []
    end.

give_descriptors() ->
    descriptors ! {give, self()},
    receive given -> ok end.

start_load(A, B) -> start_load(A, B, once).

start_load(A, B, How) -> caravan_cluster:start_load(A, B, [10, 1000, 100000, 2000000], How).

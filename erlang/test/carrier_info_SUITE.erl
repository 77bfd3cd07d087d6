%% The results of caravan_dist:info/0,1, and what other processes can see of them.
-module(carrier_info_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([keys/1, counts_shm/1, counts_tcp/1, rows_go/1, busy/1, counters_segment/1, both_logs/1,
         quiet_when_well/1, no_spin/1]).

-import(caravan_cluster, [with/2, call/2, call/4, connect/2, name/1, info/2, has_logged/2]).

-define(KEYS, [transport, reason, sent_bytes, received_bytes, sent_messages, received_messages,
               ring_bytes, outbound_used_bytes, inbound_used_bytes, queued_bytes, wakeups_sent,
               wakeups_received, polls, spins, spin_hits, busy_ns, busy_count,
               reassembled_messages, device, completions, doorbells, registered_bytes]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [keys, counts_shm, counts_tcp, rows_go, busy, counters_segment, both_logs, quiet_when_well, no_spin].

%% The keys are the same with every transport.
keys(_) ->
    with([#{}, #{transport => tcp}, #{carrier => plain}, #{}], fun([A, Tcp, Plain, B]) ->
        [true = connect(A, N) || N <- [Tcp, Plain, B]],
        [begin
             Info = info(A, N),
             ?assertEqual({Transport, lists:sort(?KEYS)},
                          {maps:get(transport, Info), lists:sort(maps:keys(Info))}),
             ?assert(is_binary(maps:get(reason, Info))),
             ?assertMatch(#{device := <<>>, completions := 0, doorbells := 0, registered_bytes := 0},
                          Info),
             [?assert(is_integer(Value) andalso Value >= 0)
              || {_, Value} <- maps:to_list(maps:without([transport, reason, device], Info))]
         end || {N, Transport} <- [{Tcp, tcp}, {Plain, tcp}, {B, shm}]],
        ?assertEqual(lists:sort([name(N) || N <- [Tcp, Plain, B]]),
                     lists:sort([N || {N, _} <- call(A, caravan_dist, info, [])])),
        ?assertEqual(undefined, call(A, caravan_dist, info, ['nobody@nowhere']))
    end).

counts_shm(_) ->
    with([#{}, #{args => ["-caravan", "ring_bytes", "131072"]}], fun([A, B]) ->
        true = connect(A, B),
        %% The accepting side's choice holds for both sides.
        [#{ring_bytes := 131072} = info(X, Y) || {X, Y} <- [{A, B}, {B, A}]],
        counts(A, B)
    end).

counts_tcp(_) ->
    Tcp = #{transport => tcp},
    with([Tcp, Tcp], fun([A, B]) ->
        true = connect(A, B),
        counts(A, B),
        %% And once a second where `caravan top' reads.
        caravan_cluster:wait_until(fun() ->
            call(A, fun() ->
                [#{port := Port}] = [Row || {_, _, Row} <- ets:tab2list(caravan_links)],
                {ok, #{sent_bytes := Sent}} = caravan_driver:info(Port),
                Sent >= 1000000
            end)
        end)
    end).

%% A megabyte is at least a megabyte on both sides, and not two.
counts(A, B) ->
    #{sent_bytes := Sent0, sent_messages := Messages0} = info(A, B),
    #{received_bytes := Received0} = info(B, A),
    call(A, fun() ->
                    1000000 = erpc:call(name(B), erlang, byte_size, [binary:copy(<<1>>, 1000000)])
            end),
    #{sent_bytes := Sent1, sent_messages := Messages1} = info(A, B),
    #{received_bytes := Received1} = info(B, A),
    [?assert(Bytes >= 1000000 andalso Bytes < 1100000)
     || Bytes <- [Sent1 - Sent0, Received1 - Received0]],
    ?assert(Messages1 > Messages0).

rows_go(_) ->
    Told = #{args => caravan_cluster:no_auto_connect()},
    with([Told, Told], fun([A, B]) ->
        [begin
             true = connect(A, B),
             [_] = call(A, caravan_dist, info, []),
             true = call(A, erlang, disconnect_node, [name(B)]),
             [] = call(A, caravan_dist, info, []),
             caravan_cluster:wait_until(fun() -> [] =:= call(B, caravan_dist, info, []) end)
         end || _ <- lists:seq(1, 20)]
    end).

%% What a stopped reader leaves behind is seen: bytes in the ring, bytes queued, a busy time.
busy(_) ->
    Small = #{args => ["-caravan", "ring_bytes", "65536"]},
    with([Small, Small], fun([A, B]) ->
        true = connect(A, B),
        caravan_cluster:signal(B, "STOP"),
        try
            call(A, fun() ->
                            Node = name(B),
                            [spawn(fun() -> {nobody, Node} ! lists:seq(1, 100000) end)
                             || _ <- lists:seq(1, 20)]
                    end),
            caravan_cluster:wait_until(fun() ->
                #{outbound_used_bytes := Used, queued_bytes := Queued, busy_count := Busy} = Info =
                    info(A, B),
                (Used > 32768 andalso Used =< 65536 andalso Queued > 0 andalso Busy > 0)
                    orelse Info
            end)
        after
            caravan_cluster:signal(B, "CONT")
        end,
        caravan_cluster:wait_until(fun() ->
            #{outbound_used_bytes := Used, queued_bytes := Queued, busy_ns := Ns} = Info = info(A, B),
            (Used =:= 0 andalso Queued =:= 0 andalso Ns > 0) orelse Info
        end)
    end).

%% One segment of counters for each process, which others of the same user find in /proc.
counters_segment(_) ->
    with([#{}, #{}, #{transport => tcp}], fun([A, B, C]) ->
        [true = connect(A, N) || N <- [B, C]],
        [info(N, A) || N <- [B, C]],
        [?assertMatch([_], [Link || File <- filelib:wildcard("/proc/" ++ caravan_cluster:os_pid(N)
                                                             ++ "/fd/*"),
                                    {ok, Link} <- [file:read_link_all(File)],
                                    string:find(Link, "caravan-counters") =/= nomatch])
         || N <- [A, B, C]]
    end).

%% With `auto' each side logs which transport was chosen, and why not the better one.
both_logs(_) ->
    with([#{}, #{}, #{transport => tcp}, #{carrier => plain}], fun([A, B, Tcp, Plain]) ->
        [true = connect(A, N) || N <- [B, Tcp, Plain]],
        [has_logged(Node, [Text])
         || {Node, Text} <-
                [{A, "shared memory to " ++ atom_to_list(name(B))},
                 {B, "shared memory to " ++ atom_to_list(name(A))},
                 {A, "TCP to " ++ atom_to_list(name(Tcp)) ++ ": the option transport names tcp at"},
                 {Tcp, "TCP to " ++ atom_to_list(name(A)) ++ ": the option transport names tcp here"},
                 {A, "TCP to " ++ atom_to_list(name(Plain)) ++ ": the peer does not speak Caravan"}]]
    end).

%% What nobody could better is no news: shared memory, and tools that know nothing of Caravan.
quiet_when_well(_) ->
    with([#{}, #{}, #{carrier => plain, args => ["-hidden"]}], fun([A, B, Tool]) ->
        [true = connect(N, A) || N <- [B, Tool]],
        [has_logged(A, [Text])
         || Text <- ["shared memory to " ++ atom_to_list(name(B)), "TCP to " ++ atom_to_list(name(Tool))]],
        [?assertEqual([], [L || L <- caravan_cluster:logged(N, info), string:find(L, "caravan:") =/= nomatch])
         || N <- [A, B]]
    end).

%% A node that was told not to busy-wait does not; its peer decides for itself.
no_spin(_) ->
    with([#{args => ["+sbwt", "none"]}, #{env => [{"ERL_ZFLAGS", "+sbwt none"}]},
          #{args => ["-caravan", "spin", "on"]}], fun([A, B, C]) ->
        [true = connect(A, N) || N <- [B, C]],
        [call(A, fun() -> [erpc:call(name(N), erlang, node, []) || _ <- lists:seq(1, 200)]
                 end) || N <- [B, C]],
        [?assertMatch(#{spins := 0}, info(X, Y)) || {X, Y} <- [{A, B}, {B, A}, {A, C}]],
        #{spins := Spins} = info(C, A),
        ?assert(Spins > 0)
    end).

%% What a message costs over RDMA, in counts: the seed's benchmark, a hundred processes of each node that
%% call the other's servers, for a number of calls.
-module(rdma_costs_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([calls/1]).
-export([call_often/2]).

-import(caravan_cluster, [with/2, call/4, info/2, name/1]).

-define(PROCESSES, 100).
%% Enough for what each message costs to outweigh the calls that a node makes by itself meanwhile.
-define(CALLS_EACH, 30).
%% Immediates that a side takes before it says so: limits.rs of caravan_fabric.
-define(ACKNOWLEDGE_EVERY, 32).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [calls].

calls(_) ->
    Options = #{transport => rdma,
                args => ["-pa", filename:absname(filename:dirname(code:which(caravan_bench_rpc)))]},
    with(caravan_hosts:pair(Options, Options), fun([A, B]) ->
        caravan_hosts:linked(A, B),
        [ok = call(X, caravan_bench_rpc, start_servers, []) || X <- [A, B]],
        %% Once, so that everything is there.
        both(A, B, 5),
        Before = info(A, B),
        both(A, B, ?CALLS_EACH),
        After = info(A, B),
        Counts = maps:from_list([{Key, maps:get(Key, After) - maps:get(Key, Before)}
                                 || Key <- [sent_messages, received_messages, received_bytes, doorbells,
                                            completions, wakeups_received]]),
        Systems = traced(A, fun() -> both(A, B, ?CALLS_EACH) end),
        Traced = maps:get(sent_messages, info(A, B)) - maps:get(sent_messages, After),
        judge(Counts, maps:get(ring_bytes, After), Systems, Traced)
    end).

both(A, B, Each) ->
    Runs = [spawn_monitor(fun() -> ok = call(X, ?MODULE, call_often, [name(Y), Each]) end)
            || {X, Y} <- [{A, B}, {B, A}]],
    [receive {'DOWN', Monitor, _, _, Reason} -> ?assertEqual(normal, Reason) end || {_, Monitor} <- Runs].

%% A hundred callers, each so many times.
call_often(Node, Each) ->
    Callers = [spawn_monitor(fun() ->
                   [3 = gen_server:call({caravan_bench_front, Node}, {add, 1, 2}, infinity)
                    || _ <- lists:seq(1, Each)]
               end) || _ <- lists:seq(1, ?PROCESSES)],
    [receive {'DOWN', Monitor, _, _, Reason} -> normal = Reason end || {_, Monitor} <- Callers],
    ok.

%% How many system calls a node of this host makes meanwhile: the device's own (a software device is rung by
%% one), those that look for events and take them, and others.
traced(Node, Fun) ->
    Path = "/tmp/caravan_trace",
    Strace = open_port({spawn_executable, os:find_executable("strace")},
                       [{args, ["-f", "-qq", "-y", "-o", Path, "-p", caravan_cluster:os_pid(Node)]}, exit_status]),
    {os_pid, OsPid} = erlang:port_info(Strace, os_pid),
    %% It follows every thread once the first call of one is there.
    caravan_cluster:wait_until(fun() ->
        _ = call(Node, erlang, node, []),
        filelib:file_size(Path) > 0
    end),
    Fun(),
    os:cmd("kill -INT " ++ integer_to_list(OsPid)),
    receive {Strace, {exit_status, _}} -> ok end,
    {ok, Text} = file:read_file(Path),
    lists:foldl(fun(Line, Kinds) -> maps:update_with(kind(Line), fun(N) -> N + 1 end, 1, Kinds) end, #{},
                [Line || Line <- binary:split(Text, <<"\n">>, [global, trim]),
                         binary:match(Line, [<<"(">>, <<"resumed">>]) =/= nomatch,
                         binary:match(Line, [<<"resumed">>, <<"---">>]) =:= nomatch]).

kind(Line) ->
    [_, Call | _] = binary:split(Line, [<<" ">>, <<"(">>], [global, trim_all]),
    case {Call, binary:match(Line, <<"/dev/infiniband/">>), binary:match(Line, <<"infinibandevent">>)} of
        {_, {_, _}, _} -> device;
        {_, _, {_, _}} -> event;
        {Waits, _, _} when Waits =:= <<"epoll_wait">>; Waits =:= <<"epoll_pwait2">>; Waits =:= <<"poll">>;
                           Waits =:= <<"ppoll">>; Waits =:= <<"epoll_ctl">> -> wait;
        {<<"futex">>, _, _} -> futex;
        %% No system call where there is a vDSO; User-Mode Linux has none.
        {<<"clock_gettime">>, _, _} -> clock;
        _ -> other
    end.

judge(#{sent_messages := Sent} = Counts, RingBytes, Systems, Traced) ->
    [ct:pal("~s a message: ~.3f", [Key, Count / Sent]) || {Key, Count} <- lists:sort(maps:to_list(Counts))],
    [ct:pal("system calls a message, ~s: ~.3f", [Kind, Count / Traced])
     || {Kind, Count} <- lists:sort(maps:to_list(Systems))],
    #{doorbells := Doorbells, wakeups_received := Wakeups, received_messages := Received,
      received_bytes := Bytes} = Counts,
    %% Each message that is sent on its own is a batch; beyond that, credits go out before a sleep and for
    %% each quarter of the ring, and acknowledgements.
    Beyond = 2 * Wakeups + 4 * Bytes div RingBytes + Received div ?ACKNOWLEDGE_EVERY + 10,
    ?assert(Doorbells =< Sent + Beyond),
    %% To send takes no system call but the software device's own.
    ?assert(maps:get(other, Systems, 0) < Traced div 10).

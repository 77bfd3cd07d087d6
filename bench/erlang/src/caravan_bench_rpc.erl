%% @doc The seed's program: processes in a tight loop of calls to every other node.
-module(caravan_bench_rpc).

-export([start_servers/0, run/4]).

%% How long callers go on after the window, so that a node whose window ends a little
%% later still measures a cluster under full load.
-define(TAIL_MS, 60).

-spec start_servers() -> ok.
start_servers() ->
    {ok, _} = caravan_bench_front:start(),
    {ok, _} = caravan_bench_back:start(),
    ok.

%% `Processes' callers to each of `Nodes'. `rpcs' were answered in the window of
%% `wall_ns'; `rpcs_total' includes those before and after it.
-spec run([node()], pos_integer(), non_neg_integer(), pos_integer()) -> [{atom(), integer()}].
run(Nodes, Processes, WarmUpMs, WindowMs) ->
    Calls = counters:new(1, [atomics]),
    Stop = atomics:new(1, []),
    Callers = [spawn_monitor(fun() -> loop({caravan_bench_front, Node}, Calls, Stop) end)
               || Node <- Nodes, _ <- lists:seq(1, Processes)],
    pause(WarmUpMs),
    {Start, Before} = mark(Calls),
    pause(WindowMs),
    {End, After} = mark(Calls),
    pause(?TAIL_MS),
    atomics:put(Stop, 1, 1),
    lists:foreach(fun ended/1, Callers),
    [{rpcs, After - Before}, {wall_ns, End - Start}, {rpcs_total, counters:get(Calls, 1)}].

%% Both readings of one instant: nothing between them waits.
mark(Calls) ->
    caravan_bench:mark(),
    {erlang:monotonic_time(nanosecond), counters:get(Calls, 1)}.

loop(Server, Calls, Stop) ->
    3 = gen_server:call(Server, {add, 1, 2}, infinity),
    counters:add(Calls, 1, 1),
    case atomics:get(Stop, 1) of
        0 -> loop(Server, Calls, Stop);
        1 -> ok
    end.

ended({Caller, Monitor}) ->
    receive
        {'DOWN', Monitor, process, Caller, normal} -> ok;
        {'DOWN', Monitor, process, Caller, Reason} -> error({caller_failed, Reason})
    end.

pause(Ms) -> receive after Ms -> ok end.

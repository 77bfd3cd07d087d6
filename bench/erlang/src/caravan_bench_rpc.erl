%% @doc Measures remote calls: processes call every other node in a tight loop.
-module(caravan_bench_rpc).

-export([start_servers/0, run/4]).

%% The time for which callers go on after the window, so that a node whose window ends
%% a little later still measures a cluster under full load.
-define(TAIL_MS, 60).

-spec start_servers() -> ok.
start_servers() ->
    {ok, _} = caravan_bench_front:start(),
    {ok, _} = caravan_bench_back:start(),
    ok.

%% Runs `Processes' callers for each of `Nodes'. Returns the calls that were answered
%% within the window (`rpcs'), the length of the window (`wall_ns'), and the calls
%% answered before, within and after it (`rpcs_total').
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

%% Reads the clock and the counter at one instant: nothing between the two waits.
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

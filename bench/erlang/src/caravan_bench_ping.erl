%% @doc Measures round trips of one small message between a process here and one on a peer.
-module(caravan_bench_ping).

-export([start_echo/0, run/2]).

%% The number of round trips whose times are kept for the percentiles. Others are only counted.
-define(KEPT, 1 bsl 18).
%% The number of round trips before the measurement.
-define(WARM_UP, 50).

-spec start_echo() -> ok.
start_echo() ->
    true = register(caravan_bench_echo, spawn(fun echo/0)),
    ok.

echo() ->
    receive
        {ping, From} -> From ! pong;
        {hello, From} -> From ! {echo, self()}
    end,
    echo().

%% Measures round trips for `WindowMs', with nothing else on the connection.
-spec run(node(), pos_integer()) -> [{atom(), integer()}].
run(Node, WindowMs) ->
    in_own_process(fun() -> measure(Node, WindowMs) end).

%% The times are stored outside the heap, so that they cause no garbage collection
%% during a round trip.
measure(Node, WindowMs) ->
    {caravan_bench_echo, Node} ! {hello, self()},
    Echo = receive {echo, Pid} -> Pid end,
    lists:foreach(fun(_) -> round_trip(Echo) end, lists:seq(1, ?WARM_UP)),
    Kept = atomics:new(?KEPT, []),
    caravan_bench:mark(),
    Start = erlang:monotonic_time(nanosecond),
    Count = rounds(Echo, Kept, Start, Start + WindowMs * 1_000_000, 0),
    Wall = erlang:monotonic_time(nanosecond) - Start,
    caravan_bench:mark(),
    Sorted = lists:sort([atomics:get(Kept, I) || I <- lists:seq(1, min(Count, ?KEPT))]),
    [{pings, Count},
     {wall_ns, Wall},
     {p50_ns, percentile(Sorted, 50)},
     {p99_ns, percentile(Sorted, 99)}].

rounds(Echo, Kept, Then, End, Count) ->
    round_trip(Echo),
    Now = erlang:monotonic_time(nanosecond),
    Count < ?KEPT andalso atomics:put(Kept, Count + 1, Now - Then),
    case Now < End of
        true -> rounds(Echo, Kept, Now, End, Count + 1);
        false -> Count + 1
    end.

round_trip(Echo) ->
    Echo ! {ping, self()},
    receive pong -> ok end.

%% Returns the smallest value that at least `Percent' of the values do not exceed.
percentile(Sorted, Percent) ->
    Rank = max(1, -(-length(Sorted) * Percent div 100)),
    lists:nth(Rank, Sorted).

%% Measures in a process of normal priority, as a user's process has.
in_own_process(Fun) ->
    {Pid, Monitor} = spawn_monitor(fun() -> exit({measured, Fun()}) end),
    receive
        {'DOWN', Monitor, process, Pid, {measured, Fields}} -> Fields;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

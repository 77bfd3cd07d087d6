%% @doc Measures a stream of binaries in one direction, and round trips behind such a stream.
%%
%% The sink acknowledges every binary, and the source keeps at most `InFlight' of them
%% unacknowledged. So this measures a stream with bounded memory, not how fast a queue
%% can grow. The source sends the same binary each time.
-module(caravan_bench_stream).

-export([start_sink/0, run/4, ping_behind/4]).

%% A measurement takes at least this many binaries, even if they take longer than the window.
-define(LEAST_COUNT, 4).
%% The time for which the stream runs before the first ping behind it.
-define(STREAM_WARM_UP_MS, 100).

-spec start_sink() -> ok.
start_sink() ->
    true = register(caravan_bench_sink, spawn(fun sink/0)),
    ok.

sink() ->
    receive
        {data, From, Bytes, Binary} when byte_size(Binary) =:= Bytes -> From ! ack;
        {hello, From} -> From ! {sink, self()}
    end,
    sink().

%% Returns the bytes acknowledged within the window (`bytes'), its length (`wall_ns') and
%% all bytes sent (`bytes_total'). The window begins when `InFlight' binaries have been
%% acknowledged.
-spec run(node(), pos_integer(), pos_integer(), pos_integer()) -> [{atom(), integer()}].
run(Node, Bytes, InFlight, WindowMs) ->
    End = erlang:monotonic_time(nanosecond) + WindowMs * 1_000_000,
    Enough = fun(Count) -> Count > ?LEAST_COUNT andalso erlang:monotonic_time(nanosecond) >= End end,
    {Source, Monitor} = source(Node, Bytes, InFlight, Enough),
    receive
        {'DOWN', Monitor, process, Source, {streamed, Fields}} -> Fields;
        {'DOWN', Monitor, process, Source, Reason} -> error(Reason)
    end.

%% Measures round trips on a connection that a stream of binaries of `Bytes' fills meanwhile.
-spec ping_behind(node(), pos_integer(), pos_integer(), pos_integer()) -> [{atom(), integer()}].
ping_behind(Node, Bytes, InFlight, WindowMs) ->
    Stop = atomics:new(1, []),
    {Source, Monitor} = source(Node, Bytes, InFlight, fun(_) -> atomics:get(Stop, 1) =:= 1 end),
    receive after ?STREAM_WARM_UP_MS -> ok end,
    Pings = caravan_bench_ping:run(Node, WindowMs),
    atomics:put(Stop, 1, 1),
    receive
        {'DOWN', Monitor, process, Source, {streamed, Fields}} ->
            [{bytes_total, proplists:get_value(bytes_total, Fields)} | Pings];
        {'DOWN', Monitor, process, Source, Reason} ->
            error(Reason)
    end.

source(Node, Bytes, InFlight, Enough) ->
    spawn_monitor(fun() ->
                          {caravan_bench_sink, Node} ! {hello, self()},
                          Sink = receive {sink, Pid} -> Pid end,
                          Message = {data, self(), Bytes, binary:copy(<<"caravan!">>, Bytes div 8)},
                          exit({streamed, stream(Sink, Message, InFlight, Enough)})
                  end).

stream(Sink, Message = {data, _, Bytes, _}, InFlight, Enough) ->
    lists:foreach(fun(_) -> Sink ! Message end, lists:seq(1, InFlight)),
    {_, First} = pump(Sink, Message, fun(Count) -> Count =:= InFlight end, 0, 0),
    {Count, Last} = pump(Sink, Message, Enough, First, 0),
    lists:foreach(fun(_) -> acknowledged() end, lists:seq(1, InFlight)),
    [{bytes, Count * Bytes}, {wall_ns, Last - First},
     {bytes_total, (Count + 2 * InFlight) * Bytes}].

%% Sends one more binary for each acknowledgement.
pump(Sink, Message, Enough, Last, Count) ->
    case Enough(Count) of
        true ->
            {Count, Last};
        false ->
            acknowledged(),
            Now = erlang:monotonic_time(nanosecond),
            Sink ! Message,
            pump(Sink, Message, Enough, Now, Count + 1)
    end.

acknowledged() -> receive ack -> ok end.

%% Whatever is sent arrives, whole, once and in order: random terms of 0 bytes to 100 MB, both
%% ways at once, several pairs of processes beside each other.
%%
%% CARAVAN_SEED=N repeats a run; the seed of each run is printed.
-module(carrier_property_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([small_ring/1, default_ring/1, no_fragments/1, no_spin/1, two_schedulers/1, over_tcp/1, huge/1]).
-export([send/5, receive_all/5]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [small_ring, default_ring, no_fragments, no_spin, two_schedulers, over_tcp, huge].

init_per_testcase(Case, Config) ->
    Args = case Case of
               small_ring -> ["-caravan", "ring_bytes", "65536", "-caravan", "busy_bytes", "4096"];
               no_fragments -> ["-caravan", "fragments", "false"];
               no_spin -> ["-caravan", "spin", "off"];
               two_schedulers -> ["+S", "2", "-caravan", "ring_bytes", "131072"];
               _ -> []
           end,
    Transport = case Case of over_tcp -> tcp; _ -> shm end,
    Options = #{transport => Transport, args => Args},
    [A, B] = caravan_cluster:start_all([Options, Options]),
    true = caravan_cluster:connect(A, B),
    Transport = caravan_cluster:transport(A, B),
    Seed = case os:getenv("CARAVAN_SEED") of
               false -> erlang:system_time() band 16#FFFFFFFF;
               Text -> list_to_integer(Text)
           end,
    ct:pal("~p: CARAVAN_SEED=~b", [Case, Seed]),
    [{nodes, {A, B}}, {seed, Seed} | Config].

end_per_testcase(_, Config) ->
    {A, B} = proplists:get_value(nodes, Config),
    caravan_cluster:stop([A, B]).

small_ring(Config) -> exchange(Config, 400, mixture()).
default_ring(Config) -> exchange(Config, 800, mixture()).
no_fragments(Config) -> exchange(Config, 400, mixture()).
no_spin(Config) -> exchange(Config, 400, mixture()).
two_schedulers(Config) -> exchange(Config, 400, mixture()).
over_tcp(Config) -> exchange(Config, 200, mixture()).
huge(Config) -> exchange(Config, 4, [{1, {binary, 100000000}}, {1, {nested, 300000}}], 2).

mixture() ->
    [{60, small}, {20, {binary, 5000}}, {10, {binary, 300000}}, {10, {nested, 3000}},
     {2, {binary, 5000000}}, {1, {nested, 50000}}].

exchange(Config, Count, Classes) ->
    exchange(Config, Count, Classes, 3).

%% Pairs in each direction, every one with a seed of its own.
exchange(Config, Count, Classes, Pairs) ->
    {A, B} = proplists:get_value(nodes, Config),
    Seed = proplists:get_value(seed, Config),
    Runs = [spawn_monitor(fun() -> exit({shutdown, one_way(From, To, {Seed, N}, Count, Classes)})
                          end)
            || {Side, From, To} <- [{1, A, B}, {2, B, A}], N <- [Side * 1000 + P
                                                                 || P <- lists:seq(1, Pairs)]],
    [receive
         {'DOWN', Monitor, process, Pid, Reason} ->
             ?assertEqual({shutdown, {ok, Count}}, Reason)
     end || {Pid, Monitor} <- Runs].

one_way(From, To, {Seed, N}, Count, Classes) ->
    %% The receiver registers itself; the sender sends to that name.
    Name = list_to_atom("receiver_" ++ integer_to_list(N)),
    Self = self(),
    Receiver = spawn_monitor(
                 fun() ->
                         Self ! {received, caravan_cluster:call(
                                             To, ?MODULE, receive_all,
                                             [Name, {Seed, N, 0}, Count, Classes, 150000])}
                 end),
    caravan_cluster:wait_until(
      fun() -> is_pid(caravan_cluster:call(To, erlang, whereis, [Name])) end),
    ok = caravan_cluster:call(From, ?MODULE, send,
                              [{Name, caravan_cluster:name(To)}, {Seed, N, 0}, Count, Classes, 0]),
    {_, Monitor} = Receiver,
    receive
        {received, Result} -> erlang:demonitor(Monitor, [flush]), Result;
        {'DOWN', Monitor, process, _, Reason} -> {failed, Reason}
    end.

send(To, Seed, Count, Classes, Sent) ->
    send_stream(To, caravan_terms:stream(Seed, Classes), Count, Sent).

send_stream(_, _, Count, Count) ->
    ok;
send_stream(To, Stream0, Count, Sent) ->
    {Term, Stream} = caravan_terms:next(Stream0),
    To ! {Sent, Term},
    send_stream(To, Stream, Count, Sent + 1).

receive_all(Name, Seed, Count, Classes, TimeoutMs) ->
    true = register(Name, self()),
    Result = receive_stream(caravan_terms:stream(Seed, Classes), Count, 0, TimeoutMs),
    unregister(Name),
    Result.

receive_stream(_, Count, Count, _) ->
    receive Extra -> {extra, Extra} after 50 -> {ok, Count} end;
receive_stream(Stream0, Count, Got, TimeoutMs) ->
    {Expected, Stream} = caravan_terms:next(Stream0),
    receive
        {Got, Expected} -> receive_stream(Stream, Count, Got + 1, TimeoutMs);
        {Got, Other} -> {differs, Got, describe(Expected), describe(Other)};
        {Index, _} -> {out_of_order, expected, Got, got, Index}
    after TimeoutMs -> {missing, Got}
    end.

describe(Binary) when is_binary(Binary) ->
    {binary, byte_size(Binary), erlang:md5(Binary)};
describe(Term) ->
    {external_size, erlang:external_size(Term), erlang:phash2(Term)}.

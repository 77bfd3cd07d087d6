%% Whatever is sent arrives, whole, once and in order: random terms of 0 bytes to 100 MB, both
%% ways at once, several pairs of processes beside each other.
%%
%% CARAVAN_SEED=N repeats a run; the seed of each run is printed.
-module(carrier_property_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([small_ring/1, default_ring/1, no_fragments/1, no_spin/1, two_schedulers/1, over_tcp/1, huge/1]).
-export([exchange/4, send/4, receive_all/4]).

-import(caravan_cluster, [call/4]).

%% How long nothing at all may come.
-define(SILENCE_MS, 150000).

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
    [{nodes, [A, B]} | Config].

end_per_testcase(_, Config) ->
    caravan_cluster:stop(pair(Config)).

pair(Config) -> proplists:get_value(nodes, Config).

small_ring(Config) -> exchange(pair(Config), 400, mixture(), 3).
default_ring(Config) -> exchange(pair(Config), 800, mixture(), 3).
no_fragments(Config) -> exchange(pair(Config), 400, mixture(), 3).
no_spin(Config) -> exchange(pair(Config), 400, mixture(), 3).
two_schedulers(Config) -> exchange(pair(Config), 400, mixture(), 3).
over_tcp(Config) -> exchange(pair(Config), 200, mixture(), 3).
huge(Config) -> exchange(pair(Config), 4, [{1, {binary, 100000000}}, {1, {nested, 300000}}], 2).

mixture() ->
    [{60, small}, {20, {binary, 5000}}, {10, {binary, 300000}}, {10, {nested, 3000}},
     {2, {binary, 5000000}}, {1, {nested, 50000}}].

%% Pairs of processes in each direction, every one with a seed of its own.
exchange([A, B], Count, Classes, Pairs) ->
    Seed = case os:getenv("CARAVAN_SEED") of
               false -> erlang:system_time() band 16#FFFFFFFF;
               Text -> list_to_integer(Text)
           end,
    ct:pal("CARAVAN_SEED=~b", [Seed]),
    Runs = lists:append([begin
                %% The receiver registers itself; the sender sends to that name.
                Name = list_to_atom("receiver_" ++ integer_to_list(N)),
                {_, Taking} = spawn_monitor(fun() ->
                    exit(call(To, ?MODULE, receive_all, [Name, {Seed, N, 0}, Count, Classes]))
                end),
                caravan_cluster:wait_until(fun() -> is_pid(call(To, erlang, whereis, [Name])) end),
                {_, Sending} = spawn_monitor(fun() ->
                    exit(call(From, ?MODULE, send, [{Name, caravan_cluster:name(To)}, {Seed, N, 0}, Count, Classes]))
                end),
                [{Taking, {ok, Count}}, {Sending, ok}]
            end || {Side, From, To} <- [{1, A, B}, {2, B, A}], N <- [Side * 1000 + P || P <- lists:seq(1, Pairs)]]),
    [receive {'DOWN', Monitor, _, _, Result} -> ?assertEqual(Expected, Result) end || {Monitor, Expected} <- Runs].

send(To, Seed, Count, Classes) ->
    send_stream(To, caravan_terms:stream(Seed, Classes), Count, 0).

send_stream(_, _, Count, Count) ->
    ok;
send_stream(To, Stream0, Count, Sent) ->
    {Term, Stream} = caravan_terms:next(Stream0),
    To ! {Sent, Term},
    send_stream(To, Stream, Count, Sent + 1).

receive_all(Name, Seed, Count, Classes) ->
    true = register(Name, self()),
    Result = receive_stream(caravan_terms:stream(Seed, Classes), Count, 0),
    unregister(Name),
    Result.

receive_stream(_, Count, Count) ->
    receive Extra -> {extra, Extra} after 50 -> {ok, Count} end;
receive_stream(Stream0, Count, Got) ->
    {Expected, Stream} = caravan_terms:next(Stream0),
    receive
        {Got, Expected} -> receive_stream(Stream, Count, Got + 1);
        {Got, Other} -> {differs, Got, describe(Expected), describe(Other)};
        {Index, _} -> {out_of_order, expected, Got, got, Index}
    after ?SILENCE_MS -> {missing, Got}
    end.

describe(Binary) when is_binary(Binary) ->
    {binary, byte_size(Binary), erlang:md5(Binary)};
describe(Term) ->
    {external_size, erlang:external_size(Term), erlang:phash2(Term)}.

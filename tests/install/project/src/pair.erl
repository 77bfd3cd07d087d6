%% A user's application, for the tests of the ways to use Caravan in one.
%%
%% Without PAIR_PEER in the environment, it prints "up" and waits. With it, it sends a large binary to
%% that node, looks on both nodes which transport carries their link, prints "carried by MINE and
%% THEIRS" and ends both nodes.
-module(pair).
-behaviour(application).
-export([main/0, start/2, stop/1]).

%% For `-s pair main' on a bare erl.
main() ->
    {ok, _} = application:ensure_all_started(pair).

start(_Type, _Arguments) ->
    Task = case os:getenv("PAIR_PEER") of
               false -> fun up/0;
               Peer -> fun() -> ask(list_to_atom(Peer)) end
           end,
    {ok, spawn_link(fun() -> guarded(Task) end)}.

stop(_State) -> ok.

up() ->
    io:put_chars("up\n"),
    receive after infinity -> ok end.

ask(Peer) ->
    pong = net_adm:ping(Peer),
    Big = binary:copy(<<"caravan">>, 1000000),
    Size = byte_size(Big),
    Size = rpc:call(Peer, erlang, byte_size, [Big]),
    #{transport := Mine, sent_bytes := Sent} = caravan_dist:info(Peer),
    #{transport := Theirs} = rpc:call(Peer, caravan_dist, info, [node()]),
    true = Mine =/= shm orelse Sent > Size,
    io:format("carried by ~p and ~p~n", [Mine, Theirs]),
    rpc:cast(Peer, erlang, halt, [0]),
    init:stop().

guarded(Task) ->
    try Task()
    catch Class:Reason:Stack ->
            io:format("~p: ~p at ~p~n", [Class, Reason, Stack]),
            halt(1)
    end.

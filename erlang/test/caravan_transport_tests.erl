-module(caravan_transport_tests).
-include_lib("eunit/include/eunit.hrl").

-define(OFFERS, #{shm => true, required => false, why => none}).
-define(DEMANDS, #{shm => true, required => true, why => none}).
-define(NAMED_TCP, #{shm => false, required => false, why => named_tcp}).
-define(NO_DRIVER, #{shm => false, required => false, why => no_driver}).
-define(MISSING, {error, <<"missing">>}).

%% The whole table: option here, driver here, what the peer says, what becomes of it.
choose_test_() ->
    [{lists:flatten(io_lib:format("~p", [{Named, Driver, Peer}])),
      ?_assertEqual(Expected, kind(caravan_transport:choose(Named, Driver, Peer)))}
     || {Named, Driver, Peer, Expected} <-
            [{auto, ok, none, tcp}, {auto, ok, ?OFFERS, try_shm}, {auto, ok, ?DEMANDS, try_shm},
             {auto, ok, ?NAMED_TCP, tcp}, {auto, ok, ?NO_DRIVER, tcp},
             {auto, ?MISSING, none, tcp}, {auto, ?MISSING, ?OFFERS, tcp},
             {auto, ?MISSING, ?DEMANDS, refuse}, {auto, ?MISSING, ?NAMED_TCP, tcp},
             {shm, ok, none, refuse}, {shm, ok, ?OFFERS, try_shm}, {shm, ok, ?DEMANDS, try_shm},
             {shm, ok, ?NAMED_TCP, refuse}, {shm, ok, ?NO_DRIVER, refuse},
             {shm, ?MISSING, none, refuse}, {shm, ?MISSING, ?OFFERS, refuse},
             {tcp, ok, none, tcp}, {tcp, ok, ?OFFERS, tcp}, {tcp, ok, ?DEMANDS, refuse},
             {tcp, ok, ?NAMED_TCP, tcp}, {tcp, ?MISSING, ?OFFERS, tcp}]].

%% Both sides come to the same end, whichever of them looks.
agreement_test() ->
    Sides = [{Named, Driver} || Named <- [auto, shm, tcp], Driver <- [ok, ?MISSING]],
    [begin
         Here = kind(caravan_transport:choose(N1, D1, caravan_transport:offer(N2, D2))),
         There = kind(caravan_transport:choose(N2, D2, caravan_transport:offer(N1, D1))),
         ?assertEqual({N1, D1, N2, D2, Here}, {N1, D1, N2, D2, There})
     end || {N1, D1} <- Sides, {N2, D2} <- Sides].

after_a_failed_attempt_test_() ->
    [?_assertEqual({tcp, <<"why">>}, caravan_transport:settle(auto, ?OFFERS, <<"why">>)),
     ?_assertMatch({refuse, _}, caravan_transport:settle(shm, ?OFFERS, <<"why">>)),
     ?_assertMatch({refuse, _}, caravan_transport:settle(auto, ?DEMANDS, <<"why">>))].

kind({Kind, Why}) when is_binary(Why), Why =/= <<>> -> Kind;
kind(try_shm) -> try_shm.

-module(caravan_transport_tests).
-include_lib("eunit/include/eunit.hrl").

-define(MISSING, {error, <<"missing">>}).

here(Named) -> here(Named, []).

%% Changes: no_driver, encrypt.
here(Named, Changes) ->
    lists:foldl(fun(no_driver, Here) -> Here#{driver := ?MISSING};
                   (encrypt, Here) -> Here#{encrypt := true}
                end, #{named => Named, encrypt => false, driver => ok}, Changes).

%% A node of the first version that spoke Caravan.
older(Capability) ->
    Known = maps:merge(#{shm => false, required => false, why => none}, Capability),
    Known#{rdma => false, encrypt => false, rdma_why => older}.

peer(Named) -> caravan_transport:offer(here(Named)).
peer(Named, Changes) -> caravan_transport:offer(here(Named, Changes)).

%% Option here and what this node has, what the peer says, what becomes of it.
choose_test_() ->
    [{lists:flatten(io_lib:format("~p", [{Here, Peer}])),
      ?_assertEqual(Expected, kind(caravan_transport:choose(Here, Peer)))}
     || {Here, Peer, Expected} <-
            [{here(auto), none, tcp},
             {here(auto), peer(auto), [shm, rdma]},
             {here(auto), peer(shm), [shm]},
             {here(auto), peer(rdma), [rdma]},
             {here(auto), peer(tcp), tcp},
             {here(auto), peer(auto, [no_driver]), tcp},
             {here(auto), peer(shm, [no_driver]), refuse},
             {here(auto, [no_driver]), none, tcp},
             {here(auto, [no_driver]), peer(auto), tcp},
             {here(auto, [no_driver]), peer(shm), refuse},
             {here(auto, [no_driver]), peer(tcp), tcp},
             {here(shm), none, refuse},
             {here(shm), peer(auto), [shm]},
             {here(shm), peer(shm), [shm]},
             {here(shm), peer(rdma), refuse},
             {here(shm), peer(tcp), refuse},
             {here(shm, [no_driver]), peer(auto), refuse},
             {here(rdma), none, refuse},
             {here(rdma), peer(auto), [rdma]},
             {here(rdma), peer(rdma), [rdma]},
             {here(rdma), peer(shm), refuse},
             {here(rdma), peer(tcp), refuse},
             {here(tcp), none, tcp},
             {here(tcp), peer(auto), tcp},
             {here(tcp), peer(shm), refuse},
             {here(tcp), peer(rdma), refuse},
             {here(tcp), peer(tcp), tcp},
             %% Encryption: RDMA sealed, shared memory as it is, and no TCP.
             {here(auto, [encrypt]), none, refuse},
             {here(auto, [encrypt]), peer(auto), [shm, rdma]},
             {here(auto, [encrypt]), peer(tcp), refuse},
             {here(auto), peer(auto, [encrypt]), [shm, rdma]},
             {here(tcp), peer(auto, [encrypt]), refuse},
             {here(rdma, [encrypt]), peer(auto), [rdma]},
             {here(tcp, [encrypt]), peer(tcp), refuse},
             %% Nodes that know shared memory alone.
             {here(auto), older(#{shm => true}), [shm]},
             {here(auto), older(#{shm => true, required => true}), [shm]},
             {here(auto), older(#{why => named_tcp}), tcp},
             {here(tcp), older(#{shm => true, required => true}), refuse},
             {here(rdma), older(#{shm => true}), refuse},
             {here(auto, [encrypt]), older(#{shm => true}), [shm]},
             {here(auto, [encrypt]), older(#{why => no_driver}), refuse}]].

%% Both sides come to the same end, whichever of them looks, before anything is tried and after
%% everything was in vain.
agreement_test() ->
    Sides = [here(Named, Changes) || Named <- [auto, shm, rdma, tcp],
                                     Changes <- [[], [no_driver], [encrypt]]],
    [begin
         There = caravan_transport:offer(B),
         Here = caravan_transport:offer(A),
         ?assertEqual({A, B, kind(caravan_transport:choose(A, There))},
                      {A, B, kind(caravan_transport:choose(B, Here))}),
         ?assertEqual({A, B, kind(caravan_transport:settle(A, There, tcp, declined()))},
                      {A, B, kind(caravan_transport:settle(B, Here, tcp, declined()))}),
         ?assertEqual({A, B, caravan_transport:is_sealed(A, There)},
                      {A, B, caravan_transport:is_sealed(B, Here)})
     end || A <- Sides, B <- Sides].

%% What a node of the first version makes of a node of this one, by its own code, must be what
%% this one makes of it.
agreement_with_older_test() ->
    [begin
         #{shm := Shm, required := Required} = caravan_transport:offer(Here),
         Theirs = case {OldShm andalso Shm, OldRequired orelse Required} of
                      {true, _} -> [shm];
                      {false, true} -> refuse;
                      {false, false} -> tcp
                  end,
         Peer = older(#{shm => OldShm, required => OldRequired, why => Why}),
         ?assertEqual({Here, Peer, Theirs}, {Here, Peer, kind(caravan_transport:choose(Here, Peer))})
     end || Here <- [here(Named, Changes) || Named <- [auto, shm, rdma, tcp],
                                             Changes <- [[], [no_driver], [encrypt]]],
            {OldShm, OldRequired, Why} <- [{true, false, none}, {true, true, none},
                                           {false, false, named_tcp}, {false, false, no_driver},
                                           {false, true, no_driver}]].

settle_test_() ->
    [?_assertEqual({shm, <<>>}, caravan_transport:settle(here(auto), peer(auto), shm, [])),
     ?_assertEqual({rdma, <<"shared memory: far">>},
                   caravan_transport:settle(here(auto), peer(auto), rdma, [{shm, <<"far">>}])),
     ?_assertEqual({tcp, <<"shared memory: far; RDMA: none">>},
                   caravan_transport:settle(here(auto), peer(auto), tcp, declined())),
     {"the better one first, whichever was known first",
      ?_assertEqual({tcp, <<"shared memory: far; RDMA: none">>},
                    caravan_transport:settle(here(auto), peer(auto), tcp, lists:reverse(declined())))},
     {"one reason for both is said once",
      ?_assertEqual({tcp, <<"why">>},
                    caravan_transport:settle(here(auto), peer(auto), tcp,
                                             [{shm, <<"why">>}, {rdma, <<"why">>}]))}].

%% Which words each refusal and each reason has, and which it does not.
sentences_test_() ->
    [{lists:flatten(io_lib:format("~p", [{Here, Peer}])),
      fun() ->
              {_, Why} = caravan_transport:choose(Here, Peer),
              [?assertNotEqual({nomatch, Word, Why}, {string:find(Why, Word), Word, Why}) || Word <- With],
              [?assertEqual({nomatch, Why}, {string:find(Why, Word), Why}) || Word <- Without]
      end} || {Here, Peer, With, Without} <-
                  [{here(auto), none, ["the peer does not speak Caravan"], [";", "RDMA"]},
                   {here(tcp), peer(auto), ["the option transport names tcp here"], [";"]},
                   {here(auto), peer(tcp), ["the option transport names tcp at the peer"], [";"]},
                   {here(auto, [no_driver]), peer(auto), ["missing"], [";"]},
                   {here(rdma), older(#{shm => true}), ["names rdma here", "older Caravan"], []},
                   {here(rdma), peer(shm), ["names rdma here", "names shm at the peer"], []},
                   {here(shm), peer(rdma), ["names shm here", "names rdma at the peer"], []},
                   {here(auto, [encrypt]), none,
                    ["encrypt is set here", "in the clear", "inet_tls"], []},
                   {here(tcp), peer(auto, [encrypt]),
                    ["encrypt is set at the peer", "in the clear", "inet_tls"], []},
                   {here(tcp), older(#{shm => true, required => true}), ["names shm at the peer"], []}]].

kind({attempt, Rounds, Declined}) when is_list(Declined) -> Rounds;
kind({Kind, Why}) when is_binary(Why), Why =/= <<>> -> Kind.

declined() -> [{shm, <<"far">>}, {rdma, <<"none">>}].

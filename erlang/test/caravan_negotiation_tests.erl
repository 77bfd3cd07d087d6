%% Both sides of the negotiation, run against each other and against scripts.
-module(caravan_negotiation_tests).
-include_lib("eunit/include/eunit.hrl").

%% Which steps fail, and what each side makes of it.
outcomes_test_() ->
    [{lists:flatten(io_lib:format("~p", [Fails])),
      ?_assertEqual({Outcome, Outcome}, both(Fails))}
     || {Fails, Outcome} <- [{[], shm},
                             {[listen], {tcp, <<"listen fails">>}},
                             {[connect], {tcp, <<"connect fails">>}},
                             {[accept], {tcp, <<"accept fails">>}},
                             {[connect, accept], {tcp, <<"connect fails">>}}]].

descriptor_arrives_test() ->
    Link = (link_steps([]))#{connect => fun(<<"descriptor">>) -> ok end},
    ?assertEqual({shm, shm}, both(Link, link_steps([]))).

%% A peer that has passed the cookie check and misbehaves all the same.
out_of_turn_test_() ->
    [?_assertMatch({error, {out_of_turn, _}}, script(Role, Messages))
     || {Role, Messages} <- [{initiator, ["Y"]}, {initiator, [""]}, {initiator, ["C"]},
                             {initiator, [["L", binary:copy(<<0>>, 1025)]]},
                             {initiator, ["Ldescriptor", "L"]}, {initiator, ["Ldescriptor", "Yes"]},
                             {acceptor, ["L"]}, {acceptor, ["Cx"]}, {acceptor, [""]}]].

closed_test_() ->
    [?_assertEqual({error, closed}, script(Role, Messages))
     || {Role, Messages} <- [{initiator, []}, {initiator, ["Ldescriptor"]}, {acceptor, []}]].

silent_test() ->
    Channel = #{send => fun(_) -> ok end,
                recv => fun(Timeout) -> receive after Timeout -> {error, timeout} end end},
    ?assertEqual({error, timeout},
                 caravan_negotiation:run(initiator, Channel, link_steps([]), 20)).

%% The peer's reason goes to the log: nothing but printable text, and not without end.
reason_is_tamed_test() ->
    {tcp, Why} = script(initiator, [["N", "a\e[31m\n\0b", 255, binary:copy(<<"x">>, 60000)]]),
    ?assertEqual(<<"a[31mb">>, Why),
    {tcp, Long} = script(initiator, [["N", binary:copy(<<"x">>, 60000)]]),
    ?assertEqual(512, byte_size(Long)).

%% ---------------------------------------------------------------------------------------------

link_steps(Fails) ->
    Step = fun(Name, Result) ->
                   case lists:member(Name, Fails) of
                       true -> {error, <<(atom_to_binary(Name))/binary, " fails">>};
                       false -> Result
                   end
           end,
    #{listen => fun() -> Step(listen, {ok, <<"descriptor">>}) end,
      connect => fun(_) -> Step(connect, ok) end,
      accept => fun() -> Step(accept, ok) end}.

both(Fails) ->
    both(link_steps(Fails), link_steps(Fails)).

both(InitiatorLink, AcceptorLink) ->
    Self = self(),
    Acceptor = spawn_link(
                 fun() ->
                         receive {peer, Peer} -> ok end,
                         Self ! {acceptor, caravan_negotiation:run(acceptor, channel(Peer),
                                                                   AcceptorLink, 5000)}
                 end),
    Acceptor ! {peer, Self},
    Initiator = caravan_negotiation:run(initiator, channel(Acceptor), InitiatorLink, 5000),
    receive {acceptor, Result} -> {Initiator, Result} end.

channel(Peer) ->
    #{send => fun(Data) -> Peer ! {packet, iolist_to_binary(Data)}, ok end,
      recv => fun(Timeout) ->
                      receive {packet, Data} -> {ok, binary_to_list(Data)}
                      after Timeout -> {error, timeout}
                      end
              end}.

script(Role, Messages) ->
    [self() ! {packet, iolist_to_binary(Message)} || Message <- Messages],
    Channel = #{send => fun(_) -> ok end,
                recv => fun(_) -> receive {packet, Data} -> {ok, Data} after 0 -> {error, closed} end
                        end},
    Result = caravan_negotiation:run(Role, Channel, link_steps([]), 1000),
    receive {packet, _} -> error(unread) after 0 -> Result end.

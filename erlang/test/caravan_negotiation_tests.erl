%% Both sides of the negotiation, run against each other and against scripts.
-module(caravan_negotiation_tests).
-include_lib("eunit/include/eunit.hrl").

%% Which steps fail, and what each side makes of it.
outcomes_test_() ->
    [{lists:flatten(io_lib:format("~p ~p", [Rounds, Fails])),
      fun() -> ?assertEqual({Outcome, Outcome}, untold(both(rounds(Rounds, Fails)))) end}
     || {Rounds, Fails, Outcome} <-
            [{[shm], [], {ok, shm, []}},
             {[shm], [listen], declined(tcp, [{shm, listen}])},
             {[shm], [connect], declined(tcp, [{shm, connect}])},
             {[shm], [accept], declined(tcp, [{shm, accept}])},
             {[shm], [connect, accept], declined(tcp, [{shm, connect}])},
             {[rdma], [], {ok, rdma, []}},
             {[rdma], [offer], declined(tcp, [{rdma, offer}])},
             {[rdma], [rdma_connect], declined(tcp, [{rdma, rdma_connect}])},
             {[rdma], [rdma_accept], declined(tcp, [{rdma, rdma_accept}])},
             {[rdma], [finish_here], declined(tcp, [{rdma, finish_here}])},
             {[rdma], [finish_there], declined(tcp, [{rdma, finish_there}])},
             {[rdma], [finish_here, finish_there], declined(tcp, [{rdma, finish_here}])},
             {[shm, rdma], [], {ok, shm, []}},
             {[shm, rdma], [listen], declined(rdma, [{shm, listen}])},
             {[shm, rdma], [connect], declined(rdma, [{shm, connect}])},
             {[shm, rdma], [accept], declined(rdma, [{shm, accept}])},
             {[shm, rdma], [accept, offer], declined(tcp, [{shm, accept}, {rdma, offer}])},
             {[shm, rdma], [connect, finish_there],
              declined(tcp, [{shm, connect}, {rdma, finish_there}])}]].

declined(Transport, Reasons) ->
    {ok, Transport, [{Round, fails(Step)} || {Round, Step} <- Reasons]}.

%% What one side says of its machine is marked as the peer's words at the other.
untold({Here, There}) -> {untold(Here), untold(There)};
untold({ok, Transport, Declined}) ->
    {ok, Transport, [{Round, case Why of <<"the peer says: ", Told/binary>> -> Told; _ -> Why end}
                     || {Round, Why} <- Declined]}.

told_test_() ->
    Told = <<"the peer says: ">>,
    [?_assertMatch({{ok, tcp, [{rdma, <<Told:15/binary, _/binary>>}]}, {ok, tcp, [{rdma, <<"offer fails">>}]}},
                   both(rounds([rdma], [offer]))),
     ?_assertMatch({{ok, tcp, [{rdma, <<"rdma_connect fails">>}]}, {ok, tcp, [{rdma, <<Told:15/binary, _/binary>>}]}},
                   both(rounds([rdma], [rdma_connect])))].

%% Each message is made of the one before: nothing is lost or mixed up on the way.
messages_arrive_test() ->
    Self = self(),
    {shm, Shm} = shm([]),
    both([{shm, Shm#{connect => fun(Descriptor) -> Self ! {connects, Descriptor}, ok end}}]),
    receive {connects, Descriptor} -> ?assertEqual(<<"descriptor">>, Descriptor) end,
    {rdma, Steps} = rdma([]),
    Finish = fun(Answer, _) -> Self ! {finished, Answer}, ok end,
    both([{rdma, Steps#{finish := Finish}}]),
    Seen = lists:sort([receive {finished, Answer} -> Answer end || _ <- [1, 2]]),
    ?assertEqual([<<>>, <<"accepted connected ports">>], Seen).

%% A peer that has passed the cookie check and misbehaves all the same.
out_of_turn_test_() ->
    Long = binary:copy(<<0>>, 4097),
    [{lists:flatten(io_lib:format("~p ~p ~p", [Round, Role, [iolist_size(M) || M <- Messages]])),
      ?_assertMatch({error, {out_of_turn, _}}, script(Round, Role, Messages))}
     || {Round, Role, Messages} <-
            [{shm, initiator, ["Y"]}, {shm, initiator, [""]}, {shm, initiator, ["C"]},
             {shm, initiator, [["L", binary:copy(<<0>>, 1025)]]},
             {shm, initiator, ["Ldescriptor", "L"]}, {shm, initiator, ["Ldescriptor", "Yes"]},
             {shm, acceptor, ["L"]}, {shm, acceptor, ["Cx"]}, {shm, acceptor, [""]},
             {rdma, initiator, ["Y"]}, {rdma, initiator, [""]}, {rdma, initiator, ["U"]},
             {rdma, initiator, [["L", Long]]},
             {rdma, initiator, ["Lports", "U"]}, {rdma, initiator, ["Lports", ["Y", Long]]},
             {rdma, initiator, ["Lports", "Yanswer", "R"]},
             {rdma, initiator, ["Lports", "Yanswer", "Up"]},
             {rdma, acceptor, ["L"]}, {rdma, acceptor, ["R"]}, {rdma, acceptor, [""]},
             {rdma, acceptor, [["C", Long]]}, {rdma, acceptor, ["Cports", "C"]},
             {rdma, acceptor, ["Cports", "Rx"]}]].

%% The round that is not due.
other_round_test_() ->
    [?_assertMatch({error, {out_of_turn, _}}, script(Round, Role, Messages))
     || {Round, Role, Messages} <- [{shm, acceptor, ["Cmessage"]}, {rdma, acceptor, ["Cports", "Y"]},
                                    {shm, initiator, ["Lx", "Yanswer"]}]].

closed_test_() ->
    [?_assertEqual({error, closed}, script(Round, Role, Messages))
     || {Round, Role, Messages} <-
            [{shm, initiator, []}, {shm, initiator, ["Ldescriptor"]}, {shm, acceptor, []},
             {rdma, initiator, []}, {rdma, initiator, ["Lports"]},
             {rdma, initiator, ["Lports", "Yanswer"]}, {rdma, acceptor, []},
             {rdma, acceptor, ["Cports"]}]].

%% One deadline holds for both rounds.
silent_test_() ->
    Slow = fun(Timeout) -> receive after Timeout -> {error, timeout} end end,
    [fun() ->
             Before = erlang:monotonic_time(millisecond),
             ?assertEqual({error, timeout},
                          caravan_negotiation:run(Role, #{send => fun(_) -> ok end, recv => Slow},
                                                  Rounds, 50)),
             Took = erlang:monotonic_time(millisecond) - Before,
             ?assert(Took >= 40 andalso Took < 10000)
     end || {Role, Rounds} <- [{initiator, rounds([shm, rdma], [])}, {acceptor, rounds([shm, rdma], [])},
                               {acceptor, rounds([shm, rdma], [listen])},
                               {initiator, rounds([rdma], [])}]].

%% Each step may take half of what is left: the last one still leaves time to say that it failed.
steps_are_bounded_test() ->
    Self = self(),
    Takes = fun(Name, Result) -> fun(_, LimitMs) -> Self ! {Name, LimitMs}, Result end end,
    Steps = #{offer => fun(LimitMs) -> Self ! {offer, LimitMs}, {ok, <<>>} end,
              connect => Takes(connect, {ok, <<>>}), accept => Takes(accept, {ok, <<>>}),
              finish => Takes(finish, ok)},
    ?assertMatch({{ok, rdma, []}, {ok, rdma, []}}, both([{rdma, Steps}])),
    [receive {Name, LimitMs} -> ?assert(LimitMs >= 1 andalso LimitMs =< Most) end
     || {Name, Most} <- [{offer, 10000}, {connect, 10000}, {accept, 10000}, {finish, 3000}, {finish, 3000}]].

%% The peer's reason goes to the log: nothing but printable text, and not without end.
reason_is_tamed_test() ->
    {ok, tcp, [{shm, Why}]} =
        script(shm, initiator, [["N", "a\e[31m\n\0b", 255, binary:copy(<<"x">>, 60000)]]),
    ?assertEqual(<<"a[31mb">>, Why),
    {ok, tcp, [{rdma, Long}]} = script(rdma, initiator, [["N", binary:copy(<<"x">>, 60000)]]),
    ?assertEqual(512 + byte_size(<<"the peer says: ">>), byte_size(Long)).

%% ---------------------------------------------------------------------------------------------

fails(Step) -> <<(atom_to_binary(Step))/binary, " fails">>.

rounds(Names, Fails) ->
    [case Name of shm -> shm(Fails); rdma -> rdma(Fails) end || Name <- Names].

step(Step, Fails, Result) ->
    case lists:member(Step, Fails) of
        true -> {error, fails(Step)};
        false -> Result
    end.

shm(Fails) ->
    {shm, #{listen => fun() -> step(listen, Fails, {ok, <<"descriptor">>}) end,
            connect => fun(_) -> step(connect, Fails, ok) end,
            accept => fun() -> step(accept, Fails, ok) end}}.

rdma(Fails) ->
    {rdma, #{offer => fun(_) -> step(offer, Fails, {ok, <<"ports">>}) end,
             connect => fun(Ports, _) ->
                                step(rdma_connect, Fails, {ok, <<"connected ", Ports/binary>>})
                        end,
             accept => fun(Message, _) ->
                               step(rdma_accept, Fails, {ok, <<"accepted ", Message/binary>>})
                       end,
             finish => fun(<<>>, _) -> step(finish_there, Fails, ok);
                          (_, _) -> step(finish_here, Fails, ok)
                       end}}.

both(Rounds) ->
    Self = self(),
    Acceptor = spawn_link(
                 fun() ->
                         receive {peer, Peer} -> ok end,
                         Self ! {acceptor, caravan_negotiation:run(acceptor, channel(Peer), Rounds,
                                                                   20000)}
                 end),
    Acceptor ! {peer, Self},
    Initiator = caravan_negotiation:run(initiator, channel(Acceptor), Rounds, 20000),
    receive {acceptor, Result} -> {Initiator, Result} end.

channel(Peer) ->
    #{send => fun(Data) -> Peer ! {packet, iolist_to_binary(Data)}, ok end,
      recv => fun(Timeout) ->
                      receive {packet, Data} -> {ok, binary_to_list(Data)}
                      after Timeout -> {error, timeout}
                      end
              end}.

script(Round, Role, Messages) ->
    [self() ! {packet, iolist_to_binary(Message)} || Message <- Messages],
    Channel = #{send => fun(_) -> ok end,
                recv => fun(_) -> receive {packet, Data} -> {ok, Data} after 0 -> {error, closed} end
                        end},
    Result = caravan_negotiation:run(Role, Channel, rounds([Round], []), 1000),
    receive {packet, _} -> error(unread) after 0 -> Result end.

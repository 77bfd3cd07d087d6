-module(caravan_capability_tests).
-include_lib("eunit/include/eunit.hrl").

packet(name, Name) -> <<$N, 16#1234:64, 7:32, (byte_size(Name)):16, Name/binary>>;
packet(reply, _Name) -> <<$r, 99:32, "0123456789abcdef">>;
packet(challenge, Name) -> <<$N, 16#1234:64, 99:32, 7:32, (byte_size(Name)):16, Name/binary>>.

capabilities() ->
    [#{shm => Shm, rdma => Rdma, required => Required, encrypt => Encrypt, why => Why,
       rdma_why => RdmaWhy}
     || Shm <- [true, false], Rdma <- [true, false], Required <- [true, false],
        Encrypt <- [true, false], Why <- [none, named_tcp, no_driver, named_rdma],
        RdmaWhy <- [none, named_tcp, no_driver, named_shm]].

there_and_back_test() ->
    [?assertEqual(Capability,
                  caravan_capability:parse(
                    Which, caravan_capability:append(Which, packet(Which, <<"a@b">>), Capability)))
     || Which <- [reply, challenge], Capability <- capabilities()].

%% As dist_util hands it over, and as a socket in list mode does.
iodata_test() ->
    [Capability | _] = capabilities(),
    Appended = caravan_capability:append(
                 challenge, [<<$N, 0:64, 0:32, 0:32, 3:16>>, <<"a@b">>], Capability),
    ?assertEqual(Capability,
                 caravan_capability:parse(challenge, binary_to_list(iolist_to_binary(Appended)))).

%% A node that does not know us reads what it always read.
prefix_test() ->
    [Capability | _] = capabilities(),
    Packet = packet(challenge, <<"a@b">>),
    Appended = iolist_to_binary(caravan_capability:append(challenge, Packet, Capability)),
    ?assertEqual(Packet, binary:part(Appended, 0, byte_size(Packet))).

%% dist_util takes a reply in its exact length.
strip_test() ->
    [Capability | _] = capabilities(),
    Packet = packet(reply, none),
    ?assertEqual(Packet, caravan_capability:strip(
                           caravan_capability:append(reply, Packet, Capability))),
    [?assertEqual(Data, caravan_capability:strip(Data)) || Data <- [Packet, <<"r123">>, <<>>]].

%% The name stays as long as it is, and says one thing more.
announce_test() ->
    Packet = packet(name, <<"a@b">>),
    ?assertNot(caravan_capability:announced(Packet)),
    Announced = caravan_capability:announce(Packet),
    ?assert(caravan_capability:announced(binary_to_list(Announced))),
    ?assertEqual(byte_size(Packet), byte_size(Announced)),
    <<$N, _, Rest/binary>> = Packet,
    <<$N, 16#80, Rest/binary>> = Announced,
    [?assertEqual({Data, false}, {caravan_capability:announce(Data),
                                  caravan_capability:announced(Data)})
     || Data <- [<<"sok">>, <<"N">>, <<>>]].

others_stay_as_they_are_test() ->
    [Capability | _] = capabilities(),
    [?assertEqual(Data, iolist_to_binary(caravan_capability:append(reply, Data, Capability)))
     || Data <- [<<"sok">>, <<"r123">>, <<>>, <<"N">>, <<"Nshort">>]].

none_test() ->
    [?assertEqual(none, caravan_capability:parse(challenge, Data))
     || Data <- [packet(challenge, <<"a@b">>), <<"sok">>, <<>>, <<"N">>,
                 <<(packet(challenge, <<"a@b">>))/binary, "something else">>,
                 <<(packet(challenge, <<"a@b">>))/binary, "caravan">>,
                 <<(packet(challenge, <<"a@b">>))/binary, "caravan", 1, 9:16, 1>>,
                 <<(packet(challenge, <<"a@b">>))/binary, "caravan", 1, 1:16, 1>>,
                 <<(packet(challenge, <<"a@b">>))/binary, "caravan", 0, 2:16, 1, 0>>]].

later_versions_test() ->
    ?assertEqual(#{shm => true, rdma => true, required => false, encrypt => true, why => none,
                   rdma_why => none},
                 caravan_capability:parse(
                   challenge, <<(packet(challenge, <<"a@b">>))/binary, "caravan", 9, 5:16, 16#FD, 200, 201, 2, 3,
                           "and more">>)).

%% What the first nodes that spoke Caravan send, byte by byte.
older_nodes_test_() ->
    [?_assertEqual(#{shm => Shm, rdma => false, required => Required, encrypt => false, why => Why,
                     rdma_why => older},
                   caravan_capability:parse(
                     reply, <<(packet(reply, none))/binary, "caravan", 1, 2:16, Flags, Code>>))
     || {Flags, Shm, Required} <- [{0, false, false}, {1, true, false}, {2, false, true}, {3, true, true}],
        {Code, Why} <- [{0, none}, {1, named_tcp}, {2, no_driver}, {9, none}]].

%% And what those nodes read: the first two flags, the first reason, whatever follows.
read_by_older_nodes_test_() ->
    [fun() ->
             Appended = iolist_to_binary(
                          caravan_capability:append(challenge, packet(challenge, <<"a@b">>), Capability)),
             Size = byte_size(packet(challenge, <<"a@b">>)),
             <<_:Size/binary, "caravan", 1, Length:16, Payload:Length/binary>> = Appended,
             <<_:6, Required:1, Shm:1, Why, _Later/binary>> = Payload,
             ?assertEqual({maps:get(shm, Capability), maps:get(required, Capability)},
                          {Shm =:= 1, Required =:= 1}),
             ?assertEqual(maps:get(why, Capability),
                          maps:get(Why, #{0 => none, 1 => named_tcp, 2 => no_driver, 3 => named_rdma}))
     end || Capability <- capabilities()].

%% Whatever a stranger writes: an answer, no exception.
any_bytes_test() ->
    Seed = rand:seed(exsss),
    ?debugFmt("seed ~p", [rand:export_seed_s(Seed)]),
    [begin
         Junk = rand:bytes(rand:uniform(40) - 1),
         Data = case rand:uniform(3) of
                    1 -> Junk;
                    2 -> <<(rand:uniform(256) - 1), Junk/binary>>;
                    3 -> <<(packet(Which, <<"a@b">>))/binary, "caravan", Junk/binary>>
                end,
         case caravan_capability:parse(Which, Data) of
             none -> ok;
             #{shm := Shm, rdma := Rdma, required := Required, encrypt := Encrypt}
               when is_boolean(Shm), is_boolean(Rdma), is_boolean(Required), is_boolean(Encrypt) -> ok
         end,
         _ = caravan_capability:name(Data),
         _ = caravan_capability:announced(Data),
         _ = caravan_capability:announce(Data),
         _ = caravan_capability:strip(Data),
         _ = caravan_capability:assigned_name(Data)
     end || Which <- [reply, challenge], _ <- lists:seq(1, 20000)].

name_test() ->
    [?assertEqual({ok, <<"node@host">>},
                  caravan_capability:name([packet(name, <<"node@host">>), Behind]))
     || Behind <- [<<>>, <<"more">>]],
    ?assertEqual(error, caravan_capability:name(<<"sok">>)).

assigned_name_test() ->
    ?assertEqual({ok, <<"X1@host">>},
                 caravan_capability:assigned_name(["snamed:", <<7:16>>, "X1@host", <<5:32>>])),
    ?assertEqual(error, caravan_capability:assigned_name("sok")),
    ?assertEqual(error, caravan_capability:assigned_name(<<"snamed:", 99:16, "X">>)).

hidden_test() ->
    ?assert(caravan_capability:hidden(<<$N, 16#1230:64, "rest">>)),
    ?assertNot(caravan_capability:hidden(<<$N, 16#1231:64, "rest">>)),
    ?assertNot(caravan_capability:hidden(<<"sok">>)).

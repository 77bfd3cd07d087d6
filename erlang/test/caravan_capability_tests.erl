-module(caravan_capability_tests).
-include_lib("eunit/include/eunit.hrl").

packet(name, Name) -> <<$N, 16#1234:64, 7:32, (byte_size(Name)):16, Name/binary>>;
packet(challenge, Name) -> <<$N, 16#1234:64, 99:32, 7:32, (byte_size(Name)):16, Name/binary>>.

capabilities() ->
    [#{shm => Shm, required => Required, why => Why}
     || Shm <- [true, false], Required <- [true, false], Why <- [none, named_tcp, no_driver]].

there_and_back_test() ->
    [?assertEqual(Capability,
                  caravan_capability:parse(
                    Which, caravan_capability:append(Which, packet(Which, <<"a@b">>), Capability)))
     || Which <- [name, challenge], Capability <- capabilities()].

%% As dist_util hands it over, and as a socket in list mode does.
iodata_test() ->
    [Capability | _] = capabilities(),
    Appended = caravan_capability:append(
                 name, [<<$N, 0:64, 0:32, 3:16>>, <<"a@b">>], Capability),
    ?assertEqual(Capability,
                 caravan_capability:parse(name, binary_to_list(iolist_to_binary(Appended)))).

%% A node that does not know us reads what it always read.
prefix_test() ->
    [Capability | _] = capabilities(),
    Packet = packet(challenge, <<"a@b">>),
    Appended = iolist_to_binary(caravan_capability:append(challenge, Packet, Capability)),
    ?assertEqual(Packet, binary:part(Appended, 0, byte_size(Packet))).

others_stay_as_they_are_test() ->
    [Capability | _] = capabilities(),
    [?assertEqual(Data, iolist_to_binary(caravan_capability:append(name, Data, Capability)))
     || Data <- [<<"sok">>, <<"r123">>, <<>>, <<"N">>, <<"Nshort">>]].

none_test() ->
    [?assertEqual(none, caravan_capability:parse(name, Data))
     || Data <- [packet(name, <<"a@b">>), <<"sok">>, <<>>, <<"N">>,
                 <<(packet(name, <<"a@b">>))/binary, "something else">>,
                 <<(packet(name, <<"a@b">>))/binary, "caravan">>,
                 <<(packet(name, <<"a@b">>))/binary, "caravan", 1, 9:16, 1>>,
                 <<(packet(name, <<"a@b">>))/binary, "caravan", 1, 1:16, 1>>,
                 <<(packet(name, <<"a@b">>))/binary, "caravan", 0, 2:16, 1, 0>>]].

later_versions_test() ->
    ?assertEqual(#{shm => true, required => false, why => none},
                 caravan_capability:parse(
                   name, <<(packet(name, <<"a@b">>))/binary, "caravan", 9, 5:16, 16#FD, 200, 1, 2, 3,
                           "and more">>)).

%% Whatever a stranger writes: an answer, no exception.
any_bytes_test() ->
    Seed = rand:seed(exsss),
    ?debugFmt("seed ~p", [rand:export_seed_s(Seed)]),
    [begin
         Junk = rand:bytes(rand:uniform(40) - 1),
         Data = case rand:uniform(3) of
                    1 -> Junk;
                    2 -> <<$N, Junk/binary>>;
                    3 -> <<(packet(Which, <<"a@b">>))/binary, "caravan", Junk/binary>>
                end,
         case caravan_capability:parse(Which, Data) of
             none -> ok;
             #{shm := Shm, required := Required} when is_boolean(Shm), is_boolean(Required) -> ok
         end,
         _ = caravan_capability:name(Which, Data),
         _ = caravan_capability:assigned_name(Data)
     end || Which <- [name, challenge], _ <- lists:seq(1, 20000)].

name_test() ->
    [?assertEqual({ok, <<"node@host">>}, caravan_capability:name(Which, packet(Which, <<"node@host">>)))
     || Which <- [name, challenge]],
    ?assertEqual(error, caravan_capability:name(name, <<"sok">>)).

assigned_name_test() ->
    ?assertEqual({ok, <<"X1@host">>},
                 caravan_capability:assigned_name(["snamed:", <<7:16>>, "X1@host", <<5:32>>])),
    ?assertEqual(error, caravan_capability:assigned_name("sok")),
    ?assertEqual(error, caravan_capability:assigned_name(<<"snamed:", 99:16, "X">>)).

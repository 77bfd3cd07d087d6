%% @doc What a node says of itself behind its name in the handshake: that it speaks Caravan.
%%
%% The distribution protocol has two packets with tag `N', `send_name' and `send_challenge', in
%% which a node gives its name, and says of both that bytes behind the name are to be ignored by
%% those who do not know them (erl_dist_protocol, "Protocol in Detail"). There we put
%% ```
%% "caravan"  Version:8  Length:16  Payload:Length
%% Payload of version 1:  Flags:8 (1 = offers shared memory, 2 = accepts nothing else)  Why:8
%% '''
%% Later versions may only append to the payload. These bytes come from a peer that has not
%% shown its cookie yet: they are turned into a small map here, and nothing else happens because
%% of them until it has.
-module(caravan_capability).

-export([append/3, parse/2, name/2, assigned_name/1]).
-export_type([capability/0, packet/0]).

-type packet() :: name | challenge.
%% Which of the two packets: the first one of a connection, or the answer to it.
-type why() :: none | named_tcp | no_driver.
%% Why no shared memory is offered.
-type capability() :: #{shm := boolean(), required := boolean(), why := why()}.

-define(MAGIC, "caravan").
-define(VERSION, 1).
-define(OFFERS, 1).
-define(REQUIRES, 2).

%% @doc The packet with our capability behind the name; other packets stay as they are.
-spec append(packet(), iodata(), capability()) -> iodata().
append(Which, Data, Capability) ->
    case iolist_to_binary(Data) of
        <<$N, _/binary>> = Packet ->
            case rest(Which, Packet) of
                {ok, <<>>} -> [Packet, encode(Capability)];
                _ -> Data
            end;
        _ ->
            Data
    end.

%% @doc The capability in a packet, or `none': a node that does not speak Caravan, another packet,
%% or bytes that make no sense.
-spec parse(packet(), iodata()) -> none | capability().
parse(Which, Data) ->
    case iolist_to_binary(Data) of
        <<$N, _/binary>> = Packet ->
            case rest(Which, Packet) of
                {ok, <<?MAGIC, Version, Length:16, Payload:Length/binary, _/binary>>}
                  when Version >= ?VERSION ->
                    decode(Payload);
                _ ->
                    none
            end;
        _ ->
            none
    end.

%% @doc The name in a packet: of a node, or of a host where the node has no name yet.
-spec name(packet(), iodata()) -> {ok, binary()} | error.
name(Which, Data) ->
    Packet = iolist_to_binary(Data),
    case rest(Which, Packet) of
        {ok, Rest} ->
            Offset = name_offset(Which),
            {ok, binary:part(Packet, Offset, byte_size(Packet) - Offset - byte_size(Rest))};
        error ->
            error
    end.

%% @doc The name that the accepting side gives to a node which came without one.
-spec assigned_name(iodata()) -> {ok, binary()} | error.
assigned_name(Data) ->
    case iolist_to_binary(Data) of
        <<"snamed:", Length:16, Name:Length/binary, _/binary>> -> {ok, Name};
        _ -> error
    end.

%% ---------------------------------------------------------------------------------------------

-spec name_offset(packet()) -> pos_integer().
name_offset(name) -> 1 + 8 + 4 + 2;
name_offset(challenge) -> 1 + 8 + 4 + 4 + 2.

%% What follows the name.
-spec rest(packet(), binary()) -> {ok, binary()} | error.
rest(name, <<$N, _Flags:64, _Creation:32, Length:16, _Name:Length/binary, Rest/binary>>) ->
    {ok, Rest};
rest(challenge, <<$N, _Flags:64, _Challenge:32, _Creation:32, Length:16, _Name:Length/binary,
                  Rest/binary>>) ->
    {ok, Rest};
rest(_, _) ->
    error.

-spec encode(capability()) -> binary().
encode(#{shm := Shm, required := Required, why := Why}) ->
    Flags = bit(Shm, ?OFFERS) bor bit(Required, ?REQUIRES),
    Payload = <<Flags, (why_code(Why))>>,
    <<?MAGIC, ?VERSION, (byte_size(Payload)):16, Payload/binary>>.

-spec decode(binary()) -> none | capability().
decode(<<Flags, Why, _Later/binary>>) ->
    #{shm => Flags band ?OFFERS =/= 0, required => Flags band ?REQUIRES =/= 0, why => why(Why)};
decode(_) ->
    none.

-spec bit(boolean(), non_neg_integer()) -> non_neg_integer().
bit(true, Bit) -> Bit;
bit(false, _) -> 0.

-spec why_code(why()) -> 0..2.
why_code(none) -> 0;
why_code(named_tcp) -> 1;
why_code(no_driver) -> 2.

-spec why(byte()) -> why().
why(1) -> named_tcp;
why(2) -> no_driver;
why(_) -> none.

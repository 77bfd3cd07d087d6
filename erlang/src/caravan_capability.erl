%% @doc The capability: what two nodes that speak Caravan tell each other in the handshake.
%%
%% A node that does not speak Caravan must not notice. So the initiating side only sets one bit
%% among the flags of its name (`send_name'). It is the highest of 64 bits; Erlang/OTP assigns its
%% own flags from the lowest bit up, and two nodes use only the flags that both have set. An
%% accepting side that knows the bit appends its capability to its challenge (`send_challenge'),
%% where the protocol has a node ignore bytes that it does not know (see erl_dist_protocol, "The
%% Handshake in Detail"). The initiating side appends its own capability to its reply, and only if
%% the challenge had one. The protocol allows bytes after `send_name' as well, but OTP's own
%% distribution test suite refuses them (erl_distribution_wb_SUITE:whitebox).
%%
%% The format:
%% ```
%% "caravan"  Version:8  Length:16  Payload:Length
%% Payload of version 1:  Flags:8 (1 = offers shared memory, 2 = does not accept TCP,
%%                                 4 = offers RDMA, 8 = RDMA must be encrypted)
%%                        Why:8 (why no shared memory)  RdmaWhy:8 (why no RDMA)
%% '''
%% Later versions may only append to the payload. The first version of Caravan knew only shared
%% memory: it sends `Flags Why' with the first two flags, and takes a peer that does not accept TCP
%% for one that requires shared memory, the only other transport that the two can share.
%%
%% The peer has not proved its cookie when it sends these bytes. This module turns them into a
%% small map, and nothing else happens because of them until the cookie is proved.
-module(caravan_capability).

-export([announce/1, announced/1, append/3, parse/2, strip/1, name/1, hidden/1,
         assigned_name/1]).

-include_lib("kernel/include/dist.hrl").
-export_type([capability/0, packet/0]).

-type packet() :: challenge | reply.
%% The packets that carry a capability: the accepting side's challenge and the initiating side's
%% reply.
-type why() :: none | named_tcp | no_driver | named_rdma.
%% Why the node does not offer shared memory.
-type rdma_why() :: none | named_tcp | no_driver | named_shm | older.
%% Why the node does not offer RDMA; `older' means that its version does not know RDMA.
-type capability() :: #{shm := boolean(), rdma := boolean(), required := boolean(),
                        encrypt := boolean(), why := why(), rdma_why := rdma_why()}.
%% `required': the node does not accept TCP. `encrypt': it does not accept unencrypted RDMA either.

-define(MAGIC, "caravan").
-define(VERSION, 1).
-define(OFFERS, 1).
-define(REQUIRES, 2).
-define(OFFERS_RDMA, 4).
-define(ENCRYPTS, 8).
-define(WHY, [{0, none}, {1, named_tcp}, {2, no_driver}, {3, named_rdma}]).
-define(RDMA_WHY, [{0, none}, {1, named_tcp}, {2, no_driver}, {3, named_shm}, {5, older}]).
%% A bit among the flags of a name.
-define(SPEAKS, (1 bsl 63)).

%% @doc Sets the bit for Caravan in the initiating side's name. Returns other packets unchanged.
-spec announce(iodata()) -> iodata().
announce(Data) ->
    case iolist_to_binary(Data) of
        <<$N, Flags:64, Rest/binary>> -> <<$N, (Flags bor ?SPEAKS):64, Rest/binary>>;
        _ -> Data
    end.

%% @doc Checks whether the sender of this name speaks Caravan.
-spec announced(iodata()) -> boolean().
announced(Data) ->
    case iolist_to_binary(Data) of
        <<$N, Flags:64, _/binary>> -> Flags band ?SPEAKS =/= 0;
        _ -> false
    end.

%% @doc Appends our capability to the packet. Returns other packets unchanged.
-spec append(packet(), iodata(), capability()) -> iodata().
append(Which, Data, Capability) ->
    Packet = iolist_to_binary(Data),
    case rest(Which, Packet) of
        {ok, <<>>} -> [Packet, encode(Capability)];
        _ -> Data
    end.

%% @doc Returns the capability in a packet, or `none' if the sender does not speak Caravan, the
%% packet is another one, or its bytes are malformed.
-spec parse(packet(), iodata()) -> none | capability().
parse(Which, Data) ->
    case rest(Which, iolist_to_binary(Data)) of
        {ok, <<?MAGIC, Version, Length:16, Payload:Length/binary, _/binary>>}
          when Version >= ?VERSION ->
            decode(Payload);
        _ ->
            none
    end.

%% @doc Returns the reply without the bytes that follow it: `dist_util' accepts only its exact length.
-spec strip(iodata()) -> binary().
strip(Data) ->
    Packet = iolist_to_binary(Data),
    case rest(reply, Packet) of
        {ok, Rest} -> binary:part(Packet, 0, byte_size(Packet) - byte_size(Rest));
        error -> Packet
    end.

%% @doc Returns the name that the initiating side gave: a node's, or a host's if the node has no
%% name yet.
-spec name(iodata()) -> {ok, binary()} | error.
name(Data) ->
    case iolist_to_binary(Data) of
        <<$N, _Flags:64, _Creation:32, Length:16, Name:Length/binary, _/binary>> -> {ok, Name};
        _ -> error
    end.

%% @doc Checks whether the sender of a name or a challenge is a hidden node.
-spec hidden(iodata()) -> boolean().
hidden(Data) ->
    case iolist_to_binary(Data) of
        <<$N, Flags:64, _/binary>> -> Flags band ?DFLAG_PUBLISHED =:= 0;
        _ -> false
    end.

%% @doc Returns the name that the accepting side assigns to a node without one.
-spec assigned_name(iodata()) -> {ok, binary()} | error.
assigned_name(Data) ->
    case iolist_to_binary(Data) of
        <<"snamed:", Length:16, Name:Length/binary, _/binary>> -> {ok, Name};
        _ -> error
    end.

%% ---------------------------------------------------------------------------------------------

%% Returns the bytes after the part of a packet that dist_util knows.
-spec rest(packet(), binary()) -> {ok, binary()} | error.
rest(challenge, <<$N, _Flags:64, _Challenge:32, _Creation:32, Length:16, _Name:Length/binary,
                  Rest/binary>>) ->
    {ok, Rest};
rest(reply, <<$r, _Challenge:32, _Digest:16/binary, Rest/binary>>) ->
    {ok, Rest};
rest(_, _) ->
    error.

-spec encode(capability()) -> binary().
encode(#{shm := Shm, rdma := Rdma, required := Required, encrypt := Encrypt, why := Why,
         rdma_why := RdmaWhy}) ->
    Flags = bit(Shm, ?OFFERS) bor bit(Required, ?REQUIRES) bor bit(Rdma, ?OFFERS_RDMA)
        bor bit(Encrypt, ?ENCRYPTS),
    Payload = <<Flags, (code(Why, ?WHY)), (code(RdmaWhy, ?RDMA_WHY))>>,
    <<?MAGIC, ?VERSION, (byte_size(Payload)):16, Payload/binary>>.

-spec decode(binary()) -> none | capability().
decode(<<Flags, Why, RdmaWhy, _Later/binary>>) ->
    #{shm => Flags band ?OFFERS =/= 0, required => Flags band ?REQUIRES =/= 0,
      rdma => Flags band ?OFFERS_RDMA =/= 0, encrypt => Flags band ?ENCRYPTS =/= 0,
      why => of_code(Why, ?WHY), rdma_why => of_code(RdmaWhy, ?RDMA_WHY)};
decode(<<Flags, Why>>) ->
    #{shm => Flags band ?OFFERS =/= 0, required => Flags band ?REQUIRES =/= 0,
      rdma => false, encrypt => false, why => of_code(Why, ?WHY), rdma_why => older};
decode(_) ->
    none.

-spec bit(boolean(), non_neg_integer()) -> non_neg_integer().
bit(true, Bit) -> Bit;
bit(false, _) -> 0.

-spec code(why() | rdma_why(), [{byte(), why() | rdma_why()}]) -> byte().
code(Why, Codes) ->
    {Code, Why} = lists:keyfind(Why, 2, Codes),
    Code.

%% A code of a later version says nothing to this one.
-spec of_code(byte(), [{byte(), why() | rdma_why()}]) -> why() | rdma_why().
of_code(Code, Codes) ->
    proplists:get_value(Code, Codes, none).

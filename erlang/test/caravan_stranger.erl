%% A node made by hand: the distribution handshake over a socket, packet by packet, for packets that
%% no
%% real node would send.
-module(caravan_stranger).

-export([connect/1, name/3, status/1, challenge/1, reply/3, reply/4, ack/1, recv/1, send/2, close/1]).
-export([initiator/3, closed/1]).

-define(SPEAKS_CARAVAN, (1 bsl 63)).

%% Connects to the port on which a node listens.
connect(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {packet, 2}, {active, false}]),
    Socket.

%% Sends send_name, with any bytes after the name.
name(Socket, {Name, Flags}, Capability) ->
    send(Socket, [<<$N, Flags:64, 1234:32, (byte_size(Name)):16>>, Name, Capability]).

status(Socket) ->
    <<$s, Status/binary>> = recv(Socket),
    Status.

%% Receives the challenge, and returns what follows the name in it.
challenge(Socket) ->
    <<$N, _:64, Challenge:32, _:32, Length:16, _:Length/binary, Rest/binary>> = recv(Socket),
    {Challenge, Rest}.

reply(Socket, Challenge, Cookie) ->
    reply(Socket, Challenge, Cookie, <<>>).

%% Sends the reply, with any bytes after it.
reply(Socket, Challenge, Cookie, Capability) ->
    send(Socket, [<<$r, 77:32>>, erlang:md5([Cookie, integer_to_list(Challenge)]), Capability]).

ack(Socket) ->
    <<$a, _/binary>> = recv(Socket),
    ok.

%% The whole handshake, up to where a transport is chosen; what came behind the challenge's name.
initiator(Socket, {Name, Flags}, {Cookie, Capability}) ->
    ok = name(Socket, {Name, Flags bor ?SPEAKS_CARAVAN}, <<>>),
    <<"ok">> = status(Socket),
    {Challenge, Theirs} = challenge(Socket),
    ok = reply(Socket, Challenge, Cookie, Capability),
    ok = ack(Socket),
    Theirs.

send(Socket, Data) -> gen_tcp:send(Socket, Data).

recv(Socket) ->
    {ok, Packet} = gen_tcp:recv(Socket, 0, 60000),
    Packet.

%% Returns whether the other side closes, whatever it sends before that.
closed(Socket) ->
    case gen_tcp:recv(Socket, 0, 60000) of
        {ok, _} -> closed(Socket);
        {error, timeout} -> false;
        {error, _} -> true
    end.

close(Socket) -> gen_tcp:close(Socket).

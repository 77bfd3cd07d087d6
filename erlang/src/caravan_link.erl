%% @doc A connection's port of the driver: the link over shared memory or RDMA, or a row of counters
%% for TCP.
%%
%% Either way the port belongs to the process of the connection, which calls these functions:
%% whichever of the two ends first takes the other with it.
-module(caravan_link).

-export([agree/6, counters_port/3]).
-export_type([labels/0, link/0]).

-type labels() :: #{me := binary(), peer := binary()}.
%% What the two nodes are called where the link is shown.
-type link() :: #{rounds := [shm | rdma, ...], sealed := boolean()}.
%% What to try, in this order, and whether RDMA is to be encrypted.

%% From the end of the handshake, when its timer stops, to nodeup: for each transport to try.
-define(ROUND_MS, 5000).

%% @doc Agrees with the other side on one of the transports to try, or on doing without. The port
%% carries the link, and there is none where TCP does; with it, why each better one was declined.
-spec agree(caravan_negotiation:role(), caravan_tcp:inet(), inet:socket(), labels(),
            caravan_options:options(), link()) ->
          {shm | rdma, port(), caravan_transport:declined()}
        | {tcp, caravan_transport:declined()} | {error, term()}.
agree(Role, Inet, Socket, Labels, Options, #{rounds := Names, sealed := Sealed}) ->
    Opened = watching(open(Labels, Options, seal(Sealed, Labels)), Socket),
    %% Small messages, each of which waits for an answer: not to be held back for company.
    _ = inet:setopts(Socket, [{nodelay, true}]),
    Channel = #{send => fun(Data) -> Inet:send(Socket, Data) end,
                recv => fun(Timeout) -> Inet:recv(Socket, 0, Timeout) end},
    Rounds = [round(Name, Opened) || Name <- Names],
    Result = caravan_negotiation:run(Role, Channel, Rounds, ?ROUND_MS * length(Rounds)),
    case {Result, Opened} of
        {{ok, Transport, Declined}, {ok, Port}} when Transport =/= tcp ->
            {Transport, Port, Declined};
        {_, {ok, Port}} ->
            caravan_driver:close(Port),
            without(Result);
        {_, {error, _}} ->
            without(Result)
    end.

-spec without({ok, tcp, caravan_transport:declined()} | {error, term()}) ->
          {tcp, caravan_transport:declined()} | {error, term()}.
without({ok, tcp, Declined}) -> {tcp, Declined};
without({error, _} = Error) -> Error.

%% @doc A port that carries no link: it shows the counters of a TCP connection to others than this
%% node. `undefined' where it cannot be had; the connection does not depend on it.
-spec counters_port(labels(), caravan_options:options(), Reason :: binary()) ->
          undefined | port().
counters_port(Labels, Options, Reason) ->
    case open(Labels, Options, none) of
        {ok, Port} ->
            case caravan_driver:tcp_row(Port, Reason) of
                ok -> Port;
                {error, _} ->
                    caravan_driver:close(Port),
                    undefined
            end;
        {error, _} ->
            undefined
    end.

%% ---------------------------------------------------------------------------------------------

%% A port with the TCP connection to watch, which will say only that the other side lives. Before
%% anything is agreed: a descriptor that cannot be had then is a reason to decline, and not the end of
%% a link that the other side holds for made.
-spec watching({ok, port()} | {error, binary()}, inet:socket()) -> {ok, port()} | {error, binary()}.
watching({ok, Port}, Socket) ->
    Watched = case inet:getfd(Socket) of
                  {ok, Fd} -> caravan_driver:lifeline(Port, Fd);
                  {error, Reason} -> {error, atom_to_binary(Reason)}
              end,
    case Watched of
        ok -> {ok, Port};
        {error, _} = Error ->
            caravan_driver:close(Port),
            Error
    end;
watching({error, _} = Error, _) ->
    Error.

%% What the two nodes know, and nobody else: who sits between them must not be able to pass for
%% either.
-spec seal(boolean(), labels()) -> none | {cookie, binary()}.
seal(false, _) ->
    none;
seal(true, #{peer := Peer}) ->
    {cookie, atom_to_binary(erlang:get_cookie(binary_to_atom(Peer)))}.

%% Where there is no port for it, the other side is told so in our turn.
-spec round(shm | rdma, {ok, port()} | {error, binary()}) -> caravan_negotiation:round().
round(shm, {ok, Port}) ->
    {shm, #{listen => fun() -> caravan_driver:listen(Port) end,
            connect => fun(Descriptor) -> caravan_driver:connect(Port, Descriptor) end,
            accept => fun() -> caravan_driver:accept(Port) end}};
round(rdma, {ok, Port}) ->
    {rdma, #{offer => fun(LimitMs) -> caravan_driver:offer(Port, LimitMs) end,
             connect => fun(Offer, LimitMs) -> caravan_driver:rdma_connect(Port, Offer, LimitMs) end,
             accept => fun(Message, LimitMs) -> caravan_driver:rdma_accept(Port, Message, LimitMs) end,
             finish => fun(Answer, LimitMs) -> caravan_driver:rdma_finish(Port, Answer, LimitMs) end}};
round(shm, {error, _} = Error) ->
    {shm, #{listen => fun() -> Error end, connect => fun(_) -> Error end,
            accept => fun() -> Error end}};
round(rdma, {error, _} = Error) ->
    {rdma, #{offer => fun(_) -> Error end, connect => fun(_, _) -> Error end,
             accept => fun(_, _) -> Error end, finish => fun(_, _) -> Error end}}.

-spec open(labels(), caravan_options:options(), none | {cookie, binary()}) ->
          {ok, port()} | {error, binary()}.
open(Labels, #{ring_bytes := RingBytes, busy_bytes := BusyBytes, spin := Spin,
               fragments := Fragments}, Seal) ->
    case caravan_driver:open() of
        {ok, Port} ->
            Spins = caravan_options:spins(Spin, erlang:system_info(emu_args)),
            case caravan_driver:configure(
                   Port, Labels#{ring_bytes => RingBytes, busy_bytes => BusyBytes,
                                 spin => Spins, fragments => Fragments, seal => Seal}) of
                ok ->
                    {ok, Port};
                Error ->
                    caravan_driver:close(Port),
                    Error
            end;
        Error ->
            Error
    end.

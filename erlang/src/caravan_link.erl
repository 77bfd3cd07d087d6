%% @doc A connection's port of the driver: the shared-memory link, or a row of counters for TCP.
%%
%% Either way the port belongs to the process of the connection, which calls these functions:
%% whichever of the two ends first takes the other with it.
-module(caravan_link).

-export([agree/5, counters_port/3]).
-export_type([labels/0]).

-type labels() :: #{me := binary(), peer := binary()}.
%% What the two nodes are called where the link is shown.

%% From the end of the handshake, when its timer stops, to nodeup.
-define(NEGOTIATION_MS, 5000).

%% @doc Agrees with the other side on shared memory, or on doing without.
-spec agree(caravan_negotiation:role(), caravan_tcp:inet(), inet:socket(), labels(),
            caravan_options:options()) -> {shm, port()} | {tcp, Why :: binary()} | {error, term()}.
agree(Role, Inet, Socket, Labels, Options) ->
    Opened = open(Labels, Options),
    %% Small messages, each of which waits for an answer: not to be held back for company.
    _ = inet:setopts(Socket, [{nodelay, true}]),
    Channel = #{send => fun(Data) -> Inet:send(Socket, Data) end,
                recv => fun(Timeout) -> Inet:recv(Socket, 0, Timeout) end},
    Result = caravan_negotiation:run(Role, Channel, steps(Opened), ?NEGOTIATION_MS),
    case {Result, Opened} of
        {shm, {ok, Port}} ->
            watch(Port, Socket);
        {_, {ok, Port}} ->
            caravan_driver:close(Port),
            Result;
        {_, {error, _}} ->
            Result
    end.

%% @doc A port that carries no link: it shows the counters of a TCP connection to others than this
%% node. `undefined' where it cannot be had; the connection does not depend on it.
-spec counters_port(labels(), caravan_options:options(), Reason :: binary()) ->
          undefined | port().
counters_port(Labels, Options, Reason) ->
    case open(Labels, Options) of
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

%% From now on the TCP connection says only that the other side lives.
-spec watch(port(), inet:socket()) -> {shm, port()} | {error, term()}.
watch(Port, Socket) ->
    case inet:getfd(Socket) of
        {ok, Fd} ->
            case caravan_driver:lifeline(Port, Fd) of
                ok -> {shm, Port};
                Error -> Error
            end;
        Error ->
            Error
    end.

%% Where no port could be opened, the other side is told so in our turn.
-spec steps({ok, port()} | {error, binary()}) -> caravan_negotiation:link().
steps({ok, Port}) ->
    #{listen => fun() -> caravan_driver:listen(Port) end,
      connect => fun(Descriptor) -> caravan_driver:connect(Port, Descriptor) end,
      accept => fun() -> caravan_driver:accept(Port) end};
steps({error, _} = Error) ->
    #{listen => fun() -> Error end, connect => fun(_) -> Error end, accept => fun() -> Error end}.

-spec open(labels(), caravan_options:options()) -> {ok, port()} | {error, binary()}.
open(Labels, #{ring_bytes := RingBytes, busy_bytes := BusyBytes, spin := Spin,
               fragments := Fragments}) ->
    case caravan_driver:open() of
        {ok, Port} ->
            Spins = caravan_options:spins(Spin, erlang:system_info(emu_args)),
            case caravan_driver:configure(
                   Port, Labels#{ring_bytes => RingBytes, busy_bytes => BusyBytes,
                                 spin => Spins, fragments => Fragments}) of
                ok ->
                    {ok, Port};
                Error ->
                    caravan_driver:close(Port),
                    Error
            end;
        Error ->
            Error
    end.

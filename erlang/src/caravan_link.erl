%% @doc The driver's port of a connection: the link over shared memory or RDMA, or a row of counters
%% for TCP.
%%
%% The process of the connection calls these functions, and the port is linked to it: when one of
%% the two ends, the other ends, too.
-module(caravan_link).

-export([agree/6, counters_port/3]).
-export_type([labels/0, link/0]).

-type labels() :: #{me := binary(), peer := binary()}.
%% The names of the two nodes, as `caravan top' shows them.
-type link() :: #{rounds := [shm | rdma, ...], sealed := boolean()}.
%% The transports to try, in this order, and whether RDMA must be encrypted.

%% The time for each transport to try. The timer of the handshake has stopped by then.
-define(ROUND_MS, 5000).

%% @doc Agrees with the other side on one of the transports to try, or on TCP. Returns the port that
%% carries the link (none for TCP), and why each better transport was declined.
-spec agree(caravan_negotiation:role(), caravan_tcp:inet(), inet:socket(), labels(),
            caravan_options:options(), link()) ->
          {shm | rdma, port(), caravan_transport:declined()}
        | {tcp, caravan_transport:declined()} | {error, term()}.
agree(Role, Inet, Socket, Labels, Options, #{rounds := Names, sealed := Sealed}) ->
    Opened = with_lifeline(open(Labels, Options, seal(Sealed, Labels)), Socket),
    %% Each message is small and waits for an answer, so TCP must send it at once.
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
            tcp_result(Result);
        {_, {error, _}} ->
            tcp_result(Result)
    end.

-spec tcp_result({ok, tcp, caravan_transport:declined()} | {error, term()}) ->
          {tcp, caravan_transport:declined()} | {error, term()}.
tcp_result({ok, tcp, Declined}) -> {tcp, Declined};
tcp_result({error, _} = Error) -> Error.

%% @doc Opens a port that carries no link, but shows the counters of a TCP connection to other
%% processes. Returns `undefined' if that fails; the connection does not depend on it.
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

%% Gives the port its lifeline, the TCP connection. This comes before the two sides agree on anything:
%% a failure is then a reason to decline, and does not end a link that the other side believes is up.
-spec with_lifeline({ok, port()} | {error, binary()}, inet:socket()) -> {ok, port()} | {error, binary()}.
with_lifeline({ok, Port}, Socket) ->
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
with_lifeline({error, _} = Error, _) ->
    Error.

%% Returns the secret for an encrypted link: the cookie. Somebody between the two nodes does not know
%% it, and so cannot pretend to be either.
-spec seal(boolean(), labels()) -> none | {cookie, binary()}.
seal(false, _) ->
    none;
seal(true, #{peer := Peer}) ->
    {cookie, atom_to_binary(erlang:get_cookie(binary_to_atom(Peer)))}.

%% Returns the round of a transport. Without a port, each step returns the error, and this side
%% declines with it when its turn comes.
-spec round(shm | rdma, {ok, port()} | {error, binary()}) -> caravan_negotiation:round().
round(Name, Opened) ->
    With = fun(Step, Arguments) ->
                   case Opened of
                       {ok, Port} -> apply(caravan_driver, Step, [Port | Arguments]);
                       {error, _} -> Opened
                   end
           end,
    case Name of
        shm -> {shm, #{listen => fun() -> With(listen, []) end,
                       connect => fun(Descriptor) -> With(connect, [Descriptor]) end,
                       accept => fun() -> With(accept, []) end}};
        rdma -> {rdma, #{offer => fun(LimitMs) -> With(offer, [LimitMs]) end,
                         connect => fun(Offer, LimitMs) -> With(rdma_connect, [Offer, LimitMs]) end,
                         accept => fun(Message, LimitMs) -> With(rdma_accept, [Message, LimitMs]) end,
                         finish => fun(Answer, LimitMs) -> With(rdma_finish, [Answer, LimitMs]) end}}
    end.

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

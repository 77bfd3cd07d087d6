%% @doc The port driver, `priv/caravan_driver.so', as Erlang calls: one function an operation.
%%
%% A port is one link to one peer, or, for a connection that stays on TCP, one row of counters.
%% Any process may call these functions; the one that calls {@link start/1} is sent
%% `{Port, poll}' from then on.
-module(caravan_driver).

-export([load/0, directory/0, open/0, close/1]).
-export([configure/2, listen/1, connect/2, accept/1, lifeline/2, cancel/1]).
-export([start/1, poll/1, tick/1, stat/1, info/1, reason/2, tcp_row/2, tcp_counts/2]).

-define(NAME, "caravan_driver").

-define(CONFIGURE, 1).
-define(LISTEN, 2).
-define(CONNECT, 3).
-define(ACCEPT, 4).
-define(LIFELINE, 5).
-define(START, 6).
-define(POLL, 7).
-define(TICK, 8).
-define(STAT, 9).
-define(INFO, 10).
-define(TCP_ROW, 11).
-define(TCP_COUNTS, 12).
-define(CANCEL, 13).
-define(REASON, 14).

-type result() :: ok | {error, Sentence :: binary()}.
-type configuration() :: #{ring_bytes := pos_integer(), busy_bytes := pos_integer(),
                           spin := off | auto | on, fragments := boolean(),
                           me := binary(), peer := binary()}.
-type counts() :: #{sent_bytes := non_neg_integer(), received_bytes := non_neg_integer(),
                    sent_messages := non_neg_integer(), received_messages := non_neg_integer()}.
-export_type([result/0, configuration/0, counts/0]).

%% @doc Loads the library on behalf of the calling process, which must stay alive until the first
%% port is open. From then on the library stays for as long as the node does.
-spec load() -> result().
load() ->
    Directory = directory(),
    case erl_ddll:load(Directory, ?NAME) of
        ok -> ok;
        %% Loaded before, by an earlier start of the distribution: the driver stays.
        {error, permanent} -> ok;
        {error, Error} ->
            {error, unicode:characters_to_binary(
                      io_lib:format("~ts.so could not be loaded: ~ts",
                                    [filename:join(Directory, ?NAME),
                                     erl_ddll:format_error(Error)]))}
    end.

%% @doc The directory of the library: beside the directory this module was loaded from, so that
%% a bare `-pa erlang/ebin' works; or the priv directory that the code server knows.
-spec directory() -> file:filename().
directory() ->
    case code:which(?MODULE) of
        [_ | _] = Beam -> filename:join(filename:dirname(filename:dirname(Beam)), "priv");
        _ ->
            case code:priv_dir(caravan) of
                {error, bad_name} -> "priv";
                Directory -> Directory
            end
    end.

%% @doc A new port, linked to the caller.
-spec open() -> {ok, port()} | {error, binary()}.
open() ->
    try {ok, open_port({spawn_driver, ?NAME}, [binary])}
    catch error:Reason ->
            {error, unicode:characters_to_binary(
                      io_lib:format("no port of the driver could be opened: ~tp", [Reason]))}
    end.

%% @doc Closes a port; it may be gone already.
-spec close(port()) -> ok.
close(Port) ->
    try port_close(Port) of
        true -> ok
    catch error:badarg -> ok
    end.

%% @doc The first call on every port.
-spec configure(port(), configuration()) -> result().
configure(Port, #{ring_bytes := RingBytes, busy_bytes := BusyBytes, spin := Spin,
                  fragments := Fragments, me := Me, peer := Peer}) ->
    SpinCode = case Spin of off -> 0; auto -> 1; on -> 2 end,
    FragmentsCode = case Fragments of false -> 0; true -> 1 end,
    done(control(Port, ?CONFIGURE,
                 <<RingBytes:64, BusyBytes:64, SpinCode, FragmentsCode,
                   (byte_size(Me)):16, Me/binary, (byte_size(Peer)):16, Peer/binary>>)).

%% @doc On the accepting side: a descriptor for the peer to connect with.
-spec listen(port()) -> {ok, binary()} | {error, binary()}.
listen(Port) ->
    control(Port, ?LISTEN, <<>>).

%% @doc On the initiating side: connects with the peer's descriptor and passes the memory.
-spec connect(port(), iodata()) -> result().
connect(Port, Descriptor) ->
    done(control(Port, ?CONNECT, Descriptor)).

%% @doc On the accepting side, once the peer has said that it connected.
-spec accept(port()) -> result().
accept(Port) ->
    done(control(Port, ?ACCEPT, <<>>)).

%% @doc Gives the driver the TCP connection to watch: its end is the link's end.
-spec lifeline(port(), Fd :: non_neg_integer()) -> result().
lifeline(Port, Fd) ->
    done(control(Port, ?LIFELINE, <<Fd:32>>)).

%% @doc Gives up a link that is not up yet.
-spec cancel(port()) -> result().
cancel(Port) ->
    done(control(Port, ?CANCEL, <<>>)).

%% @doc Makes the caller the poller of the link. Not before `erlang:setnode/3': what the ring
%% holds is for the emulator, which takes it only from a distribution controller.
-spec start(port()) -> result().
start(Port) ->
    done(control(Port, ?START, <<>>)).

%% @doc Takes in what has arrived, a bounded number of bytes: `again' when there may be more,
%% `armed' when the next thing to arrive sends the message `{Port, poll}'.
-spec poll(port()) -> again | armed.
poll(Port) ->
    case port_control(Port, ?POLL, <<>>) of
        <<>> -> armed;
        [] -> armed;
        _ -> again
    end.

%% @doc Writes an empty message.
-spec tick(port()) -> result().
tick(Port) ->
    done(control(Port, ?TICK, <<>>)).

%% @doc Messages received, messages sent, bytes queued, ticks included.
-spec stat(port()) -> {ok, non_neg_integer(), non_neg_integer(), non_neg_integer()}
              | {error, binary()}.
stat(Port) ->
    case control(Port, ?STAT, <<>>) of
        {ok, <<Received:64, Sent:64, Pending:64>>} -> {ok, Received, Sent, Pending};
        {error, _} = Error -> Error
    end.

%% @doc Every counter of the port by its name.
-spec info(port()) -> {ok, #{atom() => non_neg_integer()}} | {error, binary()}.
info(Port) ->
    case control(Port, ?INFO, <<>>) of
        {ok, Pairs} ->
            %% The names are the driver's own, a fixed and small set.
            {ok, maps:from_list([{binary_to_atom(Name, utf8), Value}
                                 || <<Length, Name:Length/binary, Value:64>> <= Pairs])};
        Error ->
            Error
    end.

%% @doc The text beside the transport: why not a better one.
-spec reason(port(), binary()) -> result().
reason(Port, Reason) ->
    done(control(Port, ?REASON, Reason)).

%% @doc Makes the port a row of counters for a TCP connection.
-spec tcp_row(port(), Reason :: binary()) -> result().
tcp_row(Port, Reason) ->
    done(control(Port, ?TCP_ROW, <<(byte_size(Reason)):16, Reason/binary>>)).

%% @doc Fills the row of a TCP connection.
-spec tcp_counts(port(), counts()) -> result().
tcp_counts(Port, #{sent_bytes := SentBytes, received_bytes := ReceivedBytes,
                   sent_messages := Sent, received_messages := Received}) ->
    done(control(Port, ?TCP_COUNTS, <<SentBytes:64, ReceivedBytes:64, Sent:64, Received:64>>)).

%% ---------------------------------------------------------------------------------------------

-spec control(port(), 1..14, iodata()) -> {ok, binary()} | {error, binary()}.
control(Port, Operation, Data) ->
    try iolist_to_binary(port_control(Port, Operation, Data)) of
        <<0, Payload/binary>> -> {ok, Payload};
        <<1, Sentence/binary>> -> {error, Sentence};
        _ -> {error, <<"the driver gave an answer of another version">>}
    catch error:badarg ->
            {error, <<"the link is closed">>}
    end.

-spec done({ok, binary()} | {error, binary()}) -> result().
done({ok, _}) -> ok;
done(Error) -> Error.

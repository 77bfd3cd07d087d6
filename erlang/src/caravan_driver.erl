%% @doc The port driver, `priv/caravan_driver.so', as Erlang calls: one function an operation.
%%
%% A port is one link to one peer, or, for a connection that stays on TCP, one row of counters.
%% Any process may call these functions; the one that calls {@link start/1} is sent
%% `{Port, poll}' from then on.
-module(caravan_driver).

-export([load/0, directory/0, open/0, close/1]).
-export([configure/2, listen/1, connect/2, accept/1, lifeline/2, cancel/1]).
-export([offer/2, rdma_connect/3, rdma_accept/3, rdma_finish/3, device/1]).
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
-define(OFFER, 15).
-define(RDMA_CONNECT, 16).
-define(RDMA_ACCEPT, 17).
-define(RDMA_FINISH, 18).
-define(DEVICE, 19).

%% What a job gets above its own limit, to be started and to answer.
-define(JOB_MARGIN_MS, 500).

-type result() :: ok | {error, Sentence :: binary()}.
-type configuration() :: #{ring_bytes := pos_integer(), busy_bytes := pos_integer(),
                           spin := off | auto | on, fragments := boolean(),
                           me := binary(), peer := binary(),
                           seal := none | {cookie, binary()}}.
%% `seal': what an RDMA link is encrypted with, if it is to be.
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
                  fragments := Fragments, me := Me, peer := Peer, seal := Seal}) ->
    SpinCode = case Spin of off -> 0; auto -> 1; on -> 2 end,
    FragmentsCode = case Fragments of false -> 0; true -> 1 end,
    {SealCode, Cookie} = case Seal of none -> {0, <<>>}; {cookie, Bytes} -> {1, Bytes} end,
    done(control(Port, ?CONFIGURE,
                 <<RingBytes:64, BusyBytes:64, SpinCode, FragmentsCode,
                   (byte_size(Me)):16, Me/binary, (byte_size(Peer)):16, Peer/binary,
                   SealCode, (byte_size(Cookie)):16, Cookie/binary>>)).

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

%% @doc On the accepting side: this machine's ports, and what else the peer must know to make its
%% half of an RDMA link.
-spec offer(port(), LimitMs :: pos_integer()) -> {ok, binary()} | {error, binary()}.
offer(Port, LimitMs) ->
    job(Port, ?OFFER, <<>>, LimitMs).

%% @doc On the initiating side, with the peer's offer: makes this half; what it returns is for the
%% peer.
-spec rdma_connect(port(), binary(), LimitMs :: pos_integer()) ->
          {ok, binary()} | {error, binary()}.
rdma_connect(Port, Offer, LimitMs) ->
    job(Port, ?RDMA_CONNECT, Offer, LimitMs).

%% @doc On the accepting side, with what the initiating side's `rdma_connect/3' returned.
-spec rdma_accept(port(), binary(), LimitMs :: pos_integer()) ->
          {ok, binary()} | {error, binary()}.
rdma_accept(Port, Message, LimitMs) ->
    job(Port, ?RDMA_ACCEPT, Message, LimitMs).

%% @doc On both sides: connects the two halves. The initiating side has the answer of the peer's
%% `rdma_accept/3', the accepting side nothing.
-spec rdma_finish(port(), binary(), LimitMs :: pos_integer()) -> result().
rdma_finish(Port, Answer, LimitMs) ->
    done(job(Port, ?RDMA_FINISH, <<LimitMs:32, Answer/binary>>, LimitMs)).

%% @doc Which device carries the link; empty where none does.
-spec device(port()) -> binary().
device(Port) ->
    case control(Port, ?DEVICE, <<>>) of
        {ok, Device} -> Device;
        {error, _} -> <<>>
    end.

%% @doc Gives the driver the TCP connection to watch: its end is the link's end. Before the first
%% operation that makes a link.
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

%% An operation that waits for a device or for the peer, on a thread of the emulator's that is
%% there for such work. Its result comes as a message; a port has one such operation at a time.
-spec job(port(), 15..18, binary(), pos_integer()) -> {ok, binary()} | {error, binary()}.
job(Port, Operation, Data, LimitMs) ->
    Monitor = erlang:monitor(port, Port),
    Result = case control(Port, Operation, Data) of
                 {ok, _} -> job_result(Port, Monitor, LimitMs + ?JOB_MARGIN_MS);
                 Error -> Error
             end,
    erlang:demonitor(Monitor, [flush]),
    Result.

-spec job_result(port(), reference(), pos_integer()) -> {ok, binary()} | {error, binary()}.
job_result(Port, Monitor, LimitMs) ->
    receive
        {Port, done, Reply} ->
            result(Reply);
        {'DOWN', Monitor, port, _, _} ->
            {error, <<"the link is closed">>}
    after LimitMs ->
            %% After this nothing more comes of it; before it, it may just have come.
            _ = cancel(Port),
            receive {Port, done, _} -> ok after 0 -> ok end,
            {error, unicode:characters_to_binary(
                      io_lib:format("the RDMA device gave no answer for ~b ms", [LimitMs]))}
    end.

-spec control(port(), 1..19, iodata()) -> {ok, binary()} | {error, binary()}.
control(Port, Operation, Data) ->
    try result(iolist_to_binary(port_control(Port, Operation, Data)))
    catch error:badarg ->
            {error, <<"the link is closed">>}
    end.

-spec result(binary()) -> {ok, binary()} | {error, binary()}.
result(<<0, Payload/binary>>) -> {ok, Payload};
result(<<1, Sentence/binary>>) -> {error, Sentence};
result(_) -> {error, <<"the driver gave an answer of another version">>}.

-spec done({ok, binary()} | {error, binary()}) -> result().
done({ok, _}) -> ok;
done(Error) -> Error.

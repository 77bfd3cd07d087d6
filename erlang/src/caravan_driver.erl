%% @doc The port driver, `priv/caravan_driver.so', as Erlang functions: one for each operation.
%%
%% A port is one link to one peer or, for a connection that uses TCP, one row of counters. Any
%% process may call these functions. The driver sends `{Port, poll}' to the process that called
%% {@link start/1}.
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

%% The time that a job has beyond its own limit, to start and to answer.
-define(JOB_MARGIN_MS, 500).

-type result() :: ok | {error, Sentence :: binary()}.
-type configuration() :: #{ring_bytes := pos_integer(), busy_bytes := pos_integer(),
                           spin := off | auto | on, fragments := boolean(),
                           me := binary(), peer := binary(),
                           seal := none | {cookie, binary()}}.
%% `seal': the secret behind the keys of an encrypted RDMA link, or `none'.
-type counts() :: #{sent_bytes := non_neg_integer(), received_bytes := non_neg_integer(),
                    sent_messages := non_neg_integer(), received_messages := non_neg_integer()}.
-export_type([result/0, configuration/0, counts/0]).

%% @doc Loads the library on behalf of the calling process, which must stay alive until the first
%% port is open. After that, the library stays loaded as long as the node runs.
-spec load() -> result().
load() ->
    Directory = directory(),
    case erl_ddll:load(Directory, ?NAME) of
        ok -> ok;
        %% An earlier start of the distribution has loaded it, and the driver stays.
        {error, permanent} -> ok;
        {error, Error} ->
            {error, unicode:characters_to_binary(
                      io_lib:format("~ts.so could not be loaded: ~ts",
                                    [filename:join(Directory, ?NAME),
                                     erl_ddll:format_error(Error)]))}
    end.

%% @doc Returns the directory of the library: `priv' beside the directory from which this module
%% was loaded, so that a bare `-pa erlang/ebin' works, or else the one that the code server knows.
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

%% @doc Opens a port, linked to the caller.
-spec open() -> {ok, port()} | {error, binary()}.
open() ->
    try {ok, open_port({spawn_driver, ?NAME}, [binary])}
    catch error:Reason ->
            {error, unicode:characters_to_binary(
                      io_lib:format("the driver's port could not be opened: ~tp", [Reason]))}
    end.

%% @doc Closes a port, which may be closed already.
-spec close(port()) -> ok.
close(Port) ->
    try port_close(Port) of
        true -> ok
    catch error:badarg -> ok
    end.

%% @doc Configures a port. This is the first call on every port.
-spec configure(port(), configuration()) -> result().
configure(Port, #{ring_bytes := RingBytes, busy_bytes := BusyBytes, spin := Spin,
                  fragments := Fragments, me := Me, peer := Peer, seal := Seal}) ->
    SpinCode = case Spin of off -> 0; auto -> 1; on -> 2 end,
    FragmentsCode = case Fragments of false -> 0; true -> 1 end,
    {SealCode, Cookie} = case Seal of none -> {0, <<>>}; {cookie, Bytes} -> {1, Bytes} end,
    without_payload(control(Port, ?CONFIGURE,
                 <<RingBytes:64, BusyBytes:64, SpinCode, FragmentsCode,
                   (byte_size(Me)):16, Me/binary, (byte_size(Peer)):16, Peer/binary,
                   SealCode, (byte_size(Cookie)):16, Cookie/binary>>)).

%% @doc Accepting side: listens, and returns the descriptor with which the peer connects.
-spec listen(port()) -> {ok, binary()} | {error, binary()}.
listen(Port) ->
    control(Port, ?LISTEN, <<>>).

%% @doc Initiating side: connects with the peer's descriptor and hands over the memory.
-spec connect(port(), iodata()) -> result().
connect(Port, Descriptor) ->
    without_payload(control(Port, ?CONNECT, Descriptor)).

%% @doc Accepting side: takes the memory, after the peer has reported that it connected.
-spec accept(port()) -> result().
accept(Port) ->
    without_payload(control(Port, ?ACCEPT, <<>>)).

%% @doc Accepting side: returns the offer, which is this host's RDMA ports and what else the peer
%% needs to make its half of an RDMA link.
-spec offer(port(), LimitMs :: pos_integer()) -> {ok, binary()} | {error, binary()}.
offer(Port, LimitMs) ->
    job(Port, ?OFFER, <<>>, LimitMs).

%% @doc Initiating side: makes its half of the link from the peer's offer. Returns a message for
%% the peer.
-spec rdma_connect(port(), binary(), LimitMs :: pos_integer()) ->
          {ok, binary()} | {error, binary()}.
rdma_connect(Port, Offer, LimitMs) ->
    job(Port, ?RDMA_CONNECT, Offer, LimitMs).

%% @doc Accepting side: makes its half of the link from the message that the peer's
%% `rdma_connect/3' returned. Returns an answer for the peer.
-spec rdma_accept(port(), binary(), LimitMs :: pos_integer()) ->
          {ok, binary()} | {error, binary()}.
rdma_accept(Port, Message, LimitMs) ->
    job(Port, ?RDMA_ACCEPT, Message, LimitMs).

%% @doc Both sides: connects the two halves. The initiating side gives the answer of the peer's
%% `rdma_accept/3', the accepting side an empty binary.
-spec rdma_finish(port(), binary(), LimitMs :: pos_integer()) -> result().
rdma_finish(Port, Answer, LimitMs) ->
    without_payload(job(Port, ?RDMA_FINISH, <<LimitMs:32, Answer/binary>>, LimitMs)).

%% @doc Returns the RDMA device and both addresses of the link, or an empty binary for other links.
-spec device(port()) -> binary().
device(Port) ->
    case control(Port, ?DEVICE, <<>>) of
        {ok, Device} -> Device;
        {error, _} -> <<>>
    end.

%% @doc Gives the driver the TCP connection to watch: when it ends, the link ends. Call this before
%% the first operation that makes a link.
-spec lifeline(port(), Fd :: non_neg_integer()) -> result().
lifeline(Port, Fd) ->
    without_payload(control(Port, ?LIFELINE, <<Fd:32>>)).

%% @doc Cancels a link that is not up yet.
-spec cancel(port()) -> result().
cancel(Port) ->
    without_payload(control(Port, ?CANCEL, <<>>)).

%% @doc Makes the caller the poller of the link. Call this after `erlang:setnode/3': the ring's
%% contents are for the emulator, which accepts them only from a distribution controller.
-spec start(port()) -> result().
start(Port) ->
    without_payload(control(Port, ?START, <<>>)).

%% @doc Receives a limited number of bytes. Returns `again' if more may have arrived, and `armed' if
%% the driver sends `{Port, poll}' when more arrive.
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
    without_payload(control(Port, ?TICK, <<>>)).

%% @doc Returns the messages received, the messages sent and the bytes queued, ticks included.
-spec stat(port()) -> {ok, non_neg_integer(), non_neg_integer(), non_neg_integer()}
              | {error, binary()}.
stat(Port) ->
    case control(Port, ?STAT, <<>>) of
        {ok, <<Received:64, Sent:64, Pending:64>>} -> {ok, Received, Sent, Pending};
        {error, _} = Error -> Error
    end.

%% @doc Returns every counter of the port by its name.
-spec info(port()) -> {ok, #{atom() => non_neg_integer()}} | {error, binary()}.
info(Port) ->
    case control(Port, ?INFO, <<>>) of
        {ok, Pairs} ->
            %% The names come from the driver, a small and fixed set of atoms.
            {ok, maps:from_list([{binary_to_atom(Name, utf8), Value}
                                 || <<Length, Name:Length/binary, Value:64>> <= Pairs])};
        Error ->
            Error
    end.

%% @doc Sets the reason that other processes see: why the link does not use a better transport.
-spec reason(port(), binary()) -> result().
reason(Port, Reason) ->
    without_payload(control(Port, ?REASON, Reason)).

%% @doc Makes the port a row of counters for a TCP connection.
-spec tcp_row(port(), Reason :: binary()) -> result().
tcp_row(Port, Reason) ->
    without_payload(control(Port, ?TCP_ROW, <<(byte_size(Reason)):16, Reason/binary>>)).

%% @doc Writes the counters of a TCP connection into its row.
-spec tcp_counts(port(), counts()) -> result().
tcp_counts(Port, #{sent_bytes := SentBytes, received_bytes := ReceivedBytes,
                   sent_messages := Sent, received_messages := Received}) ->
    without_payload(control(Port, ?TCP_COUNTS, <<SentBytes:64, ReceivedBytes:64, Sent:64, Received:64>>)).

%% ---------------------------------------------------------------------------------------------

%% Runs an operation that waits for a device or for the peer, on one of the emulator's threads for
%% such work. Its result comes as a message. A port runs one such operation at a time.
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
            %% No result comes after the cancel, but one may have come just before it.
            _ = cancel(Port),
            receive {Port, done, _} -> ok after 0 -> ok end,
            {error, unicode:characters_to_binary(
                      io_lib:format("the RDMA device did not answer within ~b ms", [LimitMs]))}
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
result(_) -> {error, <<"the driver and caravan_driver.beam are of different versions">>}.

-spec without_payload({ok, binary()} | {error, binary()}) -> result().
without_payload({ok, _}) -> ok;
without_payload(Error) -> Error.

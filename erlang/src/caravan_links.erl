%% @doc The links of this node: one row for each, which `caravan_dist:info/0,1' reads.
%%
%% A connection's process writes its row just before the node is up; this process removes the row
%% when that process ends, for whatever reason. It also loads the driver library and keeps it
%% loaded. While there are TCP connections, it copies their counters once a second to their ports
%% of the driver, where `caravan top' reads them.
%%
%% {@link caravan_dist:childspecs/0} has it started beside `net_kernel', before the first connection.
-module(caravan_links).
-behaviour(gen_server).

-export([start_link/0, driver/0, up/1, info/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([row/0]).

-type row() :: #{node := node(), transport := caravan_transport:transport(),
                 reason := binary(), device := binary(), socket := inet:socket(), port := undefined | port(),
                 ring_bytes := non_neg_integer()}.

-define(TABLE, ?MODULE).
-define(COPY_INTERVAL_MS, 1000).

-record(state, {connections = #{} :: #{reference() => pid()},
                timer = none :: none | reference()}).

%% @doc Starts the process, which owns the table.
-spec start_link() -> {ok, pid()} | ignore | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Returns `ok' if the driver library is loaded, or why it is not.
-spec driver() -> caravan_transport:driver().
driver() ->
    try ets:lookup_element(?TABLE, driver, 2)
    catch error:badarg -> {error, <<"the distribution was not started with -proto_dist caravan">>}
    end.

%% @doc Adds a row. Called by a connection's process just before its link is up.
-spec up(row()) -> ok.
up(Row) ->
    %% The caller writes the row itself, so that it is there when the node is up.
    true = ets:insert(?TABLE, {self(), erlang:unique_integer([monotonic]), Row}),
    gen_server:cast(?MODULE, {watch, self()}).

%% @doc Returns the state of every link. While a new connection to a node replaces an old one, both
%% have a row; the newer one counts.
-spec info() -> [{node(), map()}].
info() ->
    Rows = try ets:select(?TABLE, [{{'_', '$1', '$2'}, [], [{{'$1', '$2'}}]}])
           catch error:badarg -> []
           end,
    Newest = maps:from_list([{Node, Row} || {_, #{node := Node} = Row} <- lists:sort(Rows)]),
    [{Node, Info} || {Node, Row} <- maps:to_list(Newest), Info <- row_info(Row)].

%% ---------------------------------------------------------------------------------------------

%% @private
-spec init([]) -> {ok, #state{}}.
init([]) ->
    _ = ets:new(?TABLE, [named_table, public, {read_concurrency, true}]),
    true = ets:insert(?TABLE, {driver, caravan_driver:load()}),
    {ok, #state{}}.

%% @private
-spec handle_call(term(), term(), #state{}) -> {reply, ok, #state{}}.
handle_call(_, _, State) ->
    {reply, ok, State}.

%% @private
-spec handle_cast({watch, pid()}, #state{}) -> {noreply, #state{}}.
handle_cast({watch, Pid}, #state{connections = Connections} = State) ->
    Monitor = erlang:monitor(process, Pid),
    {noreply, copy_soon(State#state{connections = Connections#{Monitor => Pid}})}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({'DOWN', Monitor, process, Pid, _}, #state{connections = Connections} = State) ->
    true = ets:delete(?TABLE, Pid),
    {noreply, State#state{connections = maps:remove(Monitor, Connections)}};
handle_info({timeout, Timer, copy}, #state{timer = Timer} = State) ->
    lists:foreach(fun copy/1, tcp_rows()),
    {noreply, copy_soon(State#state{timer = none})};
handle_info(_, State) ->
    {noreply, State}.

%% ---------------------------------------------------------------------------------------------

-spec tcp_rows() -> [row()].
tcp_rows() ->
    [Row || #{transport := tcp, port := Port} = Row <-
                ets:select(?TABLE, [{{'_', '_', '$1'}, [], ['$1']}]),
            is_port(Port)].

-spec copy_soon(#state{}) -> #state{}.
copy_soon(#state{timer = none} = State) ->
    case tcp_rows() of
        [] -> State;
        _ -> State#state{timer = erlang:start_timer(?COPY_INTERVAL_MS, self(), copy)}
    end;
copy_soon(State) ->
    State.

-spec copy(row()) -> ok.
copy(#{socket := Socket, port := Port}) ->
    case tcp_counts(Socket) of
        {ok, Counts, _} ->
            _ = caravan_driver:tcp_counts(Port, Counts),
            ok;
        error ->
            ok
    end.

-spec tcp_counts(inet:socket()) -> {ok, caravan_driver:counts(), non_neg_integer()} | error.
tcp_counts(Socket) ->
    case inet:getstat(Socket, [send_oct, recv_oct, send_cnt, recv_cnt, send_pend]) of
        {ok, Stat} ->
            #{send_oct := SentBytes, recv_oct := ReceivedBytes, send_cnt := Sent,
              recv_cnt := Received, send_pend := Pending} = maps:from_list(Stat),
            {ok, #{sent_bytes => SentBytes, received_bytes => ReceivedBytes,
                   sent_messages => Sent, received_messages => Received}, Pending};
        {error, _} ->
            error
    end.

%% Returns one element, or none if the link has just ended.
-spec row_info(row()) -> [map()].
row_info(#{transport := tcp, reason := Reason, socket := Socket}) ->
    case tcp_counts(Socket) of
        {ok, Counts, Pending} ->
            [maps:merge(zeros(), Counts#{transport => tcp, reason => Reason,
                                           queued_bytes => Pending})];
        error ->
            []
    end;
row_info(#{transport := Transport, reason := Reason, device := Device, port := Port,
           ring_bytes := RingBytes}) ->
    case caravan_driver:info(Port) of
        {ok, Counts} ->
            Known = (zeros())#{ring_bytes := RingBytes},
            [maps:merge(Known, Counts#{transport => Transport, reason => Reason,
                                       device => Device})];
        {error, _} ->
            []
    end.

%% Returns the keys that every link has, whatever its transport.
-spec zeros() -> map().
zeros() ->
    Numbers = maps:from_keys([sent_bytes, received_bytes, sent_messages, received_messages,
                              ring_bytes, outbound_used_bytes, inbound_used_bytes, queued_bytes,
                              wakeups_sent, wakeups_received, polls, spins, spin_hits, busy_ns,
                              busy_count, reassembled_messages, completions, doorbells,
                              registered_bytes], 0),
    Numbers#{device => <<>>}.

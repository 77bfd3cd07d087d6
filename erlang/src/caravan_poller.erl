%% @doc The poller: the process that receives what arrives on one link.
%%
%% A driver callback must not wait or spin: it would hold the scheduler on which the reply must be
%% computed. So a process calls the driver, and yields between two calls. While the link is busy, or
%% was a moment ago, the process is runnable; when the driver has armed the link, the process waits
%% in `receive'.
-module(caravan_poller).

-include_lib("kernel/include/logger.hrl").

-export([start_link/3, init/4]).

%% @doc Starts the poller of a link, linked to the connection's process. When the link ends, the
%% poller sends that process the message that a TCP socket would send.
-spec start_link(port(), inet:socket(), Peer :: binary()) -> pid().
start_link(Port, Socket, Peer) ->
    proc_lib:spawn_link(?MODULE, init, [self(), Port, Socket, Peer]).

%% @private
-spec init(pid(), port(), inet:socket(), binary()) -> ok.
init(Connection, Port, Socket, Peer) ->
    %% When the port ends, the connection's process ends. The driver's message about the reason is
    %% then in our mailbox, and the poller must log it before it ends, too.
    process_flag(trap_exit, true),
    Monitor = erlang:monitor(port, Port),
    case caravan_driver:start(Port) of
        ok ->
            closed = loop(Connection, Port, Monitor);
        {error, <<"the link is closed">>} ->
            ok;
        {error, Why} ->
            ?LOG_ERROR("caravan: no link to ~ts: ~ts", [Peer, Why])
    end,
    receive
        {Port, error, Sentence} -> ?LOG_ERROR("caravan: link to ~ts closed: ~ts", [Peer, Sentence])
    after 0 -> ok
    end,
    Connection ! {tcp_closed, Socket},
    ok.

-spec loop(pid(), port(), reference()) -> closed.
loop(Connection, Port, Monitor) ->
    try caravan_driver:poll(Port) of
        again ->
            erlang:yield(),
            loop(Connection, Port, Monitor);
        armed ->
            receive
                {Port, poll} -> loop(Connection, Port, Monitor);
                {'DOWN', Monitor, port, _, _} -> closed;
                {'EXIT', Connection, _} -> closed
            end
    catch error:badarg ->
            closed
    end.

%% @doc The process that takes in what arrives on one link.
%%
%% A driver callback must not wait or spin: it would hold the scheduler on which the reply is to
%% be computed. So the waiting is done by a process that calls the driver and yields in between.
%% While the link is busy, or was a moment ago, it is simply runnable; when the driver has armed
%% the link, it sleeps in `receive'.
-module(caravan_poller).

-export([start_link/2, init/3]).

%% @doc Starts the poller of a link, linked to the connection's process, which it tells of the
%% link's end as a TCP socket would.
-spec start_link(port(), inet:socket()) -> pid().
start_link(Port, Socket) ->
    proc_lib:spawn_link(?MODULE, init, [self(), Port, Socket]).

%% @private
-spec init(pid(), port(), inet:socket()) -> ok.
init(Connection, Port, Socket) ->
    Monitor = erlang:monitor(port, Port),
    case caravan_driver:start(Port) of
        ok -> loop(Port, Monitor);
        {error, _} -> ok
    end,
    Connection ! {tcp_closed, Socket},
    ok.

-spec loop(port(), reference()) -> closed.
loop(Port, Monitor) ->
    try caravan_driver:poll(Port) of
        again ->
            erlang:yield(),
            loop(Port, Monitor);
        armed ->
            receive
                {Port, poll} -> loop(Port, Monitor);
                {'DOWN', Monitor, port, _, _} -> closed
            end
    catch error:badarg ->
            closed
    end.

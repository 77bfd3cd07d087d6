%% The publisher of tests/apps/rabbitmq. It publishes numbered messages with publisher confirms, and
%% stores the number of each confirmed message. At the end, all of these must be in the queue.
%%
%%     erl -noshell -run confirmed_publisher main mirrored|quorum MESSAGES PORT...
%%
%% It reads commands from standard input and answers on standard output:
%%     (start)         -> prints `declared'
%%     publish PORT    -> publishes to that node until `killed'; prints `confirmed N' after MESSAGES
%%     killed          -> publishes MESSAGES more, prints `confirmed N', and pauses
%%     verify          -> prints `verified published=N confirmed=N read=N again=N lost=N damaged=N'
-module(confirmed_publisher).

-include_lib("amqp_client/include/amqp_client.hrl").

-export([main/1]).

-define(QUEUE, <<"orders">>).
%% The most unconfirmed messages, so that the broker sets the pace.
-define(WINDOW, 500).
-define(CONFIRM_LIMIT, 120_000).

-record(state, {kind :: string(),
                step :: pos_integer(),
                ports :: [inet:port_number()],
                channel :: pid() | undefined,
                connection :: pid() | undefined,
                next = 1 :: pos_integer(),
                %% delivery tag on this channel -> our number
                unconfirmed = #{} :: #{pos_integer() => pos_integer()},
                confirmed = #{} :: #{pos_integer() => true}}).

main([Kind, Step | Ports]) ->
    logger:set_primary_config(level, critical),
    Main = self(),
    State = #state{kind = Kind, step = list_to_integer(Step), ports = [list_to_integer(P) || P <- Ports]},
    try
        {ok, _} = application:ensure_all_started(amqp_client),
        declare(State),
        spawn_link(fun() -> commands(Main) end),
        idle(State)
    catch
        Class:Reason:Stack ->
            io:format("error ~0p~n", [{Class, Reason, Stack}]),
            halt(1)
    end.

commands(Main) ->
    case io:get_line("") of
        eof -> halt(0);
        Line -> Main ! {command, string:lexemes(string:trim(Line), " ")}, commands(Main)
    end.

idle(State) ->
    receive
        {command, ["publish", Port]} ->
            Ready = connected(list_to_integer(Port), closed(State)),
            Reached = publish_until(confirmed_count(Ready) + Ready#state.step, Ready),
            io:format("confirmed ~w messages~n", [confirmed_count(Reached)]),
            publish_until_killed(Reached);
        {command, ["verify"]} ->
            verify(State)
    end.

%% Publishes while a node is killed. The answer comes MESSAGES confirms after the kill.
publish_until_killed(State) ->
    receive
        {command, ["killed"]} ->
            Reached = publish_until(confirmed_count(State) + State#state.step, State),
            Settled = settled(Reached),
            io:format("confirmed ~w messages~n", [confirmed_count(Settled)]),
            idle(Settled)
    after 0 ->
            publish_until_killed(publish_until(confirmed_count(State) + 1, State))
    end.

declare(State) ->
    #state{channel = Channel} = Ready = connected(hd(State#state.ports), State),
    Arguments = case State#state.kind of
                    "quorum" -> [{<<"x-queue-type">>, longstr, <<"quorum">>}];
                    "mirrored" -> []
                end,
    #'queue.declare_ok'{} =
        amqp_channel:call(Channel, #'queue.declare'{queue = ?QUEUE, durable = true, arguments = Arguments}),
    io:format("declared~n"),
    closed(Ready).

connected(Port, State) ->
    {ok, Connection} = amqp_connection:start(#amqp_params_network{host = "127.0.0.1", port = Port}),
    {ok, Channel} = amqp_connection:open_channel(Connection),
    #'confirm.select_ok'{} = amqp_channel:call(Channel, #'confirm.select'{}),
    ok = amqp_channel:register_confirm_handler(Channel, self()),
    State#state{connection = Connection, channel = Channel}.

closed(#state{connection = undefined} = State) ->
    State;
closed(#state{connection = Connection} = State) ->
    _ = amqp_connection:close(Connection),
    State#state{connection = undefined, channel = undefined, unconfirmed = #{}}.

confirmed_count(#state{confirmed = Confirmed}) ->
    map_size(Confirmed).

publish_until(Goal, #state{confirmed = Confirmed} = State) when map_size(Confirmed) >= Goal ->
    State;
publish_until(Goal, #state{unconfirmed = Unconfirmed} = State) when map_size(Unconfirmed) >= ?WINDOW ->
    publish_until(Goal, await_confirm(?CONFIRM_LIMIT, State));
publish_until(Goal, #state{channel = Channel, next = Number} = State) ->
    Tag = amqp_channel:next_publish_seqno(Channel),
    ok = amqp_channel:cast(Channel, #'basic.publish'{routing_key = ?QUEUE},
                           #amqp_msg{props = #'P_basic'{delivery_mode = 2}, payload = payload(Number)}),
    Unconfirmed = (State#state.unconfirmed)#{Tag => Number},
    publish_until(Goal, await_confirm(0, State#state{next = Number + 1, unconfirmed = Unconfirmed})).

%% Waits until every message on its way is confirmed or refused.
settled(#state{unconfirmed = Unconfirmed} = State) when map_size(Unconfirmed) =:= 0 ->
    State;
settled(State) ->
    settled(await_confirm(?CONFIRM_LIMIT, State)).

await_confirm(Limit, State) ->
    receive
        #'basic.ack'{delivery_tag = Tag, multiple = Multiple} ->
            {Numbers, Unconfirmed} = split(Tag, Multiple, State),
            Confirmed = lists:foldl(fun(N, Acc) -> Acc#{N => true} end, State#state.confirmed, Numbers),
            State#state{confirmed = Confirmed, unconfirmed = Unconfirmed};
        #'basic.nack'{delivery_tag = Tag, multiple = Multiple} ->
            %% The broker refused it, so it may be missing from the queue.
            {_, Unconfirmed} = split(Tag, Multiple, State),
            State#state{unconfirmed = Unconfirmed}
    after Limit ->
            Limit =:= 0 orelse exit({no_confirm_within_ms, Limit}),
            State
    end.

split(Tag, false, #state{unconfirmed = Unconfirmed}) ->
    {Number, Rest} = maps:take(Tag, Unconfirmed),
    {[Number], Rest};
split(Tag, true, #state{unconfirmed = Unconfirmed}) ->
    {maps:values(maps:filter(fun(T, _) -> T =< Tag end, Unconfirmed)),
     maps:filter(fun(T, _) -> T > Tag end, Unconfirmed)}.

%% Makes a small payload, and for every 50th message one larger than the smallest ring, which the
%% carrier sends in parts.
payload(Number) ->
    Bytes = case Number rem 50 of
                0 -> 128 * 1024;
                _ -> 100 + Number rem 900
            end,
    Fill = binary:copy(<<Number:32>>, Bytes div 4),
    <<Number:64, (erlang:crc32(Fill)):32, Fill/binary>>.

verify(State) ->
    #state{channel = Channel} = connected(hd(State#state.ports), closed(State)),
    #'basic.qos_ok'{} = amqp_channel:call(Channel, #'basic.qos'{prefetch_count = 1000}),
    #'queue.declare_ok'{message_count = Count} =
        amqp_channel:call(Channel, #'queue.declare'{queue = ?QUEUE, passive = true}),
    #'basic.consume_ok'{} = amqp_channel:subscribe(Channel, #'basic.consume'{queue = ?QUEUE}, self()),
    receive #'basic.consume_ok'{} -> ok end,
    {Read, Again, Damaged} = read_all(Channel, Count, #{}, 0, 0),
    Lost = [N || N <- maps:keys(State#state.confirmed), not maps:is_key(N, Read)],
    io:format("verified published=~w confirmed=~w read=~w again=~w lost=~w damaged=~w~n",
              [State#state.next - 1, confirmed_count(State), map_size(Read), Again, length(Lost), Damaged]),
    halt(0).

%% Reads as many messages as the queue holds. Nobody else uses the queue.
read_all(_Channel, 0, Read, Again, Damaged) ->
    {Read, Again, Damaged};
read_all(Channel, Left, Read, Again, Damaged) ->
    receive
        {#'basic.deliver'{delivery_tag = Tag}, #amqp_msg{payload = Payload}} ->
            ok = amqp_channel:cast(Channel, #'basic.ack'{delivery_tag = Tag}),
            case Payload of
                <<Number:64, Sum:32, Fill/binary>> ->
                    Whole = erlang:crc32(Fill) =:= Sum andalso Payload =:= payload(Number),
                    Seen = case maps:is_key(Number, Read) of true -> 1; false -> 0 end,
                    read_all(Channel, Left - 1, Read#{Number => true}, Again + Seen,
                             case Whole of true -> Damaged; false -> Damaged + 1 end);
                _ ->
                    read_all(Channel, Left - 1, Read, Again, Damaged + 1)
            end
    after 60_000 ->
            exit({queue_stopped_with_messages_left, Left})
    end.

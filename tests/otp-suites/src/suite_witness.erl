%% An event handler for Common Test. It writes the outcome of each case to a file when the case ends,
%% so that nothing is lost if the node dies. It also writes which transport carried each link of the
%% test node.
%%
%%     {tc, Suite, Group, Case, passed | failed | skipped, Reason, Milliseconds}.
%%     {link, Case, Node, Transport, Why}.  Transport: shm | tcp (over Caravan), inet (without it), gone
-module(suite_witness).
-behaviour(gen_event).

-include_lib("common_test/include/ct_event.hrl").

-export([init/1, handle_event/2, handle_call/2, handle_info/2, terminate/2]).

-record(state, {file :: string(),
                groups = [] :: [atom()],
                started = #{} :: #{term() => integer()},
                watcher :: pid()}).

init([File]) ->
    Witness = self(),
    {ok, #state{file = File, watcher = spawn_link(fun() -> watch(Witness, File, none) end)}}.

handle_event(#event{name = tc_start, data = {_Suite, {init_per_group, Group, _}}}, State) ->
    {ok, State#state{groups = [Group | State#state.groups]}};
handle_event(#event{name = tc_done, data = {_Suite, {end_per_group, _Group, _}, _}}, State) ->
    {ok, State#state{groups = popped(State#state.groups)}};
handle_event(#event{name = tc_done, data = {Suite, {init_per_group, Group, _}, Result}}, State) ->
    config_outcome(Suite, Group, init_per_group, Result, State),
    {ok, State};
handle_event(#event{name = tc_start, data = {_Suite, Case}}, State) when is_atom(Case) ->
    State#state.watcher ! {during, Case},
    Started = (State#state.started)#{Case => erlang:monotonic_time(millisecond)},
    {ok, State#state{started = Started}};
handle_event(#event{name = tc_done, data = {Suite, Case, Result}}, State) when is_atom(Case) ->
    case lists:member(Case, [init_per_suite, end_per_suite]) of
        true -> config_outcome(Suite, none, Case, Result, State);
        false -> outcome(Suite, group(State), Case, Result, State)
    end,
    {ok, State#state{started = maps:remove(Case, State#state.started)}};
handle_event(#event{name = Skip, data = {Suite, Case, Reason}}, State)
  when Skip =:= tc_auto_skip; Skip =:= tc_user_skip ->
    {Name, Group} = case Case of
                        {N, G} -> {N, G};
                        N -> {N, none}
                    end,
    outcome(Suite, Group, Name, {skipped, Reason}, State),
    {ok, State};
handle_event(_Event, State) ->
    {ok, State}.

handle_call(_Request, State) -> {ok, ok, State}.
handle_info(_Message, State) -> {ok, State}.
terminate(_Reason, _State) -> ok.

group(#state{groups = []}) -> none;
group(#state{groups = [Group | _]}) -> Group.

popped([]) -> [];
popped([_ | Groups]) -> Groups.

%% Writes the outcome of a configuration function only if it failed: its cases are then skipped.
config_outcome(Suite, Group, Function, {failed, _} = Result, State) ->
    outcome(Suite, Group, Function, Result, State);
config_outcome(_Suite, _Group, _Function, _Result, _State) ->
    ok.

outcome(Suite, Group, Case, Result, #state{file = File, started = Started}) ->
    {Verdict, Reason} = case Result of
                            ok -> {passed, ""};
                            %% Common Test counts these as passed, too.
                            {failed, {_, end_per_testcase, _} = Why} -> {passed, text(Why)};
                            {failed, Why} -> {failed, text(Why)};
                            {framework_error, Why} -> {failed, text(Why)};
                            {auto_skipped, Why} -> {skipped, text(Why)};
                            {skipped, Why} -> {skipped, text(Why)};
                            Other -> {failed, text(Other)}
                        end,
    Now = erlang:monotonic_time(millisecond),
    Took = Now - maps:get(Case, Started, Now),
    append(File, {tc, Suite, Group, Case, Verdict, Reason, Took}).

text(Reason) ->
    lists:flatten(io_lib:format("~0tP", [Reason, 60])).

append(File, Term) ->
    ok = file:write_file(File, unicode:characters_to_binary(io_lib:format("~0tp.~n", [Term])),
                         [append]).

%% Writes the links. Runs in a process of its own, so that a question about a link does not delay the
%% suite.
watch(Witness, File, Case) ->
    receive
        {during, Next} ->
            %% A case may have restarted net_kernel, which ends the subscription, so subscribe
            %% again. net_kernel counts subscriptions, so end the old one first.
            _ = net_kernel:monitor_nodes(false, [{node_type, all}]),
            _ = net_kernel:monitor_nodes(true, [{node_type, all}]),
            watch(Witness, File, Next);
        {nodeup, Node, _} ->
            {Transport, Why} = transport(Node),
            append(File, {link, Case, Node, Transport, Why}),
            watch(Witness, File, Case);
        _Other ->
            watch(Witness, File, Case)
    end.

transport(Node) ->
    case code:is_loaded(caravan_dist) of
        false ->
            {inet, ""};
        _ ->
            try apply(caravan_dist, info, [Node]) of
                #{transport := Transport, reason := Why} -> {Transport, binary_to_list(Why)};
                _ -> {gone, ""}
            catch
                _:_ -> {gone, ""}
            end
    end.

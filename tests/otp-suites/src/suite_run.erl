%% Runs one of OTP's suites in this node and writes the outcome of each case:
%%
%%     erl -noinput -sname x ... -run suite_run main SUITE-DIR SUITE SELECTION RESULTS LOG-DIR
%%
%% SELECTION is `all', or a list of `CASE', `group:GROUP' and `GROUP/CASE' with commas.
-module(suite_run).

-export([main/1]).

-spec main([string()]) -> no_return().
main([Dir, SuiteName, Selection, Results, LogDir]) ->
    Suite = list_to_atom(SuiteName),
    %% Disable the built-in hooks, as OTP's own specifications do: they redirect the logger, which
    %% some cases examine.
    Terms = [{enable_builtin_hooks, false},
             {logdir, LogDir},
             {event_handler, suite_witness, [Results]}
            | selection(Dir, Suite, Selection)],
    Outcome = ct:run_testspec(Terms),
    %% The last line shows that the suite ended and the node did not die.
    ok = file:write_file(Results, io_lib:format("~0tp.~n", [{ended, printable(Outcome)}]), [append]),
    erlang:halt(0).

selection(Dir, Suite, "all") ->
    [{suites, Dir, Suite}];
selection(Dir, Suite, Items) ->
    Parsed = [item(Item) || Item <- string:lexemes(Items, ",")],
    Cases = [Case || {tc, Case} <- Parsed],
    Groups = lists:usort([Group || {group_case, Group, _} <- Parsed]),
    [{cases, Dir, Suite, Cases} || Cases =/= []]
        ++ [{groups, Dir, Suite, Group} || {group, Group} <- Parsed]
        ++ [{groups, Dir, Suite, Group, {cases, [C || {group_case, G, C} <- Parsed, G =:= Group]}}
            || Group <- Groups].

item("group:" ++ Group) ->
    {group, list_to_atom(Group)};
item(Item) ->
    case string:split(Item, "/") of
        [Group, Case] -> {group_case, list_to_atom(Group), list_to_atom(Case)};
        [Case] -> {tc, list_to_atom(Case)}
    end.

printable({Ok, Failed, {UserSkipped, AutoSkipped}}) ->
    {Ok, Failed, UserSkipped + AutoSkipped};
printable(Other) ->
    lists:flatten(io_lib:format("~0P", [Other, 30])).

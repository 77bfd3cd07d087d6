%% Compares the outcome of each case under TCP and under Caravan.
%%
%%     erl ... -run suite_verdict differing TCP-FILE CARAVAN-FILE   prints the cases to run again
%%     erl ... -run suite_verdict summary RESULTS-DIR               prints a table; exits with 1 if a case is worse
%%
%% RESULTS-DIR contains the files SUITE.TRANSPORT.ATTEMPT that suite_run writes.
-module(suite_verdict).

-export([differing/1, summary/1]).

-type key() :: {Group :: atom(), Case :: atom()}.
-type outcome() :: {passed | failed | skipped, Reason :: string(), Milliseconds :: integer()}.

%% Prints the cases that TCP passes and Caravan does not, as a selection for suite_run.
-spec differing([string()]) -> no_return().
differing([TcpFile, CaravanFile]) ->
    Tcp = outcomes(TcpFile),
    Caravan = outcomes(CaravanFile),
    Keys = [Key || {Key, {passed, _, _}} <- lists:sort(maps:to_list(Tcp)),
                   verdict(maps:get(Key, Caravan, not_run)) =/= passed],
    io:format("~ts", [lists:join(",", [selector(Key) || Key <- Keys])]),
    halt(0).

selector({none, Case}) -> atom_to_list(Case);
selector({Group, Case}) -> [atom_to_list(Group), "/", atom_to_list(Case)].

-spec summary([string()]) -> no_return().
summary([Dir]) ->
    Suites = lists:usort([hd(string:split(filename:basename(F), "."))
                          || F <- filelib:wildcard("*.*.1", Dir)]),
    Reports = [report(Dir, Suite) || Suite <- Suites],
    table(Reports),
    Worse = [{Suite, Row} || {Suite, Rows, _} <- Reports, {_, worse, _, _} = Row <- Rows],
    [explained(Reports, Class) || Class <- [worse, unsteady, better, both_fail]],
    halt(case Worse of [] -> 0; _ -> 1 end).

%% Returns {Suite, [{key(), Class, TcpOutcomes, CaravanOutcomes}], Links}.
report(Dir, Suite) ->
    Tcp = attempts(Dir, Suite, "tcp"),
    Caravan = attempts(Dir, Suite, "caravan"),
    First = fun([]) -> []; ([One | _]) -> maps:keys(One) end,
    Keys = lists:usort(First(Tcp) ++ First(Caravan)),
    Both = Tcp =/= [] andalso Caravan =/= [],
    Rows = [begin
                T = of_key(Key, Tcp),
                C = of_key(Key, Caravan),
                {Key, class(Both, T, C), T, C}
            end || Key <- Keys],
    Links = [L || File <- files(Dir, Suite, "caravan"), {link, _, _, _, _} = L <- terms(File)],
    {Suite, Rows, Links}.

%% Returns the outcomes of a case. The first attempt selects every case, so a case missing there did
%% not run. A case missing in a later attempt was not selected.
of_key(_Key, []) -> [];
of_key(Key, [First | Later]) ->
    [maps:get(Key, First, not_run) | [maps:get(Key, L) || L <- Later, maps:is_key(Key, L)]].

class(false, T, C) ->
    hd([verdict(O) || O <- T ++ C]);
class(true, T, C) ->
    case {majority(T), majority(C), hd([verdict(O) || O <- C])} of
        {passed, passed, passed} -> passed;
        {passed, passed, _} -> unsteady;
        {passed, _, _} -> worse;
        {failed, failed, _} -> both_fail;
        {skipped, skipped, _} -> skipped;
        {_, passed, _} -> better;
        {_, _, _} -> both_fail
    end.

%% A case passes when it passes more often than not.
majority(Outcomes) ->
    Verdicts = [verdict(O) || O <- Outcomes],
    Passed = length([V || passed = V <- Verdicts]),
    case 2 * Passed > length(Verdicts) of
        true -> passed;
        false -> hd([V || V <- Verdicts, V =/= passed])
    end.

verdict({Verdict, _, _}) -> Verdict;
verdict(not_run) -> not_run.

table(Reports) ->
    io:format("~n~-27s ~7s ~7s ~7s   ~7s ~7s ~7s   ~6s ~9s   ~s~n",
              ["suite", "tcp ok", "failed", "skipped", "car. ok", "failed", "skipped",
               "worse", "unsteady", "links of the test node"]),
    [begin
         T = [hd(O) || {_, _, O, _} <- Rows, O =/= []],
         C = [hd(O) || {_, _, _, O} <- Rows, O =/= []],
         Count = fun(V, Os) -> length([O || O <- Os, verdict(O) =:= V]) end,
         Class = fun(K) -> length([R || {_, Cl, _, _} = R <- Rows, Cl =:= K]) end,
         io:format("~-27s ~7w ~7w ~7w   ~7w ~7w ~7w   ~6w ~9w   ~s~n",
                   [Suite, Count(passed, T), Count(failed, T) + Count(not_run, T), Count(skipped, T),
                    Count(passed, C), Count(failed, C) + Count(not_run, C), Count(skipped, C),
                    Class(worse), Class(unsteady), links(Links)])
     end || {Suite, Rows, Links} <- Reports],
    io:format("(counts are of the first attempt; links that ended before the test could look at them are \"gone\")~n").

links(Links) ->
    lists:join(", ", [io_lib:format("~w ~s", [N, T]) || {T, N} <- counted(Links)]).

%% Counts links by transport, and links over TCP by reason.
counted(Links) ->
    Kind = fun({link, _, _, tcp, Why}) -> ["tcp (", Why, ")"];
              ({link, _, _, Transport, _}) -> atom_to_list(Transport)
           end,
    Counts = lists:foldl(fun(Link, Acc) ->
                                 maps:update_with(lists:flatten(Kind(Link)), fun(N) -> N + 1 end, 1, Acc)
                         end, #{}, Links),
    lists:sort(maps:to_list(Counts)).

explained(Reports, Class) ->
    Rows = [{Suite, Row} || {Suite, All, _} <- Reports, {_, C, _, _} = Row <- All, C =:= Class],
    Rows =/= [] andalso io:format("~n~s~n", [heading(Class)]),
    [io:format("  ~s:~ts   tcp: ~ts   caravan: ~ts~n~ts",
               [Suite, selector(Key), history(T), history(C), reason(T, C)])
     || {Suite, {Key, _, T, C}} <- Rows].

heading(worse) -> "TCP passes these, and Caravan does not:";
heading(unsteady) -> "Caravan passes these in most attempts, but not in the first:";
heading(better) -> "Caravan passes these, and TCP does not:";
heading(both_fail) -> "Neither TCP nor Caravan passes these:".

history(Outcomes) ->
    lists:join(",", [atom_to_list(verdict(O)) || O <- Outcomes]).

reason(T, C) ->
    case [R || {V, R, _} <- C ++ T, V =/= passed] of
        [Reason | _] -> ["      ", string:slice(Reason, 0, 300), $\n];
        [] -> ""
    end.

-spec attempts(string(), string(), string()) -> [#{key() => outcome()}].
attempts(Dir, Suite, Transport) ->
    [outcomes(File) || File <- files(Dir, Suite, Transport)].

files(Dir, Suite, Transport) ->
    [filename:join(Dir, F)
     || F <- lists:sort(filelib:wildcard(lists:concat([Suite, ".", Transport, ".*"]), Dir))].

outcomes(File) ->
    %% A case that runs more than once in one attempt (repeated groups) counts as its worst.
    lists:foldl(fun({tc, _Suite, Group, Case, Verdict, Reason, Took}, Acc) ->
                        Outcome = {Verdict, Reason, Took},
                        maps:update_with({Group, Case}, fun(Old) -> worst(Old, Outcome) end, Outcome, Acc);
                   (_, Acc) ->
                        Acc
                end, #{}, terms(File)).

worst({failed, _, _} = Old, _) -> Old;
worst(_, {failed, _, _} = New) -> New;
worst({passed, _, _} = Old, _) -> Old;
worst(_, New) -> New.

%% Returns the terms in a file. If the node died, the last term may be incomplete; this ignores it.
terms(File) ->
    case file:consult(File) of
        {ok, Terms} -> Terms;
        {error, _} ->
            {ok, Text} = file:read_file(File),
            whole(unicode:characters_to_list(Text), [])
    end.

whole(Text, Terms) ->
    case erl_scan:tokens([], Text, 0) of
        {done, {ok, Tokens, _}, Rest} ->
            case erl_parse:parse_term(Tokens) of
                {ok, Term} -> whole(Rest, [Term | Terms]);
                {error, _} -> lists:reverse(Terms)
            end;
        _ ->
            lists:reverse(Terms)
    end.

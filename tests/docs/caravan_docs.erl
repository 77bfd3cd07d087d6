%% The nodes that tests/docs/run starts run these functions.
-module(caravan_docs).
-export([started/0, wait/0, shell/0]).

%% Checks that a node which a command started is distributed over Caravan.
started() ->
    spawn(fun() ->
                  State = {is_alive(), ets:info(caravan_links, size) =/= undefined},
                  State =:= {true, true} orelse stop("the node is not distributed over Caravan: ~p", [State]),
                  io:format("started over caravan~n"),
                  halt(0)
          end).

%% Runs in the peer of a block for the shell.
wait() ->
    io:format("up~n").

%% Evaluates the block in the file that DOCS_BLOCK names, as the shell would.
shell() ->
    {ok, Text} = file:read_file(os:getenv("DOCS_BLOCK")),
    {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Text), 1, [text]),
    lists:foldl(fun evaluate/2, erl_eval:new_bindings(), expressions(Tokens)),
    halt(0).

evaluate(Tokens, Bindings) ->
    try
        {ok, Parsed} = erl_parse:parse_exprs(Tokens),
        {value, Value, Next} = erl_eval:exprs(Parsed, Bindings),
        Value =/= pang andalso Value =/= undefined orelse error({unexpected, Value}),
        Next
    catch _:Reason ->
            stop("~p~n in ~ts", [Reason, lists:join(" ", [erl_scan:text(T) || T <- Tokens])])
    end.

expressions(Tokens) ->
    case lists:splitwith(fun(Token) -> element(1, Token) =/= dot end, Tokens) of
        {[], _} -> [];
        {Expression, [Dot | Rest]} -> [Expression ++ [Dot] | expressions(Rest)];
        {_, []} -> stop("an expression does not end in a dot", [])
    end.

stop(Format, Arguments) ->
    io:format(Format ++ "~n", Arguments),
    halt(1).

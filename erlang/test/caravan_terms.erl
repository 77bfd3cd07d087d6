%% Random terms. The same seed makes the same terms on any node, so that the receiver knows what
%% to expect without being sent it twice.
-module(caravan_terms).

-export([stream/2, next/1]).

%% Classes = [{Weight, Class}], Class = small | {binary, MaxBytes} | {nested, MaxElements}.
stream(Seed, Classes) ->
    {rand:seed_s(exsss, Seed), Classes}.

next({State0, Classes}) ->
    {Class, State1} = pick(Classes, State0),
    {Term, State2} = term(Class, State1),
    {Term, {State2, Classes}}.

pick(Classes, State0) ->
    Total = lists:sum([Weight || {Weight, _} <- Classes]),
    {N, State} = rand:uniform_s(Total, State0),
    {pick_nth(N, Classes), State}.

pick_nth(N, [{Weight, Class} | _]) when N =< Weight -> Class;
pick_nth(N, [{Weight, _} | Rest]) -> pick_nth(N - Weight, Rest).

term(small, State) ->
    leaf(State);
%% Every length up to the largest is possible, and the small ones are as likely as the large.
term({binary, MaxBytes}, State0) ->
    {Exponent, State1} = rand:uniform_s(State0),
    Bytes = round(math:pow(MaxBytes, Exponent)) - 1,
    binary(Bytes, State1);
term({nested, MaxElements}, State0) ->
    {Elements, State1} = rand:uniform_s(MaxElements, State0),
    nested(Elements, State1).

%% A seeded block over and over, and a tail that tells where it ends.
binary(Bytes, State0) ->
    {Block, State1} = rand:bytes_s(min(Bytes, 4093), State0),
    {case Bytes of
         0 -> <<>>;
         _ ->
             Whole = binary:copy(Block, Bytes div byte_size(Block)),
             Tail = binary:part(Block, 0, Bytes rem byte_size(Block)),
             <<Whole/binary, Tail/binary>>
     end, State1}.

nested(Elements, State0) when Elements =< 1 ->
    leaf(State0);
nested(Elements, State0) ->
    {Width, State1} = rand:uniform_s(min(Elements, 40), State0),
    {Parts, State2} = lists:mapfoldl(fun(_, S) -> nested(Elements div (Width + 1), S) end, State1,
                                     lists:seq(1, Width)),
    {Shape, State3} = rand:uniform_s(4, State2),
    {case Shape of
         1 -> Parts;
         2 -> list_to_tuple(Parts);
         3 -> maps:from_list(lists:zip(lists:seq(1, Width), Parts));
         4 -> lists:foldl(fun(Part, Tail) -> [Part | Tail] end, improper, Parts)
     end, State3}.

leaf(State0) ->
    {Kind, State1} = rand:uniform_s(9, State0),
    {N, State2} = rand:uniform_s(1 bsl 56, State1),
    case Kind of
        1 -> {N rem 256, State2};
        2 -> {-N, State2};
        3 -> {N bsl (N rem 200), State2};
        4 -> {N / 3, State2};
        5 -> {list_to_atom("caravan_" ++ integer_to_list(N rem 3000)), State2};
        6 -> binary(N rem 300, State2);
        7 -> {<<N:(N rem 64 + 1)>>, State2};
        8 -> {lists:seq(1, N rem 60), State2};
        9 -> {fun erlang:'+'/2, State2}
    end.

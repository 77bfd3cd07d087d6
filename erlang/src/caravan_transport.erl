%% @doc Which transport a connection takes, and why not a better one. Decisions only.
%%
%% `auto' takes the best that both sides can have. A side that names `shm' accepts nothing else;
%% it says so in its capability, so that the other side refuses, too, instead of seeing a node
%% come up and go down.
-module(caravan_transport).

-export([offer/2, choose/3, settle/3]).
-export_type([driver/0]).

-type named() :: auto | shm | tcp.
-type driver() :: ok | {error, Why :: binary()}.
-type peer() :: none | caravan_capability:capability().

%% @doc What this node says of itself.
-spec offer(named(), driver()) -> caravan_capability:capability().
offer(tcp, _) -> #{shm => false, required => false, why => named_tcp};
offer(Named, {error, _}) -> #{shm => false, required => Named =:= shm, why => no_driver};
offer(Named, ok) -> #{shm => true, required => Named =:= shm, why => none}.

%% @doc Before anything has been tried.
-spec choose(named(), driver(), peer()) -> try_shm | {tcp, binary()} | {refuse, binary()}.
choose(Named, Driver, Peer) ->
    case why_not(Named, Driver, Peer) of
        none -> try_shm;
        Why -> settle(Named, Peer, Why)
    end.

%% @doc Once it is known why shared memory cannot be had.
-spec settle(named(), peer(), Why :: binary()) -> {tcp, binary()} | {refuse, binary()}.
settle(shm, _, Why) ->
    {refuse, <<"the option transport names shm here, and it cannot be had: ", Why/binary>>};
settle(_, #{required := true}, Why) ->
    {refuse, <<"the option transport names shm at the peer, and it cannot be had: ", Why/binary>>};
settle(_, _, Why) ->
    {tcp, Why}.

-spec why_not(named(), driver(), peer()) -> none | binary().
why_not(tcp, _, _) -> <<"the option transport names tcp here">>;
why_not(_, _, none) -> <<"the peer does not speak Caravan">>;
why_not(_, {error, Why}, _) -> Why;
why_not(_, ok, #{shm := true}) -> none;
why_not(_, ok, #{why := named_tcp}) -> <<"the option transport names tcp at the peer">>;
why_not(_, ok, #{why := no_driver}) -> <<"the peer could not load its driver">>;
why_not(_, ok, #{}) -> <<"the peer offers no shared memory">>.

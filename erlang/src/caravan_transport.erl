%% @doc Which transport a connection takes, and why not a better one. Decisions only.
%%
%% `auto' takes the best that both sides can have: shared memory, then RDMA, then TCP. A side that
%% names `shm' or `rdma' accepts nothing else; one that wants encryption accepts RDMA only sealed,
%% and no TCP. Each says so in its capability, so that the other side refuses, too, instead of
%% seeing a node come up and go down.
-module(caravan_transport).

-export([offer/1, choose/2, settle/4, is_sealed/2]).
-export_type([transport/0, here/0, driver/0, declined/0]).

-type transport() :: shm | rdma | tcp.
-type driver() :: ok | {error, Why :: binary()}.
-type here() :: #{named := auto | transport(), encrypt := boolean(),
                  driver := driver()}.
%% This node: what its options name, and whether there is a driver. Whether there is RDMA to be had is
%% not known yet: to ask a device is work, which nobody gets from this node before the cookies have
%% been proved. So a node whose options allow RDMA offers it, and declines its round where there is none.
-type peer() :: none | caravan_capability:capability().
-type declined() :: [{shm | rdma, Why :: binary()}].
%% What cannot be had.

%% @doc What this node says of itself.
-spec offer(here()) -> caravan_capability:capability().
offer(#{named := Named, encrypt := Encrypt} = Here) ->
    Why = shm_code(Here),
    RdmaWhy = rdma_code(Here),
    #{shm => Why =:= none, rdma => RdmaWhy =:= none, why => Why, rdma_why => RdmaWhy,
      required => Encrypt orelse Named =:= shm orelse Named =:= rdma, encrypt => Encrypt}.

%% @doc Before anything has been tried: the rounds that both sides will go through, and what is
%% out of the question already.
-spec choose(here(), peer()) ->
          {attempt, [shm | rdma, ...], declined()} | {tcp, Why :: binary()} | {refuse, binary()}.
choose(Here, Peer) ->
    Reasons = [{Round, why_not(Round, Here, Peer)} || Round <- [shm, rdma]],
    Declined = [Reason || {_, Why} = Reason <- Reasons, Why =/= none],
    case [Round || {Round, none} <- Reasons] of
        [] -> settle(Here, Peer, tcp, Declined);
        Rounds -> {attempt, Rounds, Declined}
    end.

%% @doc Once it is known what carries the link and what cannot.
-spec settle(here(), peer(), transport(), declined()) ->
          {transport(), Why :: binary()} | {refuse, binary()}.
settle(Here, Peer, tcp, Declined) ->
    case demanded(Here, Peer) of
        none ->
            {tcp, sentence(Declined)};
        {encrypt, Where} ->
            {refuse, <<"the option encrypt is set ", Where/binary, ", and TCP would carry the link in "
                       "the clear (", (sentence(Declined))/binary, "); for encrypted TCP start the "
                       "nodes with -proto_dist inet_tls">>};
        {Named, Where} ->
            Why = proplists:get_value(Named, Declined, <<"both sides must offer it">>),
            {refuse, <<"the option transport names ", (atom_to_binary(Named))/binary, " ",
                       Where/binary, ", and it cannot be had: ", Why/binary>>}
    end;
settle(_, _, shm, _) ->
    {shm, <<>>};
settle(_, _, rdma, Declined) ->
    {rdma, <<<<"shared memory: ", Why/binary>> || {shm, Why} <- Declined>>}.

%% @doc Whether an RDMA link is sealed: one side that wants it is enough.
-spec is_sealed(here(), peer()) -> boolean().
is_sealed(#{encrypt := Here}, #{encrypt := There}) -> Here orelse There;
is_sealed(#{encrypt := Here}, none) -> Here.

%% ---------------------------------------------------------------------------------------------

%% Why this node does not offer it.
-spec shm_code(here()) -> none | named_tcp | named_rdma | no_driver.
shm_code(#{named := tcp}) -> named_tcp;
shm_code(#{named := rdma}) -> named_rdma;
shm_code(#{driver := {error, _}}) -> no_driver;
shm_code(_) -> none.

-spec rdma_code(here()) -> none | named_tcp | named_shm | no_driver.
rdma_code(#{named := tcp}) -> named_tcp;
rdma_code(#{named := shm}) -> named_shm;
rdma_code(#{driver := {error, _}}) -> no_driver;
rdma_code(_) -> none.

-spec why_not(shm | rdma, here(), peer()) -> none | binary().
why_not(Round, Here, Peer) ->
    case {Round, code(Round, Here), Peer} of
        {_, Code, _} when Code =:= named_tcp; Code =:= named_shm; Code =:= named_rdma ->
            named(Code, <<"here">>);
        {_, _, none} -> <<"the peer does not speak Caravan">>;
        {_, no_driver, _} -> {error, Why} = maps:get(driver, Here), Why;
        {shm, none, #{shm := true}} -> none;
        {rdma, none, #{rdma := true}} -> none;
        {shm, none, #{why := Code}} -> peers(shm, Code);
        {rdma, none, #{rdma_why := Code}} -> peers(rdma, Code)
    end.

-spec code(shm | rdma, here()) -> atom().
code(shm, Here) -> shm_code(Here);
code(rdma, Here) -> rdma_code(Here).

%% Why the peer does not offer it.
-spec peers(shm | rdma, atom()) -> binary().
peers(_, no_driver) -> <<"the peer could not load its driver">>;
peers(_, older) -> <<"the peer runs an older Caravan, which has no RDMA">>;
peers(shm, none) -> <<"the peer offers no shared memory">>;
peers(rdma, none) -> <<"the peer offers no RDMA">>;
peers(_, Named) -> named(Named, <<"at the peer">>).

-spec named(named_tcp | named_shm | named_rdma, binary()) -> binary().
named(Code, Where) ->
    <<"named_", Name/binary>> = atom_to_binary(Code),
    <<"the option transport names ", Name/binary, " ", Where/binary>>.

%% Who does not accept TCP, and what is wanted instead.
-spec demanded(here(), peer()) -> none | {shm | rdma | encrypt, Where :: binary()}.
demanded(#{named := Named}, _) when Named =:= shm; Named =:= rdma -> {Named, <<"here">>};
demanded(#{encrypt := true}, _) -> {encrypt, <<"here">>};
demanded(_, #{required := true} = Peer) -> {demanded_by(Peer), <<"at the peer">>};
demanded(_, _) -> none.

-spec demanded_by(caravan_capability:capability()) -> shm | rdma | encrypt.
demanded_by(#{why := named_rdma}) -> rdma;
demanded_by(#{rdma_why := named_shm}) -> shm;
demanded_by(#{encrypt := true}) -> encrypt;
demanded_by(_) -> shm.

%% The better one first; one reason for both is said once.
-spec sentence(declined()) -> binary().
sentence(Declined) ->
    case [Reason || Round <- [shm, rdma], {What, _} = Reason <- Declined, What =:= Round] of
        [{shm, Why}, {rdma, Why}] -> Why;
        Reasons -> iolist_to_binary(lists:join("; ", [[word(What), ": ", Why] || {What, Why} <- Reasons]))
    end.

-spec word(shm | rdma) -> string().
word(shm) -> "shared memory";
word(rdma) -> "RDMA".

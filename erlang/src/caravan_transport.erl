%% @doc Decides which transport a connection uses, and says why it is not a better one.
%%
%% `auto' takes the best that both sides have: shared memory, then RDMA, then TCP. A side that names
%% `shm' or `rdma' accepts nothing else. A side that requires encryption accepts RDMA only
%% encrypted, and no TCP. Each side says so in its capability. So the other side refuses, too, and
%% does not see a node come up and go down.
-module(caravan_transport).

-export([offer/1, choose/2, settle/4, is_sealed/2]).
-export_type([transport/0, here/0, driver/0, declined/0]).

-type transport() :: shm | rdma | tcp.
-type driver() :: ok | {error, Why :: binary()}.
-type here() :: #{named := auto | transport(), encrypt := boolean(),
                  driver := driver()}.
%% This node: its options, and whether the driver is loaded. It does not say whether there is RDMA: to
%% ask a device is work, which the node does for a peer only after the cookies have been proved. So a
%% node whose options allow RDMA offers it, and declines the round if it has none.
-type peer() :: none | caravan_capability:capability().
-type declined() :: [{shm | rdma, Why :: binary()}].
%% The transports that the connection cannot use, and why.

%% @doc Returns the capability of this node.
-spec offer(here()) -> caravan_capability:capability().
offer(#{named := Named, encrypt := Encrypt} = Here) ->
    Why = shm_code(Here),
    RdmaWhy = rdma_code(Here),
    #{shm => Why =:= none, rdma => RdmaWhy =:= none, why => Why, rdma_why => RdmaWhy,
      required => Encrypt orelse Named =:= shm orelse Named =:= rdma, encrypt => Encrypt}.

%% @doc Chooses before anything has been tried. Returns the rounds that both sides will run, and the
%% transports that are excluded already.
-spec choose(here(), peer()) ->
          {attempt, [shm | rdma, ...], declined()} | {tcp, Why :: binary()} | {refuse, binary()}.
choose(Here, Peer) ->
    Reasons = [{Round, why_not(Round, Here, Peer)} || Round <- [shm, rdma]],
    Declined = [Reason || {_, Why} = Reason <- Reasons, Why =/= none],
    case [Round || {Round, none} <- Reasons] of
        [] -> settle(Here, Peer, tcp, Declined);
        Rounds -> {attempt, Rounds, Declined}
    end.

%% @doc Decides once it is known which transport carries the link and which were declined.
-spec settle(here(), peer(), transport(), declined()) ->
          {transport(), Why :: binary()} | {refuse, binary()}.
settle(Here, Peer, tcp, Declined) ->
    case required(Here, Peer) of
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

%% @doc Checks whether an RDMA link is encrypted: it is if one side or both require it.
-spec is_sealed(here(), peer()) -> boolean().
is_sealed(#{encrypt := Here}, #{encrypt := There}) -> Here orelse There;
is_sealed(#{encrypt := Here}, none) -> Here.

%% ---------------------------------------------------------------------------------------------

%% Returns why this node does not offer shared memory.
-spec shm_code(here()) -> none | named_tcp | named_rdma | no_driver.
shm_code(#{named := tcp}) -> named_tcp;
shm_code(#{named := rdma}) -> named_rdma;
shm_code(#{driver := {error, _}}) -> no_driver;
shm_code(_) -> none.

%% Returns why this node does not offer RDMA.
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
        {shm, none, #{why := Code}} -> peer_why(shm, Code);
        {rdma, none, #{rdma_why := Code}} -> peer_why(rdma, Code)
    end.

-spec code(shm | rdma, here()) -> atom().
code(shm, Here) -> shm_code(Here);
code(rdma, Here) -> rdma_code(Here).

%% Returns why the peer does not offer a transport.
-spec peer_why(shm | rdma, atom()) -> binary().
peer_why(_, no_driver) -> <<"the peer could not load its driver">>;
peer_why(_, older) -> <<"the peer runs an older Caravan, which has no RDMA">>;
peer_why(shm, none) -> <<"the peer does not offer shared memory">>;
peer_why(rdma, none) -> <<"the peer does not offer RDMA">>;
peer_why(_, Named) -> named(Named, <<"at the peer">>).

-spec named(named_tcp | named_shm | named_rdma, binary()) -> binary().
named(Code, Where) ->
    <<"named_", Name/binary>> = atom_to_binary(Code),
    <<"the option transport names ", Name/binary, " ", Where/binary>>.

%% Returns what a side requires instead of TCP, and which side that is.
-spec required(here(), peer()) -> none | {shm | rdma | encrypt, Where :: binary()}.
required(#{named := Named}, _) when Named =:= shm; Named =:= rdma -> {Named, <<"here">>};
required(#{encrypt := true}, _) -> {encrypt, <<"here">>};
required(_, #{required := true} = Peer) -> {required_by(Peer), <<"at the peer">>};
required(_, _) -> none.

-spec required_by(caravan_capability:capability()) -> shm | rdma | encrypt.
required_by(#{why := named_rdma}) -> rdma;
required_by(#{rdma_why := named_shm}) -> shm;
required_by(#{encrypt := true}) -> encrypt;
required_by(_) -> shm.

%% Joins the reasons, shared memory's first. A reason that both share appears once.
-spec sentence(declined()) -> binary().
sentence(Declined) ->
    case [Reason || Round <- [shm, rdma], {What, _} = Reason <- Declined, What =:= Round] of
        [{shm, Why}, {rdma, Why}] -> Why;
        Reasons -> iolist_to_binary(lists:join("; ", [[word(What), ": ", Why] || {What, Why} <- Reasons]))
    end.

-spec word(shm | rdma) -> string().
word(shm) -> "shared memory";
word(rdma) -> "RDMA".

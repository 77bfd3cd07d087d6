%% @doc The messages by which two nodes that speak Caravan agree on shared memory, RDMA or TCP.
%%
%% The messages travel over the TCP connection after both sides have passed the handshake and
%% before either reports nodeup. There is one round for each transport that both sides offer:
%% ```
%% round `shm':
%%   accepting side                             initiating side
%%     listens       ---- "L" Descriptor ---->
%%                   <---- "C" ---------------    has connected and handed over memory
%%     has mapped it ---- "Y" --------------->
%%
%% round `rdma':
%%   accepting side                             initiating side
%%     lists ports   ---- "L" Offer --------->
%%                   <---- "C" Message -------    has registered memory, made a queue pair
%%     does the same ---- "Y" Message ------->
%%     connects                                   connects
%%                   <---- "R" ---------------    is connected
%%     is connected  ---- "U" --------------->
%% '''
%% Each side may send `"N" Why' in its turn instead. Then both cancel the round, and go on with the
%% next one or with TCP. A broken connection or a message out of turn is an error and ends the
%% connection.
%%
%% This module knows no sockets and no ports of the driver: it gets functions. One deadline holds
%% for all rounds. A step of RDMA gets half of the time left, so that this side can still report
%% that the step failed.
-module(caravan_negotiation).

-export([run/4]).
-export_type([role/0, channel/0, round/0, shm_steps/0, rdma_steps/0]).

-type role() :: initiator | acceptor.
-type channel() :: #{send := fun((iodata()) -> ok | {error, term()}),
                     recv := fun((TimeoutMs :: non_neg_integer()) ->
                                        {ok, iodata()} | {error, term()})}.
%% The connection to the other side, in packets.
-type shm_steps() :: #{listen := fun(() -> {ok, binary()} | {error, binary()}),
                       connect := fun((binary()) -> ok | {error, binary()}),
                       accept := fun(() -> ok | {error, binary()})}.
-type limit_ms() :: pos_integer().
-type rdma_steps() :: #{offer := fun((limit_ms()) -> {ok, binary()} | {error, binary()}),
                        connect := fun((binary(), limit_ms()) -> {ok, binary()} | {error, binary()}),
                        accept := fun((binary(), limit_ms()) -> {ok, binary()} | {error, binary()}),
                        finish := fun((binary(), limit_ms()) -> ok | {error, binary()})}.
%% The driver's part of each step.
-type round() :: {shm, shm_steps()} | {rdma, rdma_steps()}.

-define(MAX_DESCRIPTOR_BYTES, 1024).
-define(MAX_RDMA_BYTES, 4096).
-define(MAX_WHY_BYTES, 512).
%% A queue pair connects within milliseconds. If it takes longer than this, the path is blocked.
-define(MAX_FINISH_MS, 3000).

%% @doc Runs one side of the rounds; the other side runs the same rounds. The transport returned is
%% up on both sides, or is `tcp'. The list says why each better transport was declined.
-spec run(role(), channel(), [round()], TimeLimitMs :: pos_integer()) ->
          {ok, caravan_transport:transport(), caravan_transport:declined()} | {error, term()}.
run(Role, Channel, Rounds, TimeLimitMs) ->
    Deadline = erlang:monotonic_time(millisecond) + TimeLimitMs,
    try rounds(Role, Channel, Rounds, Deadline, [])
    catch throw:{failed, Reason} -> {error, Reason}
    end.

-spec rounds(role(), channel(), [round()], integer(), caravan_transport:declined()) ->
          {ok, caravan_transport:transport(), caravan_transport:declined()}.
rounds(Role, Channel, [{Name, Steps} | Rounds], Deadline, Declined) ->
    try round(Name, Role, Channel, Steps, Deadline) of
        ok -> {ok, Name, lists:reverse(Declined)}
    catch
        %% The peer's sentence about RDMA may speak of "this machine", and means the peer's.
        throw:{declined, peer, Why} when Name =:= rdma ->
            rounds(Role, Channel, Rounds, Deadline, [{Name, <<"the peer says: ", Why/binary>>} | Declined]);
        throw:{declined, _, Why} ->
            rounds(Role, Channel, Rounds, Deadline, [{Name, Why} | Declined])
    end;
rounds(_, _, [], _, Declined) ->
    {ok, tcp, lists:reverse(Declined)}.

%% One side of a round, to its good end; else ours/2 or theirs/4 throws.
-spec round(shm | rdma, role(), channel(), shm_steps() | rdma_steps(), integer()) -> ok.
round(shm, acceptor, Channel, #{listen := Listen, accept := Accept}, Deadline) ->
    send(Channel, [$L, ours(Channel, Listen())]),
    <<>> = theirs(Channel, $C, 0, Deadline),
    <<>> = ours(Channel, Accept()),
    send(Channel, "Y");
round(shm, initiator, Channel, #{connect := Connect}, Deadline) ->
    Descriptor = theirs(Channel, $L, ?MAX_DESCRIPTOR_BYTES, Deadline),
    <<>> = ours(Channel, Connect(Descriptor)),
    send(Channel, "C"),
    <<>> = theirs(Channel, $Y, 0, Deadline),
    ok;
round(rdma, acceptor, Channel, #{offer := Offer, accept := Accept, finish := Finish}, Deadline) ->
    send(Channel, [$L, ours(Channel, Offer(step_ms(Deadline)))]),
    Message = theirs(Channel, $C, ?MAX_RDMA_BYTES, Deadline),
    send(Channel, [$Y, ours(Channel, Accept(Message, step_ms(Deadline)))]),
    %% Whether this side is connected or not, the other side sends next.
    Finished = Finish(<<>>, finish_ms(Deadline)),
    <<>> = theirs(Channel, $R, 0, Deadline),
    <<>> = ours(Channel, Finished),
    send(Channel, "U");
round(rdma, initiator, Channel, #{connect := Connect, finish := Finish}, Deadline) ->
    Ports = theirs(Channel, $L, ?MAX_RDMA_BYTES, Deadline),
    send(Channel, [$C, ours(Channel, Connect(Ports, step_ms(Deadline)))]),
    Answer = theirs(Channel, $Y, ?MAX_RDMA_BYTES, Deadline),
    <<>> = ours(Channel, Finish(Answer, finish_ms(Deadline))),
    send(Channel, "R"),
    <<>> = theirs(Channel, $U, 0, Deadline),
    ok.

%% Returns what a step of this side has made; declines the round if the step has failed.
-spec ours(channel(), ok | {ok, binary()} | {error, binary()}) -> binary().
ours(_, ok) -> <<>>;
ours(_, {ok, Made}) -> Made;
ours(Channel, {error, Why}) ->
    send(Channel, [$N, text(Why)]),
    throw({declined, here, text(Why)}).

%% Returns what the peer's next message carries. The peer may decline instead; anything else is out of turn.
-spec theirs(channel(), char(), non_neg_integer(), integer()) -> binary().
theirs(Channel, Letter, MaxBytes, Deadline) ->
    case recv(Channel, Deadline) of
        <<Letter, Bytes/binary>> when byte_size(Bytes) =< MaxBytes -> Bytes;
        <<$N, Why/binary>> -> throw({declined, peer, text(Why)});
        Other -> throw({failed, {out_of_turn, Other}})
    end.

-spec send(channel(), iodata()) -> ok.
send(#{send := Send}, Data) ->
    case Send(Data) of
        ok -> ok;
        {error, Reason} -> throw({failed, Reason})
    end.

-spec recv(channel(), integer()) -> binary().
recv(#{recv := Recv}, Deadline) ->
    case Recv(left_ms(Deadline)) of
        {ok, Data} -> iolist_to_binary(Data);
        {error, Reason} -> throw({failed, Reason})
    end.

-spec left_ms(integer()) -> non_neg_integer().
left_ms(Deadline) ->
    max(0, Deadline - erlang:monotonic_time(millisecond)).

-spec step_ms(integer()) -> limit_ms().
step_ms(Deadline) ->
    max(1, left_ms(Deadline) div 2).

-spec finish_ms(integer()) -> limit_ms().
finish_ms(Deadline) ->
    min(?MAX_FINISH_MS, step_ms(Deadline)).

%% Limits the length of a sentence and removes what cannot be printed: the peer's goes to our log.
-spec text(binary()) -> binary().
text(Bytes) ->
    Cut = binary:part(Bytes, 0, min(byte_size(Bytes), ?MAX_WHY_BYTES)),
    Characters = case unicode:characters_to_list(Cut) of
                     List when is_list(List) -> List;
                     {_, List, _} -> List
                 end,
    unicode:characters_to_binary([C || C <- Characters, C >= $\s, C =/= 127]).

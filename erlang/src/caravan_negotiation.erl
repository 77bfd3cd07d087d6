%% @doc How two nodes that both speak Caravan agree on shared memory, on RDMA, or on TCP.
%%
%% A few messages travel over the TCP connection after the handshake has been passed on both sides
%% and before either says nodeup, in one round for each transport that both sides offer:
%% ```
%% round `shm':
%%   accepting side                          initiating side
%%     listens    ---- "L" Descriptor ---->
%%                <---- "C" ---------------    made the memory, connected, passed it
%%     mapped it  ---- "Y" --------------->
%%
%% round `rdma':
%%   accepting side                          initiating side
%%     its ports  ---- "L" Offer --------->
%%                <---- "C" Message -------    registered memory, made a queue pair
%%     the same   ---- "Y" Message ------->
%%     connects                                connects
%%                <---- "R" ---------------    is connected
%%     is, too    ---- "U" --------------->
%% '''
%% Each may say `"N" Why' in its turn instead. Then both cancel, and go on with the next round, or
%% on TCP. A broken connection or a message out of turn is an error, and ends the connection.
%%
%% Nothing here knows sockets or ports: it gets them as functions. One deadline holds for all
%% rounds; a step of RDMA gets half of what is left, so that there is time to say that it failed.
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
%% What the driver does at each step.
-type round() :: {shm, shm_steps()} | {rdma, rdma_steps()}.

-define(MAX_DESCRIPTOR_BYTES, 1024).
-define(MAX_RDMA_BYTES, 4096).
-define(MAX_WHY_BYTES, 512).
%% A connected queue pair is a matter of milliseconds: more than this is a path that is shut.
-define(MAX_FINISH_MS, 3000).

%% @doc Runs one side through the rounds, which both sides know to be the same. The transport
%% returned is up on both sides, or is `tcp'; with it, why each better one is not.
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
    Result = case Name of
                 shm -> shm(Role, Channel, Steps, Deadline);
                 rdma -> rdma(Role, Channel, Steps, Deadline)
             end,
    case Result of
        up -> {ok, Name, lists:reverse(Declined)};
        {declined, Why} -> rounds(Role, Channel, Rounds, Deadline, [{Name, Why} | Declined]);
        %% Such a sentence may speak of "this machine".
        {told, Why} when Name =:= rdma ->
            rounds(Role, Channel, Rounds, Deadline, [{Name, <<"the peer says: ", Why/binary>>} | Declined]);
        {told, Why} -> rounds(Role, Channel, Rounds, Deadline, [{Name, Why} | Declined])
    end;
rounds(_, _, [], _, Declined) ->
    {ok, tcp, lists:reverse(Declined)}.

-type outcome() :: up | {declined | told, Why :: binary()}.
%% This side has declined the round, or the other side has.

-spec shm(role(), channel(), shm_steps(), integer()) -> outcome().
shm(acceptor, Channel, #{listen := Listen, accept := Accept}, Deadline) ->
    case Listen() of
        {ok, Descriptor} ->
            send(Channel, [$L, Descriptor]),
            case recv(Channel, Deadline) of
                <<$C>> ->
                    case Accept() of
                        ok -> send(Channel, "Y"), up;
                        {error, Why} -> refuse(Channel, Why)
                    end;
                Packet -> declined(Packet)
            end;
        {error, Why} ->
            refuse(Channel, Why)
    end;
shm(initiator, Channel, #{connect := Connect}, Deadline) ->
    case recv(Channel, Deadline) of
        <<$L, Descriptor/binary>> when byte_size(Descriptor) =< ?MAX_DESCRIPTOR_BYTES ->
            case Connect(Descriptor) of
                ok ->
                    send(Channel, "C"),
                    case recv(Channel, Deadline) of
                        <<$Y>> -> up;
                        Packet -> declined(Packet)
                    end;
                {error, Why} ->
                    refuse(Channel, Why)
            end;
        Packet -> declined(Packet)
    end.

-spec rdma(role(), channel(), rdma_steps(), integer()) -> outcome().
rdma(acceptor, Channel, #{offer := Offer, accept := Accept} = Steps, Deadline) ->
    case Offer(step_ms(Deadline)) of
        {ok, Ports} ->
            send(Channel, [$L, Ports]),
            case recv(Channel, Deadline) of
                <<$C, Message/binary>> when byte_size(Message) =< ?MAX_RDMA_BYTES ->
                    case Accept(Message, step_ms(Deadline)) of
                        {ok, Answer} ->
                            send(Channel, [$Y, Answer]),
                            finish_accepting(Channel, Steps, Deadline);
                        {error, Why} ->
                            refuse(Channel, Why)
                    end;
                Packet -> declined(Packet)
            end;
        {error, Why} ->
            refuse(Channel, Why)
    end;
rdma(initiator, Channel, #{connect := Connect} = Steps, Deadline) ->
    case recv(Channel, Deadline) of
        <<$L, Ports/binary>> when byte_size(Ports) =< ?MAX_RDMA_BYTES ->
            case Connect(Ports, step_ms(Deadline)) of
                {ok, Message} ->
                    send(Channel, [$C, Message]),
                    case recv(Channel, Deadline) of
                        <<$Y, Answer/binary>> when byte_size(Answer) =< ?MAX_RDMA_BYTES ->
                            finish_initiating(Channel, Steps, Answer, Deadline);
                        Packet -> declined(Packet)
                    end;
                {error, Why} ->
                    refuse(Channel, Why)
            end;
        Packet -> declined(Packet)
    end.

-spec finish_initiating(channel(), rdma_steps(), binary(), integer()) -> outcome().
finish_initiating(Channel, #{finish := Finish}, Answer, Deadline) ->
    case Finish(Answer, finish_ms(Deadline)) of
        ok ->
            send(Channel, "R"),
            case recv(Channel, Deadline) of
                <<$U>> -> up;
                Packet -> declined(Packet)
            end;
        {error, Why} ->
            refuse(Channel, Why)
    end.

%% It is the other side's turn whether this one is connected or not.
-spec finish_accepting(channel(), rdma_steps(), integer()) -> outcome().
finish_accepting(Channel, #{finish := Finish}, Deadline) ->
    Finished = Finish(<<>>, finish_ms(Deadline)),
    case {recv(Channel, Deadline), Finished} of
        {<<$R>>, ok} -> send(Channel, "U"), up;
        {<<$R>>, {error, Why}} -> refuse(Channel, Why);
        {Packet, _} -> declined(Packet)
    end.

%% What the other side may say instead of what is due.
-spec declined(binary()) -> outcome().
declined(<<$N, Why/binary>>) -> {told, text(Why)};
declined(Other) -> throw({failed, {out_of_turn, Other}}).

-spec refuse(channel(), binary()) -> outcome().
refuse(Channel, Why) ->
    send(Channel, [$N, text(Why)]),
    {declined, text(Why)}.

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

%% The peer's sentence ends in our log: cut to a length, and to what can be printed.
-spec text(binary()) -> binary().
text(Bytes) ->
    Cut = binary:part(Bytes, 0, min(byte_size(Bytes), ?MAX_WHY_BYTES)),
    Characters = case unicode:characters_to_list(Cut) of
                     List when is_list(List) -> List;
                     {_, List, _} -> List
                 end,
    unicode:characters_to_binary([C || C <- Characters, C >= $\s, C =/= 127]).

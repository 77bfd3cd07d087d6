%% @doc How two nodes that both speak Caravan agree on shared memory, or on TCP.
%%
%% Four kinds of message travel over the TCP connection after the handshake has been passed on
%% both sides and before either says nodeup:
%% ```
%% accepting side                          initiating side
%%   listens    ---- "L" Descriptor ---->
%%              <---- "C" ---------------    made the memory, connected, passed it
%%   mapped it  ---- "Y" --------------->
%% '''
%% Each may say `"N" Why' in its turn instead. Then both cancel and stay on TCP. A broken
%% connection or a message out of turn is an error, and ends the connection.
%%
%% Nothing here knows sockets or ports: it gets them as functions.
-module(caravan_negotiation).

-export([run/4]).
-export_type([role/0, channel/0, link/0]).

-type role() :: initiator | acceptor.
-type channel() :: #{send := fun((iodata()) -> ok | {error, term()}),
                     recv := fun((TimeoutMs :: non_neg_integer()) ->
                                        {ok, iodata()} | {error, term()})}.
%% The connection to the other side, in packets.
-type link() :: #{listen := fun(() -> {ok, binary()} | {error, binary()}),
                  connect := fun((binary()) -> ok | {error, binary()}),
                  accept := fun(() -> ok | {error, binary()})}.
%% What the driver does at each step.

-define(MAX_DESCRIPTOR_BYTES, 1024).
-define(MAX_WHY_BYTES, 512).

%% @doc Runs one side. `shm': the memory is mapped on both sides; `{tcp, Why}': it is not, and
%% both sides know.
-spec run(role(), channel(), link(), TimeLimitMs :: pos_integer()) ->
          shm | {tcp, Why :: binary()} | {error, term()}.
run(Role, Channel, Link, TimeLimitMs) ->
    Deadline = erlang:monotonic_time(millisecond) + TimeLimitMs,
    try side(Role, Channel, Link, Deadline)
    catch throw:{failed, Reason} -> {error, Reason}
    end.

-spec side(role(), channel(), link(), integer()) -> shm | {tcp, binary()}.
side(acceptor, Channel, #{listen := Listen, accept := Accept}, Deadline) ->
    case Listen() of
        {ok, Descriptor} ->
            send(Channel, [$L, Descriptor]),
            case recv(Channel, Deadline) of
                <<$C>> ->
                    case Accept() of
                        ok -> send(Channel, "Y"), shm;
                        {error, Why} -> refuse(Channel, Why)
                    end;
                Packet -> declined(Packet)
            end;
        {error, Why} ->
            refuse(Channel, Why)
    end;
side(initiator, Channel, #{connect := Connect}, Deadline) ->
    case recv(Channel, Deadline) of
        <<$L, Descriptor/binary>> when byte_size(Descriptor) =< ?MAX_DESCRIPTOR_BYTES ->
            case Connect(Descriptor) of
                ok ->
                    send(Channel, "C"),
                    case recv(Channel, Deadline) of
                        <<$Y>> -> shm;
                        Packet -> declined(Packet)
                    end;
                {error, Why} ->
                    refuse(Channel, Why)
            end;
        Packet -> declined(Packet)
    end.

%% What the other side may say instead of what is due.
-spec declined(binary()) -> {tcp, binary()}.
declined(<<$N, Why/binary>>) -> {tcp, text(Why)};
declined(Other) -> throw({failed, {out_of_turn, Other}}).

-spec refuse(channel(), binary()) -> {tcp, binary()}.
refuse(Channel, Why) ->
    send(Channel, [$N, text(Why)]),
    {tcp, text(Why)}.

-spec send(channel(), iodata()) -> ok.
send(#{send := Send}, Data) ->
    case Send(Data) of
        ok -> ok;
        {error, Reason} -> throw({failed, Reason})
    end.

-spec recv(channel(), integer()) -> binary().
recv(#{recv := Recv}, Deadline) ->
    case Recv(max(0, Deadline - erlang:monotonic_time(millisecond))) of
        {ok, Data} -> iolist_to_binary(Data);
        {error, Reason} -> throw({failed, Reason})
    end.

%% The peer's sentence ends in our log: cut to a length, and to what can be printed.
-spec text(binary()) -> binary().
text(Bytes) ->
    Cut = binary:part(Bytes, 0, min(byte_size(Bytes), ?MAX_WHY_BYTES)),
    Characters = case unicode:characters_to_list(Cut) of
                     List when is_list(List) -> List;
                     {_, List, _} -> List
                 end,
    unicode:characters_to_binary([C || C <- Characters, C >= $\s, C =/= 127]).

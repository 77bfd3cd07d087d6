%% @doc The process of one connection: the handshake, the choice of the transport, and then OTP's
%% tick loop.
%%
%% The handshake is OTP's own (`dist_util') over TCP. The functions that this module gives it do
%% what `inet_tcp_dist' does, with three additions. Nodes that speak Caravan exchange capabilities
%% (`caravan_capability'). After both sides have checked the cookies, and before nodeup, they may
%% agree on shared memory or RDMA; then the driver's port becomes the distribution controller, and
%% the TCP socket stays open and silent as the lifeline. Last, the link gets its row in
%% `caravan_links'.
%%
%% The functions keep their state in the process dictionary: `dist_util' passes them the socket and
%% nothing else. It calls all of them in this one process, some as long as the connection lives.
-module(caravan_handshake).

-include_lib("kernel/include/dist_util.hrl").
-include_lib("kernel/include/net_address.hrl").
-include_lib("kernel/include/logger.hrl").

-export([accept/7, setup/7]).
-export([tick/1, getstat/1]).

-define(KEY, '$caravan_connection').

-record(connection, {role :: caravan_negotiation:role(),
                     inet :: caravan_tcp:inet(),
                     options :: caravan_options:options(),
                     driver :: caravan_transport:driver(),
                     %% The initiating peer's name had the bit for Caravan. Its capability
                     %% comes later.
                     announced = false :: boolean(),
                     peer = none :: none | caravan_capability:capability(),
                     me :: binary(),
                     peer_name :: binary(),
                     hidden = false :: boolean(),
                     port :: undefined | port(),
                     transport = tcp :: caravan_transport:transport(),
                     device = <<>> :: binary(),
                     reason = <<>> :: binary()}).

%% @doc Runs the process of a connection that another node opened.
-spec accept(caravan_tcp:inet(), pid(), pid(), inet:socket(), node(), list(), pos_integer()) ->
          no_return().
accept(Inet, Kernel, Acceptor, Socket, MyNode, Allowed, SetupTime) ->
    ok = caravan_tcp:own(Acceptor),
    Timer = dist_util:start_timer(SetupTime),
    case caravan_tcp:peer_allowed(Inet, Socket) of
        true -> ok;
        {false, Ip} ->
            ?LOG_ERROR("caravan: connection attempt from disallowed address ~ts",
                       [inet:ntoa(Ip)]),
            ?shutdown(no_node)
    end,
    Options = options(),
    remember(#connection{role = acceptor, inet = Inet, options = Options,
                         driver = caravan_links:driver(),
                         me = atom_to_binary(MyNode), peer_name = <<>>}),
    HsData = (functions(Inet, Options))
        #hs_data{kernel_pid = Kernel, this_node = MyNode, socket = Socket, timer = Timer,
                 allowed = Allowed,
                 f_address = fun(S, Node) -> accepted_address(Inet, S, Node) end},
    dist_util:handshake_other_started(HsData).

%% @doc Runs the process of a connection that this node opens.
-spec setup(caravan_tcp:inet(), pid(), node(), term(), node(), longnames | shortnames,
            pos_integer()) -> no_return().
setup(Inet, Kernel, Node, Type, MyNode, Names, SetupTime) ->
    Timer = dist_util:start_timer(SetupTime),
    Reset = fun() -> dist_util:reset_timer(Timer) end,
    {Place, Socket} = case caravan_locate:reach(Inet, Node, Names, Reset) of
                          {ok, Found, Connected} -> {Found, Connected};
                          {error, _} -> ?shutdown(Node)
                      end,
    #{host := Host, ip := Ip, port := Port, version := Version} = Place,
    Options = options(),
    remember(#connection{role = initiator, inet = Inet, options = Options,
                         driver = caravan_links:driver(),
                         me = atom_to_binary(MyNode), peer_name = atom_to_binary(Node)}),
    Address = #net_address{address = {Ip, Port}, host = Host, protocol = tcp,
                           family = Inet:family()},
    HsData = (functions(Inet, Options))
        #hs_data{kernel_pid = Kernel, other_node = Node, this_node = MyNode, socket = Socket,
                 timer = Timer, other_version = Version, request_type = Type,
                 f_address = fun(_, _) -> Address end},
    dist_util:handshake_we_started(HsData).

%% ---------------------------------------------------------------------------------------------
%% The functions that dist_util calls, in this order: send and recv for each packet, pre_nodeup,
%% getll, (setnode), address, (nodeup), post_nodeup, handshake_complete, and then tick and getstat.

-spec functions(caravan_tcp:inet(), caravan_options:options()) -> #hs_data{}.
functions(Inet, Options) ->
    #hs_data{this_flags = 0,
             reject_flags = caravan_options:rejected_flags(Options),
             f_send = fun(S, Data) -> send(Inet, S, Data) end,
             f_recv = fun(S, Length, Timeout) -> recv(Inet, S, Length, Timeout) end,
             f_setopts_pre_nodeup = fun pre_nodeup/1,
             f_getll = fun getll/1,
             f_setopts_post_nodeup = fun post_nodeup/1,
             f_handshake_complete = fun handshake_complete/3,
             mf_tick = fun ?MODULE:tick/1,
             mf_getstat = fun ?MODULE:getstat/1,
             mf_setopts = fun caravan_tcp:setopts/2,
             mf_getopts = fun caravan_tcp:getopts/2}.

-spec send(caravan_tcp:inet(), inet:socket(), iodata()) -> ok | {error, term()}.
send(Inet, Socket, Data) ->
    #connection{role = Role} = Connection = recall(),
    case iolist_to_binary(Data) of
        <<$N, _/binary>> = Packet when Role =:= initiator ->
            Inet:send(Socket, caravan_capability:announce(Packet));
        <<$N, _/binary>> = Packet ->
            Inet:send(Socket, with_capability(challenge, Connection, Packet));
        <<$r, _/binary>> = Packet when Connection#connection.peer =:= none ->
            refuse_early(Connection),
            Inet:send(Socket, with_capability(reply, Connection, Packet));
        <<$r, _/binary>> = Packet ->
            %% Send before refusing: with our capability, a peer that speaks Caravan refuses as
            %% well, and both sides log why.
            Sent = Inet:send(Socket, with_capability(reply, Connection, Packet)),
            refuse_early(Connection),
            Sent;
        <<$a, _/binary>> = Packet ->
            refuse_early(Connection),
            Inet:send(Socket, Packet);
        <<$s, _/binary>> = Packet ->
            case caravan_capability:assigned_name(Packet) of
                {ok, Name} -> remember(Connection#connection{peer_name = Name});
                error -> ok
            end,
            Inet:send(Socket, Packet);
        Packet ->
            Inet:send(Socket, Packet)
    end.

%% Appends our capability. A peer that does not speak Caravan gets the same bytes as from inet_tcp.
-spec with_capability(caravan_capability:packet(), #connection{}, binary()) -> iodata().
with_capability(_, #connection{announced = false, peer = none}, Packet) ->
    Packet;
with_capability(Which, Connection, Packet) ->
    caravan_capability:append(Which, Packet, caravan_transport:offer(here(Connection))).

-spec recv(caravan_tcp:inet(), inet:socket(), non_neg_integer(), timeout()) ->
          {ok, term()} | {error, term()}.
recv(Inet, Socket, Length, Timeout) ->
    case {Inet:recv(Socket, Length, Timeout), recall()} of
        {{ok, [$N | _] = Packet} = Result, #connection{role = acceptor} = Connection} ->
            Name = case caravan_capability:name(Packet) of
                       {ok, Text} -> unicode:characters_to_binary(Text, latin1);
                       error -> <<>>
                   end,
            Announced = caravan_capability:announced(Packet),
            remember(Connection#connection{announced = Announced,
                                           hidden = caravan_capability:hidden(Packet),
                                           peer_name = Name}),
            Result;
        {{ok, [$r | _] = Packet}, #connection{announced = true} = Connection} ->
            remember(Connection#connection{peer = caravan_capability:parse(reply, Packet)}),
            {ok, binary_to_list(caravan_capability:strip(Packet))};
        {{ok, [$N | _] = Packet} = Result, #connection{role = initiator} = Connection} ->
            Peer = caravan_capability:parse(challenge, Packet),
            remember(Connection#connection{peer = Peer,
                                           hidden = caravan_capability:hidden(Packet)}),
            Result;
        {{ok, [$s | _] = Packet} = Result, #connection{role = initiator} = Connection} ->
            case caravan_capability:assigned_name(Packet) of
                {ok, Name} -> remember(Connection#connection{me = Name});
                error -> ok
            end,
            Result;
        {Result, _} ->
            Result
    end.

%% Both sides have checked the cookies. dist_util has cancelled its timer, so the time limit from
%% here on is ours.
-spec pre_nodeup(inet:socket()) -> ok | {error, term()}.
pre_nodeup(Socket) ->
    #connection{role = Role, inet = Inet, options = Options, peer = Peer} = Connection = recall(),
    Here = here(Connection),
    case caravan_transport:choose(Here, Peer) of
        {attempt, Rounds, Declined} ->
            Link = #{rounds => Rounds, sealed => caravan_transport:is_sealed(Here, Peer)},
            case caravan_link:agree(Role, Inet, Socket, labels(Connection), Options, Link) of
                {error, Why} ->
                    ?LOG_ERROR("caravan: no link to ~ts: ~tp while agreeing on the transport",
                               [Connection#connection.peer_name, Why]),
                    {error, Why};
                {tcp, More} ->
                    settle(Connection, Socket,
                           caravan_transport:settle(Here, Peer, tcp, Declined ++ More));
                {Transport, Port, More} ->
                    settle(Connection#connection{port = Port,
                                                 device = caravan_driver:device(Port)}, Socket,
                           caravan_transport:settle(Here, Peer, Transport, Declined ++ More))
            end;
        Choice ->
            settle(Connection, Socket, Choice)
    end.

-spec getll(inet:socket()) -> {ok, port()} | {error, term()}.
getll(Socket) ->
    #connection{transport = Transport, port = Port, device = Device, reason = Reason,
                options = Options} = Connection = recall(),
    LinkPort = case Transport of
                   tcp when Connection#connection.driver =:= ok ->
                       caravan_link:counters_port(labels(Connection), Options, Reason);
                   tcp -> undefined;
                   _ -> Port
               end,
    %% On the accepting side, the peer's name came in its first packet or was assigned by us, and
    %% dist_util has checked it.
    caravan_links:up(#{node => binary_to_atom(Connection#connection.peer_name),
                       transport => Transport, reason => Reason, device => Device,
                       socket => Socket, port => LinkPort,
                       ring_bytes => maps:get(ring_bytes, Options)}),
    case Transport of
        tcp -> inet:getll(Socket);
        _ -> {ok, Port}
    end.

-spec accepted_address(caravan_tcp:inet(), inet:socket(), node()) -> caravan_tcp:address().
accepted_address(Inet, Socket, Node) ->
    case caravan_tcp:peer_address(Inet, Socket, Node) of
        {ok, Address} -> Address;
        {error, _} -> ?shutdown(no_node)
    end.

-spec post_nodeup(inet:socket()) -> ok | {error, term()}.
post_nodeup(Socket) ->
    case recall() of
        #connection{transport = tcp} -> caravan_tcp:traffic_options(Socket);
        #connection{} -> ok
    end.

-spec handshake_complete(inet:socket(), node(), term()) -> ok.
handshake_complete(Socket, _Node, _DHandle) ->
    Connection = recall(),
    log(Connection),
    case Connection of
        #connection{transport = tcp} ->
            ok;
        #connection{port = Port, peer_name = Name} ->
            _ = caravan_poller:start_link(Port, Socket, Name),
            ok
    end.

%% @private
-spec tick(inet:socket()) -> ok | {error, term()}.
tick(Socket) ->
    Result = case recall() of
                 #connection{transport = tcp, inet = Inet} -> caravan_tcp:tick(Inet, Socket);
                 #connection{port = Port} -> caravan_driver:tick(Port)
             end,
    case Result of
        ok -> ok;
        {error, _} ->
            self() ! {tcp_closed, Socket},
            Result
    end.

%% @private
-spec getstat(inet:socket()) ->
          {ok, non_neg_integer(), non_neg_integer(), non_neg_integer()} | {error, term()}.
getstat(Socket) ->
    case recall() of
        #connection{transport = tcp} -> caravan_tcp:getstat(Socket);
        #connection{port = Port} -> caravan_driver:stat(Port)
    end.

%% ---------------------------------------------------------------------------------------------

-spec remember(#connection{}) -> ok.
remember(Connection) ->
    put(?KEY, Connection),
    ok.

-spec recall() -> #connection{}.
recall() ->
    get(?KEY).

%% Reads the options for each connection, so that a changed environment takes effect with the next.
-spec options() -> caravan_options:options().
options() ->
    case caravan_options:read() of
        {ok, Options} -> Options;
        {error, Sentence} ->
            ?LOG_ERROR("caravan: cannot set up a connection: ~ts", [Sentence]),
            ?shutdown(no_node)
    end.

%% Refuses before the packet after which the other side may report nodeup. If this side refused
%% later, the other side would see a node come up and go down.
-spec refuse_early(#connection{}) -> ok.
refuse_early(#connection{peer = Peer} = Connection) ->
    case caravan_transport:choose(here(Connection), Peer) of
        {refuse, Why} -> refuse(Connection, Why);
        _ -> ok
    end.

-spec refuse(#connection{}, binary()) -> no_return().
refuse(#connection{peer_name = Name}, Why) ->
    ?LOG_ERROR("caravan: no link to ~ts: ~ts", [Name, Why]),
    ?shutdown(no_node).

-spec settle(#connection{}, inet:socket(),
             {caravan_transport:transport(), binary()} | {refuse, binary()}) ->
          ok | {error, term()}.
settle(Connection, _, {refuse, Why}) ->
    refuse(Connection, Why);
settle(#connection{port = Port} = Connection, Socket, {Transport, Why}) ->
    _ = [caravan_driver:reason(Port, Why) || Transport =/= tcp],
    remember(Connection#connection{transport = Transport, reason = Why}),
    %% Even if the socket will be idle, net_kernel:setopts/2 and getopts/2 act on it.
    caravan_tcp:setup_options(Socket).

-spec here(#connection{}) -> caravan_transport:here().
here(#connection{options = #{transport := Named, encrypt := Encrypt}, driver = Driver}) ->
    #{named => Named, encrypt => Encrypt, driver => Driver}.

-spec labels(#connection{}) -> caravan_link:labels().
labels(#connection{me = Me, peer_name = Peer}) ->
    #{me => Me, peer => Peer}.

%% Logs the transport. The level is debug if a better transport is not possible: for shared memory,
%% and for TCP to a hidden node that does not speak Caravan, such as erl_call or a C node.
-spec log(#connection{}) -> ok.
log(#connection{transport = shm, peer_name = Name}) ->
    ?LOG_DEBUG("caravan: shared memory to ~ts", [Name]);
log(#connection{transport = rdma, peer_name = Name, device = Device, reason = Reason} = C) ->
    Sealed = case caravan_transport:is_sealed(here(C), C#connection.peer) of
                 true -> "encrypted RDMA";
                 false -> "RDMA"
             end,
    ?LOG_INFO("caravan: ~ts to ~ts over ~ts; ~ts", [Sealed, Name, Device, Reason]);
log(#connection{transport = tcp, peer_name = Name, reason = Reason, peer = none, hidden = true}) ->
    ?LOG_DEBUG("caravan: TCP to ~ts: ~ts", [Name, Reason]);
log(#connection{transport = tcp, peer_name = Name, reason = Reason}) ->
    ?LOG_NOTICE("caravan: TCP to ~ts: ~ts", [Name, Reason]).

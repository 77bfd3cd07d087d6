%% @doc The TCP side of a connection: listening, accepting, connecting, and the socket options.
%%
%% It works as `inet_tcp_dist' does, with the same parameters of `kernel': `inet_dist_listen_min',
%% `inet_dist_use_interface' and the others. `Inet' is always `inet_tcp' or `inet6_tcp'.
-module(caravan_tcp).

-include_lib("kernel/include/net_address.hrl").

-export([address/1, listen/3, accept_loop/3, own/1, connect/3]).
-export([peer_allowed/2, peer_address/3, setup_options/1, traffic_options/1]).
-export([setopts/2, getopts/2, tick/2, getstat/1]).
-export_type([inet/0, address/0]).

-type inet() :: inet_tcp | inet6_tcp.
-type address() :: #net_address{}.

%% @doc Returns the address of this node, as far as it is known without a listening socket.
-spec address(inet()) -> address().
address(Inet) ->
    {ok, Host} = inet:gethostname(),
    #net_address{host = Host, protocol = tcp, family = Inet:family()}.

%% @doc Listens, and registers the port under the node's name.
-spec listen(inet(), atom() | string(), string()) ->
          {ok, {inet:socket(), address(), Creation :: integer()}} | {error, term()}.
listen(Inet, Name, Host) ->
    {ok, Port} = caravan_locate:epmd(listen_port_please, [Name, Host]),
    {First, Last} = case Port of
                        0 -> port_range();
                        _ -> {Port, Port}
                    end,
    case listen_in_range(Inet, First, Last, listen_options()) of
        {ok, Socket} ->
            {ok, {_, Chosen} = Bound} = inet:sockname(Socket),
            case (net_kernel:epmd_module()):register_node(Name, Chosen, Inet) of
                {ok, Creation} ->
                    {ok, {Socket, (address(Inet))#net_address{address = Bound}, Creation}};
                Error ->
                    Inet:close(Socket),
                    Error
            end;
        Error ->
            Error
    end.

%% @doc Accepts connections. It runs in a process of its own as long as the node listens.
-spec accept_loop(inet(), Kernel :: pid(), inet:socket()) -> no_return().
accept_loop(Inet, Kernel, Listener) ->
    case Inet:accept(Listener) of
        {ok, Socket} ->
            Kernel ! {accept, self(), Socket, Inet:family(), tcp},
            receive
                {Kernel, controller, Owner} ->
                    _ = Inet:controlling_process(Socket, Owner),
                    Owner ! {self(), controller};
                {Kernel, unsupported_protocol} ->
                    exit(unsupported_protocol)
            end,
            accept_loop(Inet, Kernel, Listener);
        Error ->
            exit(Error)
    end.

%% @doc Waits until the accepting process has made the caller the socket's owner.
-spec own(Acceptor :: pid()) -> ok.
own(Acceptor) ->
    receive
        {Acceptor, controller} -> ok
    end.

%% @doc Connects with the options in `inet_dist_connect_options'.
-spec connect(inet(), term(), integer()) -> {ok, inet:socket()} | {error, term()}.
connect(Inet, Ip, Port) ->
    Inet:connect(Ip, Port, application:get_env(kernel, inet_dist_connect_options, [])
                 ++ [{active, false}, {packet, 2}]).

%% @doc Checks whether a peer may connect. If the parameter `check_ip' of `kernel' is true, only
%% hosts on a network in which this host has an address may.
-spec peer_allowed(inet(), inet:socket()) -> true | {false, term()}.
peer_allowed(Inet, Socket) ->
    case application:get_env(kernel, check_ip, false) of
        true ->
            {ok, {Peer, _}} = inet:peername(Socket),
            {ok, Interfaces} = inet:getifaddrs(),
            lists:any(fun({Address, Mask}) ->
                              tuple_size(Address) =:= tuple_size(Peer) andalso
                                  Inet:mask(Mask, Address) =:= Inet:mask(Mask, Peer)
                      end, lists:append([networks(Flags) || {_, Flags} <- Interfaces]))
                orelse {false, Peer};
        _ ->
            true
    end.

%% @doc Returns the address of an accepted connection's peer, for `net_kernel'.
-spec peer_address(inet(), inet:socket(), node()) -> {ok, address()} | {error, term()}.
peer_address(Inet, Socket, Node) ->
    case {inet:peername(Socket), string:split(atom_to_list(Node), "@", all)} of
        {{ok, Address}, [_, Host]} ->
            {ok, #net_address{address = Address, host = Host, protocol = tcp,
                              family = Inet:family()}};
        {{ok, _}, _} -> {error, not_a_node_name};
        {Error, _} -> Error
    end.

%% @doc Sets the options for the time between handshake and nodeup.
-spec setup_options(inet:socket()) -> ok | {error, term()}.
setup_options(Socket) ->
    inet:setopts(Socket, [{active, false}, {packet, 4}, nodelay()]).

%% @doc Sets the options with which the socket passes data to the emulator by itself.
-spec traffic_options(inet:socket()) -> ok | {error, term()}.
traffic_options(Socket) ->
    inet:setopts(Socket, [{active, true}, {deliver, port}, {packet, 4}, binary, nodelay()]).

%% @doc Implements `net_kernel:setopts/2'. Refuses the options on which the distribution depends.
-spec setopts(inet:socket(), [term()]) -> ok | {error, term()}.
setopts(Socket, Options) ->
    case [Option || {Name, _} = Option <- Options, lists:member(Name, [active, deliver, packet])] of
        [] -> inet:setopts(Socket, Options);
        Ours -> {error, {badopts, Ours}}
    end.

%% @doc Implements `net_kernel:getopts/2'.
-spec getopts(inet:socket(), [term()]) -> {ok, [term()]} | {error, term()}.
getopts(Socket, Options) ->
    inet:getopts(Socket, Options).

%% @doc Sends an empty packet, even if the socket is busy.
-spec tick(inet(), inet:socket()) -> ok | {error, term()}.
tick(Inet, Socket) ->
    Inet:send(Socket, [], [force]).

%% @doc Returns the packets received, the packets sent and the bytes queued.
-spec getstat(inet:socket()) ->
          {ok, non_neg_integer(), non_neg_integer(), non_neg_integer()} | {error, term()}.
getstat(Socket) ->
    case inet:getstat(Socket, [recv_cnt, send_cnt, send_pend]) of
        {ok, Counts} ->
            #{recv_cnt := Received, send_cnt := Sent, send_pend := Pending} =
                maps:from_list(Counts),
            {ok, Received, Sent, Pending};
        Error ->
            Error
    end.

%% ---------------------------------------------------------------------------------------------

-spec port_range() -> {integer(), integer()}.
port_range() ->
    case application:get_env(kernel, inet_dist_listen_min) of
        {ok, First} when is_integer(First) ->
            case application:get_env(kernel, inet_dist_listen_max) of
                {ok, Last} when is_integer(Last) -> {First, Last};
                _ -> {First, First}
            end;
        _ ->
            {0, 0}
    end.

-spec listen_in_range(inet(), integer(), integer(), [term()]) ->
          {ok, inet:socket()} | {error, term()}.
listen_in_range(_, First, Last, _) when First > Last ->
    {error, eaddrinuse};
listen_in_range(Inet, First, Last, Options) ->
    case Inet:listen(First, Options) of
        {error, eaddrinuse} -> listen_in_range(Inet, First + 1, Last, Options);
        Result -> Result
    end.

%% Returns our defaults, the user's options and those on which the handshake depends. The user's
%% replace our defaults, and the handshake's replace both.
-spec listen_options() -> [term()].
listen_options() ->
    Forced = case application:get_env(kernel, inet_dist_use_interface) of
                 {ok, Ip} -> [{ip, Ip}];
                 undefined -> []
             end ++ [{active, false}, {packet, 2}],
    User = [Option || Option <- application:get_env(kernel, inet_dist_listen_options, []),
                      not (is_tuple(Option) andalso tuple_size(Option) =:= 2
                           andalso lists:keymember(element(1, Option), 1, Forced))],
    Defaults = [Option || {Name, _} = Option <- [{reuseaddr, true}, {backlog, 128}],
                          not lists:keymember(Name, 1, User)],
    Defaults ++ User ++ Forced.

-spec nodelay() -> {nodelay, boolean()}.
nodelay() ->
    {nodelay, application:get_env(kernel, dist_nodelay, true) =/= false}.

%% Returns the addresses and netmasks in an interface's flags, which have the form
%% [..., {addr, A}, {netmask, M}, ...] with one pair for each address.
-spec networks([term()]) -> [{tuple(), tuple()}].
networks([{addr, Address} | Rest]) ->
    case lists:keyfind(netmask, 1, Rest) of
        {netmask, Mask} when tuple_size(Mask) =:= tuple_size(Address) ->
            [{Address, Mask} | networks(Rest)];
        _ -> networks(Rest)
    end;
networks([_ | Rest]) -> networks(Rest);
networks([]) -> [].

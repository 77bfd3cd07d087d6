%% @doc Erlang's distribution over shared memory, RDMA or TCP. Two nodes that speak Caravan use
%% shared memory if they run on one host under the same user, and RDMA if both hosts have a device
%% and reach each other through it. All other links use TCP. Start a node with
%% ```
%% erl -sname a -proto_dist caravan -pa /path/to/caravan/ebin
%% '''
%% or put the same flags into `vm.args'. Give `-proto_dist' once: with two such flags Erlang/OTP 25
%% ignores both, and the node uses plain TCP. {@link caravan_options} describes the options.
%%
%% The callbacks below are those of a distribution module ("How to Implement an Alternative
%% Carrier for the Erlang Distribution" in the ERTS User's Guide).
-module(caravan_dist).

-include_lib("kernel/include/logger.hrl").

-export([info/0, info/1]).
-export([childspecs/0, select/1, is_node_name/1, address/0, listen/1, listen/2, accept/1,
         accept_connection/5, setup/5, close/1, setopts/2, getopts/2]).
-export([family_address/1, listen/3, accept/2, accept_connection/6, setup/6]).
-export([warn_of_doubled_flag/0]).

%% @doc Returns the state of each link of this node, as {@link info/1} does for one.
-spec info() -> [{node(), map()}].
info() ->
    warn_of_doubled_flag(),
    caravan_links:info().

%% @doc Returns the state of the link to one node, or `undefined' if there is none.
%%
%% `transport' is `shm', `rdma' or `tcp', and `reason' says why it is not a better one. `device'
%% names the RDMA device and both addresses; it is empty for the other transports. The other
%% values are numbers, and zero if the transport does not count them: `sent_bytes',
%% `received_bytes', `sent_messages', `received_messages', `ring_bytes', `outbound_used_bytes',
%% `inbound_used_bytes', `queued_bytes' (in the driver, while the ring is full), `wakeups_sent',
%% `wakeups_received', `spins', `spin_hits', `busy_ns' and `busy_count' (how long and how often
%% senders were suspended), `doorbells' (times that work was given to the RDMA device),
%% `completions' (completions taken from it), `registered_bytes' (memory that it may reach).
-spec info(node()) -> map() | undefined.
info(Node) ->
    case lists:keyfind(Node, 1, info()) of
        {Node, Info} -> Info;
        false -> undefined
    end.

%% @doc Called by `erl_distribution' when the distribution starts, before `net_kernel' starts.
-spec childspecs() -> {ok, [supervisor:child_spec()]}.
childspecs() ->
    {ok, [#{id => caravan_links, start => {caravan_links, start_link, []}, restart => permanent,
            shutdown => 2000, type => worker, modules => [caravan_links]}]}.

%% @doc Called by `net_kernel' before it connects. Checks whether this module can reach the node.
-spec select(node()) -> boolean().
select(Node) ->
    caravan_locate:reachable(inet_tcp, Node).

%% @doc Called by `erl_distribution' and others. Checks whether a term can be a node's name.
-spec is_node_name(term()) -> boolean().
is_node_name(Node) when is_atom(Node) ->
    case string:split(atom_to_list(Node), "@", all) of
        [_, _] -> true;
        _ -> false
    end;
is_node_name(_) ->
    false.

%% @doc Called by `net_kernel' if the node does not listen (`-dist_listen false').
-spec address() -> caravan_tcp:address().
address() ->
    family_address(inet_tcp).

%% @doc Called by `net_kernel' when the distribution starts.
-spec listen(atom()) -> {ok, {inet:socket(), caravan_tcp:address(), integer()}} | {error, term()}.
listen(Name) ->
    {ok, Host} = inet:gethostname(),
    listen(Name, Host).

%% @doc Called by `net_kernel' when the distribution starts.
-spec listen(atom(), string()) ->
          {ok, {inet:socket(), caravan_tcp:address(), integer()}} | {error, term()}.
listen(Name, Host) ->
    listen(inet_tcp, Name, Host).

%% @doc Called by `net_kernel' after `listen'. Starts the process that accepts connections.
-spec accept(inet:socket()) -> pid().
accept(Listener) ->
    accept(inet_tcp, Listener).

%% @doc Called by `net_kernel' for each accepted socket. Starts the connection's process.
-spec accept_connection(pid(), inet:socket(), node(), list(), pos_integer()) -> pid().
accept_connection(Acceptor, Socket, MyNode, Allowed, SetupTime) ->
    accept_connection(inet_tcp, Acceptor, Socket, MyNode, Allowed, SetupTime).

%% @doc Called by `net_kernel' to connect. Starts the connection's process.
-spec setup(node(), term(), node(), longnames | shortnames, pos_integer()) -> pid().
setup(Node, Type, MyNode, Names, SetupTime) ->
    setup(inet_tcp, Node, Type, MyNode, Names, SetupTime).

%% @doc Called by `net_kernel' with the listening socket when the distribution stops.
-spec close(inet:socket()) -> ok.
close(Socket) ->
    inet_tcp:close(Socket).

%% @doc Called by `net_kernel:setopts/2' for listening sockets.
-spec setopts(inet:socket(), [term()]) -> ok | {error, term()}.
setopts(Socket, Options) ->
    caravan_tcp:setopts(Socket, Options).

%% @doc Called by `net_kernel:getopts/2'.
-spec getopts(inet:socket(), [term()]) -> {ok, [term()]} | {error, term()}.
getopts(Socket, Options) ->
    caravan_tcp:getopts(Socket, Options).

%% ---------------------------------------------------------------------------------------------
%% The same callbacks for either address family. caravan6_dist calls these, too.

%% @private
-spec family_address(caravan_tcp:inet()) -> caravan_tcp:address().
family_address(Inet) ->
    case caravan_options:read() of
        {ok, _} -> caravan_tcp:address(Inet);
        {error, Sentence} -> error({caravan, Sentence})
    end.

%% @private
%% An error ends the boot of a node that was started with -name or -sname, and the node prints the
%% sentence. net_kernel:start/2 returns the error.
-spec listen(caravan_tcp:inet(), atom(), string()) ->
          {ok, {inet:socket(), caravan_tcp:address(), integer()}} | {error, term()}.
listen(Inet, Name, Host) ->
    case caravan_options:read() of
        {ok, _} -> caravan_tcp:listen(Inet, Name, Host);
        {error, Sentence} -> {error, Sentence}
    end.

%% @private
-spec accept(caravan_tcp:inet(), inet:socket()) -> pid().
accept(Inet, Listener) ->
    spawn_opt(caravan_tcp, accept_loop, [Inet, self(), Listener], [link, {priority, max}]).

%% @private
-spec accept_connection(caravan_tcp:inet(), pid(), inet:socket(), node(), list(), pos_integer()) ->
          pid().
accept_connection(Inet, Acceptor, Socket, MyNode, Allowed, SetupTime) ->
    spawn_opt(caravan_handshake, accept,
              [Inet, self(), Acceptor, Socket, MyNode, Allowed, SetupTime],
              dist_util:net_ticker_spawn_options()).

%% @private
-spec setup(caravan_tcp:inet(), node(), term(), node(), longnames | shortnames, pos_integer()) ->
          pid().
setup(Inet, Node, Type, MyNode, Names, SetupTime) ->
    spawn_opt(caravan_handshake, setup,
              [Inet, self(), Node, Type, MyNode, Names, SetupTime],
              dist_util:net_ticker_spawn_options()).

%% @private
-spec warn_of_doubled_flag() -> ok.
warn_of_doubled_flag() ->
    case {whereis(caravan_links), caravan_options:doubled_proto_dist(init:get_argument(proto_dist))} of
        {undefined, {warning, Sentence}} -> ?LOG_WARNING("caravan: ~ts", [Sentence]);
        _ -> ok
    end.

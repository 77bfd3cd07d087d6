%% @doc {@link caravan_dist} with IPv6 for the handshake and for the links that use TCP. Start a node with
%% ```
%% erl -name a@::1 -proto_dist caravan6 -pa /path/to/caravan/ebin
%% '''
-module(caravan6_dist).

-export([childspecs/0, select/1, is_node_name/1, address/0, listen/1, listen/2, accept/1,
         accept_connection/5, setup/5, close/1, setopts/2, getopts/2]).

%% @doc See {@link caravan_dist:childspecs/0}.
-spec childspecs() -> {ok, [supervisor:child_spec()]}.
childspecs() ->
    %% With `-proto_dist caravan caravan6', caravan_dist starts caravan_links for both.
    case init:get_argument(proto_dist) of
        {ok, [Names]} ->
            case lists:member("caravan", Names) of
                true -> {ok, []};
                false -> caravan_dist:childspecs()
            end;
        _ ->
            caravan_dist:childspecs()
    end.

%% @doc See {@link caravan_dist:select/1}.
-spec select(node()) -> boolean().
select(Node) ->
    caravan_locate:reachable(inet6_tcp, Node).

%% @doc See {@link caravan_dist:is_node_name/1}.
-spec is_node_name(term()) -> boolean().
is_node_name(Node) ->
    caravan_dist:is_node_name(Node).

%% @doc See {@link caravan_dist:address/0}.
-spec address() -> caravan_tcp:address().
address() ->
    caravan_dist:family_address(inet6_tcp).

%% @doc See {@link caravan_dist:listen/1}.
-spec listen(atom()) -> {ok, {inet:socket(), caravan_tcp:address(), integer()}} | {error, term()}.
listen(Name) ->
    {ok, Host} = inet:gethostname(),
    listen(Name, Host).

%% @doc See {@link caravan_dist:listen/2}.
-spec listen(atom(), string()) ->
          {ok, {inet:socket(), caravan_tcp:address(), integer()}} | {error, term()}.
listen(Name, Host) ->
    caravan_dist:listen(inet6_tcp, Name, Host).

%% @doc See {@link caravan_dist:accept/1}.
-spec accept(inet:socket()) -> pid().
accept(Listener) ->
    caravan_dist:accept(inet6_tcp, Listener).

%% @doc See {@link caravan_dist:accept_connection/5}.
-spec accept_connection(pid(), inet:socket(), node(), list(), pos_integer()) -> pid().
accept_connection(Acceptor, Socket, MyNode, Allowed, SetupTime) ->
    caravan_dist:accept_connection(inet6_tcp, Acceptor, Socket, MyNode, Allowed, SetupTime).

%% @doc See {@link caravan_dist:setup/5}.
-spec setup(node(), term(), node(), longnames | shortnames, pos_integer()) -> pid().
setup(Node, Type, MyNode, Names, SetupTime) ->
    caravan_dist:setup(inet6_tcp, Node, Type, MyNode, Names, SetupTime).

%% @doc See {@link caravan_dist:close/1}.
-spec close(inet:socket()) -> ok.
close(Socket) ->
    inet6_tcp:close(Socket).

%% @doc See {@link caravan_dist:setopts/2}.
-spec setopts(inet:socket(), [term()]) -> ok | {error, term()}.
setopts(Socket, Options) ->
    caravan_tcp:setopts(Socket, Options).

%% @doc See {@link caravan_dist:getopts/2}.
-spec getopts(inet:socket(), [term()]) -> {ok, [term()]} | {error, term()}.
getopts(Socket, Options) ->
    caravan_tcp:getopts(Socket, Options).

%% @doc The port mapper of the benchmark's nodes: `erl -epmd_module caravan_bench_epmd'.
%%
%% `caravan bench' starts all nodes and sends each node the ports of the others, so the
%% benchmark needs no epmd and does not disturb one that runs.
-module(caravan_bench_epmd).

-export([start_link/0, register_node/2, register_node/3, address_please/3, port_please/2,
         port_please/3, names/0, names/1]).
-export([set_peers/1, port/0]).

%% The protocol version of the handshake (OTP 23 and later), as epmd would answer.
-define(VERSION, 6).

%% Called by the supervisor of the distribution. Starts no process.
-spec start_link() -> ignore.
start_link() -> ignore.

%% Called by the distribution module when it listens.
-spec register_node(string() | atom(), inet:port_number()) -> {ok, -1}.
register_node(Name, Port) -> register_node(Name, Port, inet).

%% -1 lets the emulator choose the node's creation.
-spec register_node(string() | atom(), inet:port_number(), atom()) -> {ok, -1}.
register_node(_Name, Port, _Family) ->
    persistent_term:put({?MODULE, port}, Port),
    {ok, -1}.

%% Called by the distribution module before it connects.
-spec address_please(string(), string(), atom()) ->
          {ok, inet:ip_address(), inet:port_number(), pos_integer()} | {error, term()}.
address_please(Name, Host, Family) ->
    case inet:getaddr(Host, Family) of
        {ok, Address} ->
            case port_please(Name, Address) of
                {port, Port, Version} -> {ok, Address, Port, Version};
                noport -> {error, noport}
            end;
        Error -> Error
    end.

-spec port_please(string() | atom(), term()) ->
          {port, inet:port_number(), pos_integer()} | noport.
port_please(Name, _Host) ->
    case maps:find(to_string(Name), persistent_term:get({?MODULE, peers}, #{})) of
        {ok, Port} -> {port, Port, ?VERSION};
        error -> noport
    end.

-spec port_please(string() | atom(), term(), timeout()) ->
          {port, inet:port_number(), pos_integer()} | noport.
port_please(Name, Host, _Timeout) -> port_please(Name, Host).

-spec names() -> {error, address}.
names() -> {error, address}.

-spec names(term()) -> {error, address}.
names(_Host) -> {error, address}.

%% Sets the names and ports of the other nodes: `[{"bench1@127.0.0.1", "40001"}]'.
-spec set_peers([{string(), string()}]) -> ok.
set_peers(Peers) ->
    Ports = [{hd(string:split(Node, "@")), list_to_integer(Port)} || {Node, Port} <- Peers],
    persistent_term:put({?MODULE, peers}, maps:from_list(Ports)).

%% Returns the port on which this node listens.
-spec port() -> inet:port_number().
port() -> persistent_term:get({?MODULE, port}).

to_string(Name) when is_atom(Name) -> atom_to_list(Name);
to_string(Name) -> Name.

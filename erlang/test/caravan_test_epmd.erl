%% An epmd module with no epmd behind it: a node's port is in its name, port_NUMBER@host.
-module(caravan_test_epmd).

-export([start_link/0, register_node/3, port_please/2, address_please/3, listen_port_please/2,
         names/1]).

start_link() ->
    {ok, spawn_link(fun() -> receive stop -> ok end end)}.

register_node(_Name, _Port, _Inet) ->
    {ok, rand:uniform(1 bsl 20) + 4}.

listen_port_please(Name, _Host) ->
    {ok, port(Name)}.

port_please(Name, _Ip) ->
    {port, port(Name), 6}.

address_please(Name, Host, Family) ->
    {ok, Ip} = inet:getaddr(Host, Family),
    {ok, Ip, port(Name), 6}.

names(_Host) ->
    {error, address}.

port(Name) when is_atom(Name) -> port(atom_to_list(Name));
port("port_" ++ Number) -> list_to_integer(Number).

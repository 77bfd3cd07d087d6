%% @doc The connections of one benchmark node, and the counters that prove what carried them.
-module(caravan_bench_links).

-export([connect/1, counts/1]).

%% Connects to every node named, or fails with the name of the one that cannot be reached.
-spec connect([node()]) -> ok.
connect(Nodes) ->
    lists:foreach(fun(Node) ->
                          case net_kernel:connect_node(Node) of
                              true -> ok;
                              _ -> error({cannot_connect_to, Node})
                          end
                  end, Nodes).

%% One word for each peer: `peer,transport,sent_messages,received_messages,sent_bytes,received_bytes'.
-spec counts([node()]) -> [iodata()].
counts(Nodes) -> [count(Node) || Node <- Nodes].

count(Node) ->
    {Transport, Counts} = carried(Node, proplists:get_value(Node, erlang:system_info(dist_ctrl))),
    lists:join($,, [atom_to_list(Node), Transport | [integer_to_list(C) || C <- Counts]]).

%% Asked of what the emulator itself holds as the connection's controller: an inet
%% socket's port is plain TCP, whatever the flags said; anything else must be known
%% to the carrier.
carried(Node, undefined) ->
    error({not_connected_to, Node});
carried(Node, Controller) ->
    case is_port(Controller) andalso erlang:port_info(Controller, name) of
        {name, "tcp_inet"} -> tcp(Node, Controller);
        _ -> caravan(Node)
    end.

tcp(Node, Socket) ->
    Transport = case erlang:function_exported(caravan_dist, info, 1) of
                    true -> maps:get(transport, caravan_dist:info(Node), inet_tcp);
                    false -> inet_tcp
                end,
    Keys = [send_cnt, recv_cnt, send_oct, recv_oct],
    {ok, Counts} = inet:getstat(Socket, Keys),
    {atom_to_list(Transport), [proplists:get_value(K, Counts) || K <- Keys]}.

caravan(Node) ->
    Info = caravan_dist:info(Node),
    Keys = [sent_messages, received_messages, sent_bytes, received_bytes],
    {atom_to_list(maps:get(transport, Info)), [maps:get(K, Info) || K <- Keys]}.

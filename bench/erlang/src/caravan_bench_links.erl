%% @doc The connections of one benchmark node, and the counters that prove which transport
%% carried them.
-module(caravan_bench_links).

-export([connect/1, counts/1]).

%% Connects to every node, or fails with the name of a node that it cannot reach.
-spec connect([node()]) -> ok.
connect(Nodes) ->
    lists:foreach(fun(Node) ->
                          case net_kernel:connect_node(Node) of
                              true -> ok;
                              _ -> error({cannot_connect_to, Node})
                          end
                  end, Nodes).

%% Returns one word for each peer: `peer,transport,sent_messages,received_messages,sent_bytes,received_bytes'.
-spec counts([node()]) -> [iodata()].
counts(Nodes) -> [count(Node) || Node <- Nodes].

count(Node) ->
    {Transport, Counts} = transport_and_counts(Node, proplists:get_value(Node, erlang:system_info(dist_ctrl))),
    lists:join($,, [atom_to_list(Node), Transport | [integer_to_list(C) || C <- Counts]]).

%% Looks at the emulator's own controller of the connection: the port of an inet socket
%% means TCP, whatever the flags of the node were. Anything else must be a link of Caravan.
transport_and_counts(Node, undefined) ->
    error({not_connected_to, Node});
transport_and_counts(Node, Controller) ->
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

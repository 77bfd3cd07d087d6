%% Everything that distribution is used for, between two nodes, over shared memory, over Caravan's
%% TCP, and over IPv6.
-module(carrier_basic_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([messages/1, order/1, links/1, monitors/1, exits/1, spawns/1, groups_of_processes/1,
         funs/1, atoms/1, aliases/1, big_binaries/1, fragments/1, fragments_interleave/1,
         nosuspend/1, noconnect/1, hidden/1, cookies/1, disconnects/1, node_monitors/1, ticks/1,
         socket_options/1]).
-export([echo/0]).

-import(caravan_cluster, [call/2, call/4, name/1, with/2]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [{group, shm}, {group, tcp}, {group, shm6}, {group, no_fragments}].

groups() ->
    Cases = [messages, order, links, monitors, exits, spawns, groups_of_processes, funs, atoms,
             aliases, nosuspend, noconnect, hidden, cookies, disconnects, node_monitors, ticks,
             socket_options, big_binaries, fragments, fragments_interleave],
    [{shm, [], Cases}, {tcp, [], Cases}, {shm6, [], [messages, links, big_binaries, disconnects]},
     {no_fragments, [], [messages, big_binaries, fragments, fragments_interleave]}].

init_per_group(Group, Config) ->
    Options = case Group of
                  shm -> #{transport => shm};
                  tcp -> #{transport => tcp};
                  shm6 -> #{transport => shm, carrier => caravan6, longnames => true,
                            host => "::1"};
                  no_fragments -> #{transport => shm, args => ["-caravan", "fragments", "false"]}
              end,
    Global = Options#{connect_all => true},
    [A, B] = caravan_cluster:start_all([Global, Global]),
    true = caravan_cluster:connect(A, B),
    Transport = case Group of tcp -> tcp; _ -> shm end,
    Transport = caravan_cluster:transport(A, B),
    Transport = caravan_cluster:transport(B, A),
    [{nodes, {A, B}}, {transport, Transport}, {options, Options} | Config].

end_per_group(_, Config) ->
    {A, B} = proplists:get_value(nodes, Config),
    caravan_cluster:stop([A, B]).

%% Runs a fun on the first node with the name of the second.
on_a(Config, Fun) ->
    {A, B} = proplists:get_value(nodes, Config),
    Node = name(B),
    call(A, fun() -> Fun(Node) end).

%% A process that sends back what it is sent.
echo() ->
    receive
        {echo, From, Term} -> From ! {echoed, Term}, echo();
        {exit, Reason} -> exit(Reason);
        stop -> ok
    end.

echoed(Pid, Term) ->
    Pid ! {echo, self(), Term},
    receive {echoed, Term} -> ok after 60000 -> error(no_echo) end.

messages(Config) ->
    on_a(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, echo, []),
        [ok = echoed(Pid, Term) ||
            Term <- [atom, "list", <<>>, <<1:3>>, 1.5, 1 bsl 70, -1, {}, [], [a | b], #{a => #{}},
                     make_ref(), self(), Pid, {node(), Node}, lists:seq(1, 10000),
                     list_to_tuple(lists:seq(1, 1000)), hd(erlang:ports())]],
        true = register(a_name, self()),
        spawn(Node, erlang, send, [{a_name, node()}, to_a_name]),
        receive to_a_name -> ok end,
        %% To a name that nobody has: silence, and the link stays.
        {nobody, Node} ! hello,
        Pid ! stop,
        unregister(a_name)
    end).

order(Config) ->
    on_a(Config, fun(Node) ->
        Self = self(),
        Count = 50000,
        Collector = spawn_link(Node, fun() ->
                                 [receive N -> ok; Other -> exit({expected, N, got, Other}) end
                                  || N <- lists:seq(1, Count)],
                                 Self ! in_order
                         end),
        [Collector ! N || N <- lists:seq(1, Count)],
        receive in_order -> ok end
    end).

links(Config) ->
    on_a(Config, fun(Node) ->
        process_flag(trap_exit, true),
        Pid = spawn_link(Node, ?MODULE, echo, []),
        Pid ! {exit, {some, reason}},
        receive {'EXIT', Pid, {some, reason}} -> ok end,
        %% The other direction, a late link, and an unlink.
        Local = spawn(fun() -> process_flag(trap_exit, true),
                               receive {'EXIT', From, Why} -> exit({got, From, Why}) end end),
        Monitor = monitor(process, Local),
        Remote = spawn(Node, fun() -> link(Local), receive {exit, Why} -> exit(Why) end end),
        Remote ! {exit, gone},
        receive {'DOWN', Monitor, process, Local, {got, Remote, gone}} -> ok end,
        Other = spawn_link(Node, ?MODULE, echo, []),
        unlink(Other),
        Fence = monitor(process, Other),
        Other ! {exit, unseen},
        receive {'DOWN', Fence, process, Other, unseen} -> ok end,
        link(Other),
        receive {'EXIT', Other, noproc} -> ok end
    end).

monitors(Config) ->
    on_a(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, echo, []),
        Monitor = monitor(process, Pid),
        Pid ! {exit, why},
        receive {'DOWN', Monitor, process, Pid, why} -> ok end,
        Gone = monitor(process, Pid),
        receive {'DOWN', Gone, process, Pid, noproc} -> ok end,
        ByName = monitor(process, {nobody, Node}),
        receive {'DOWN', ByName, process, {nobody, Node}, noproc} -> ok end,
        Another = spawn(Node, ?MODULE, echo, []),
        Cancelled = monitor(process, Another),
        true = demonitor(Cancelled, [flush]),
        Another ! stop,
        Fence = monitor(process, Another),
        receive {'DOWN', Fence, process, Another, _} -> ok end,
        receive {'DOWN', Cancelled, _, _, _} -> error(cancelled) after 0 -> ok end
    end).

exits(Config) ->
    on_a(Config, fun(Node) ->
        [begin
             Pid = spawn(Node, ?MODULE, echo, []),
             Monitor = monitor(process, Pid),
             exit(Pid, Reason),
             receive {'DOWN', Monitor, process, Pid, Seen} -> ok end
         end || {Reason, Seen} <- [{kill, killed}, {shutdown, shutdown},
                                   {{long, lists:seq(1, 1000)}, {long, lists:seq(1, 1000)}}]],
        Leader = spawn(Node, ?MODULE, echo, []),
        true = group_leader(Leader, spawn(Node, ?MODULE, echo, [])),
        Leader ! stop
    end).

spawns(Config) ->
    on_a(Config, fun(Node) ->
        Self = self(),
        {Pid, Monitor} = spawn_monitor(Node, erlang, exit, [spawned]),
        receive {'DOWN', Monitor, process, Pid, spawned} -> ok end,
        spawn_opt(Node, fun() -> Self ! {node, node()} end, [{priority, high}]),
        receive {node, Node} -> ok end,
        Request = spawn_request(Node, ?MODULE, echo, [], [monitor, {reply, yes}]),
        Requested = receive {spawn_reply, Request, ok, Started} -> Started end,
        Requested ! stop,
        receive {'DOWN', Request, process, Requested, normal} -> ok end,
        ?assertEqual(Node, erpc:call(Node, erlang, node, [])),
        ?assertEqual([Node], [R || {ok, R} <- erpc:multicall([Node], erlang, node, [])]),
        ?assertEqual(Node, rpc:call(Node, erlang, node, [])),
        ?assertError({exception, undef, _}, erpc:call(Node, no_such, function, []))
    end).

groups_of_processes(Config) ->
    {A, B} = proplists:get_value(nodes, Config),
    [call(N, fun() -> {ok, Pg} = pg:start(scope), unlink(Pg) end) || N <- [A, B]],
    Pid = call(B, fun() ->
                          Pid = spawn(?MODULE, echo, []),
                          ok = pg:join(scope, group, Pid),
                          yes = global:register_name({?MODULE, name}, Pid),
                          Pid
                  end),
    caravan_cluster:wait_until(fun() -> [Pid] =:= call(A, pg, get_members, [scope, group]) end),
    caravan_cluster:wait_until(
      fun() -> Pid =:= call(A, global, whereis_name, [{?MODULE, name}]) end),
    call(A, fun() -> ok = echoed(Pid, through_global) end),
    call(B, fun() -> exit(Pid, kill) end),
    caravan_cluster:wait_until(fun() -> [] =:= call(A, pg, get_members, [scope, group]) end),
    caravan_cluster:wait_until(
      fun() -> undefined =:= call(A, global, whereis_name, [{?MODULE, name}]) end).

funs(Config) ->
    on_a(Config, fun(Node) ->
        Captured = {captured, make_ref()},
        ?assertEqual({Captured, 3}, erpc:call(Node, fun() -> {Captured, 3} end)),
        ?assertEqual([2, 3], erpc:call(Node, fun() -> lists:map(fun(X) -> X + 1 end, [1, 2]) end)),
        ?assertEqual(4, (erpc:call(Node, fun() -> fun(X) -> X + 1 end end))(3)),
        ?assertEqual(fun lists:map/2, erpc:call(Node, fun() -> fun lists:map/2 end))
    end).

%% More of them than the atom cache has entries, again and again.
atoms(Config) ->
    on_a(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, echo, []),
        Atoms = [list_to_atom("caravan_" ++ integer_to_list(N)) || N <- lists:seq(1, 6000)],
        [ok = echoed(Pid, {Atom, lists:sublist(Atoms, rand:uniform(5990), 10)}) || Atom <- Atoms],
        ok = echoed(Pid, Atoms),
        ok = echoed(Pid, [list_to_atom([1488, 8364, C]) || C <- lists:seq($a, $z)])
    end).

aliases(Config) ->
    on_a(Config, fun(Node) ->
        Alias = alias([reply]),
        Pid = spawn(Node, fun() -> Alias ! first, Alias ! second, receive stop -> ok end end),
        receive first -> ok end,
        Monitor = monitor(process, Pid),
        Pid ! stop,
        receive {'DOWN', Monitor, process, Pid, _} -> ok end,
        receive second -> error(used_twice) after 0 -> ok end,
        %% As gen_server:call does it, with a reply that comes too late.
        Request = monitor(process, {net_kernel, Node}, [{alias, reply_demonitor}]),
        true = demonitor(Request, [flush]),
        {Late, Fence} = spawn_monitor(Node, fun() -> Request ! {Request, late} end),
        receive {'DOWN', Fence, process, Late, normal} -> ok end,
        receive {Request, late} -> error(late) after 0 -> ok end
    end).

big_binaries(Config) ->
    on_a(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, echo, []),
        [begin
             Binary = binary:copy(<<(rand:bytes(997))/binary>>, Bytes div 997 + 1),
             ok = echoed(Pid, {binary:part(Binary, 0, Bytes), Bytes})
         end || Bytes <- [63, 64, 65, 4096, 65535, 65536, 65537, 262144, 1 bsl 20, (1 bsl 20) + 1,
                          3000001, 1 bsl 24, 1 bsl 26]],
        %% Many in one message.
        Part = rand:bytes(70000),
        ok = echoed(Pid, lists:duplicate(100, Part)),
        ok = echoed(Pid, [binary:part(Part, N, 100) || N <- lists:seq(1, 60000, 100)]),
        Pid ! stop
    end).

fragments(Config) ->
    on_a(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, echo, []),
        %% Long terms with no binary in them, from several processes at once.
        Terms = [lists:seq(N, N + 200000) || N <- lists:seq(1, 4)],
        Runs = [spawn_monitor(fun() -> ok = echoed(Pid, Term) end) || Term <- Terms],
        [receive {'DOWN', Monitor, process, Runner, normal} -> ok end || {Runner, Monitor} <- Runs],
        %% A long exit reason.
        Monitor = monitor(process, Pid),
        Pid ! {exit, hd(Terms)},
        receive {'DOWN', Monitor, process, Pid, Reason} -> ?assertEqual(hd(Terms), Reason) end
    end).

%% A sender that dies with half of its message sent leaves the link in order.
fragments_interleave(Config) ->
    on_a(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, echo, []),
        Sink = spawn(Node, ?MODULE, echo, []),
        Big = binary:copy(<<7>>, 30000000),
        Senders = [spawn(fun() -> Sink ! {big, Big} end) || _ <- lists:seq(1, 10)],
        ok = echoed(Pid, before),
        [exit(Sender, kill) || Sender <- Senders],
        ok = echoed(Pid, afterwards),
        exit(Sink, kill),
        Pid ! stop
    end).

nosuspend(Config) ->
    on_a(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, echo, []),
        ok = erlang:send(Pid, {echo, self(), small}, [nosuspend]),
        receive {echoed, small} -> ok end,
        ok = erlang:send({nobody, Node}, hello, [nosuspend, noconnect]),
        true = erlang:send_nosuspend(Pid, {echo, self(), again}),
        receive {echoed, again} -> ok end,
        Pid ! stop
    end).

noconnect(Config) ->
    on_a(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, echo, []),
        ok = erlang:send(Pid, {echo, self(), connected}, [noconnect]),
        receive {echoed, connected} -> ok end,
        true = erlang:disconnect_node(Node),
        noconnect = erlang:send(Pid, lost, [noconnect]),
        ?assertEqual([], nodes()),
        %% A plain send connects again; the process outlived the link.
        ok = echoed(Pid, back),
        Pid ! stop
    end).

hidden(Config) ->
    {A, _} = proplists:get_value(nodes, Config),
    Options = proplists:get_value(options, Config),
    with([Options#{args => ["-hidden"]}], fun([Hidden]) ->
        true = caravan_cluster:connect(Hidden, A),
        ?assertEqual(proplists:get_value(transport, Config), caravan_cluster:transport(Hidden, A)),
        ?assert(lists:member(name(Hidden), call(A, erlang, nodes, [hidden]))),
        ?assertNot(lists:member(name(Hidden), call(A, erlang, nodes, []))),
        ?assertEqual(name(A), call(Hidden, erpc, call, [name(A), erlang, node, []]))
    end).

cookies(Config) ->
    {A, _} = proplists:get_value(nodes, Config),
    Options = proplists:get_value(options, Config),
    with([Options#{cookie => "another"}], fun([Other]) ->
        false = caravan_cluster:connect(Other, A),
        false = caravan_cluster:connect(A, Other),
        ?assertEqual([], call(Other, caravan_dist, info, [])),
        true = call(Other, erlang, set_cookie, [name(A), caravan_test]),
        true = caravan_cluster:connect(Other, A),
        ?assertEqual(proplists:get_value(transport, Config), caravan_cluster:transport(Other, A))
    end).

disconnects(Config) ->
    {A, B} = proplists:get_value(nodes, Config),
    true = caravan_cluster:connect(A, B),
    call(A, fun() ->
                    Node = name(B),
                    ok = net_kernel:monitor_nodes(true, [nodedown_reason]),
                    Pid = spawn_link(Node, ?MODULE, echo, []),
                    process_flag(trap_exit, true),
                    Monitor = monitor(process, Pid),
                    true = net_kernel:disconnect(Node),
                    receive {'EXIT', Pid, noconnection} -> ok end,
                    receive {'DOWN', Monitor, process, Pid, noconnection} -> ok end,
                    receive {nodedown, Node, [{nodedown_reason, disconnect}]} -> ok end,
                    ?assertEqual(undefined, caravan_dist:info(Node)),
                    true = net_kernel:connect_node(Node),
                    receive {nodeup, Node, _} -> ok end,
                    net_kernel:monitor_nodes(false, [nodedown_reason])
            end),
    ?assertEqual(proplists:get_value(transport, Config), caravan_cluster:transport(A, B)).

node_monitors(Config) ->
    {A, _} = proplists:get_value(nodes, Config),
    Options = proplists:get_value(options, Config),
    Third = caravan_cluster:start(Options),
    Name = name(Third),
    Self = self(),
    spawn_link(fun() ->
                       Self ! {seen,
                               call(A, fun() ->
                                               true = net_kernel:connect_node(Name),
                                               true = monitor_node(Name, true),
                                               ok = net_kernel:monitor_nodes(true),
                                               true = register(node_watcher, self()),
                                               receive {nodedown, Name} -> ok end,
                                               receive {nodedown, Name} -> ok end
                                       end)}
               end),
    caravan_cluster:wait_until(fun() -> is_pid(call(A, erlang, whereis, [node_watcher])) end),
    %% An orderly halt.
    catch call(Third, erlang, halt, []),
    receive {seen, ok} -> ok after 60000 -> error(no_nodedown) end,
    caravan_cluster:stop(Third).

%% A silent link is ticked from both sides and stays. Here in 4 s what takes a minute by default.
ticks(Config) ->
    Options = proplists:get_value(options, Config),
    Fast = Options#{args => maps:get(args, Options, []) ++ ["-kernel", "net_ticktime", "4"]},
    with([Fast, Fast], fun([A, B]) ->
        true = caravan_cluster:connect(A, B),
        #{sent_messages := Before} = caravan_cluster:info(A, B),
        timer:sleep(6000),
        #{sent_messages := After} = caravan_cluster:info(A, B),
        ?assertEqual([name(B)], call(A, erlang, nodes, [])),
        ?assertEqual([name(A)], call(B, erlang, nodes, [])),
        ?assert(After > Before)
    end).

socket_options(Config) ->
    on_a(Config, fun(Node) ->
        true = net_kernel:connect_node(Node),
        ok = net_kernel:setopts(Node, [{nodelay, false}]),
        {ok, [{nodelay, false}]} = net_kernel:getopts(Node, [nodelay]),
        ok = net_kernel:setopts(Node, [{nodelay, true}]),
        {error, {badopts, [{active, false}]}} = net_kernel:setopts(Node, [{active, false}]),
        {ok, Info} = net_kernel:node_info(Node),
        {in, In} = lists:keyfind(in, 1, Info),
        ?assert(In > 0)
    end).

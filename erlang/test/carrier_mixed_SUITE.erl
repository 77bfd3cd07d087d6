%% Nodes that speak Caravan among nodes that do not, and among strangers that must not profit
%% from it.
-module(carrier_mixed_SUITE).

-include_lib("stdlib/include/assert.hrl").
-include_lib("kernel/include/dist.hrl").

-export([all/0, suite/0]).
-export([mixed_cluster/1, one_life/1, erl_call/1, c_node/1, named_and_not_to_be_had/1,
         other_user/1, other_network_namespace/1, other_pid_namespace/1,
         stranger_without_cookie/1, stranger_with_cookie/1]).

-import(caravan_cluster, [with/2, call/2, call/4, connect/2, transport/2, name/1, info/2, has_logged/2]).

suite() -> [{timetrap, {minutes, 10}}].

all() ->
    [mixed_cluster, one_life, erl_call, c_node, named_and_not_to_be_had, other_user,
     other_network_namespace, other_pid_namespace, stranger_without_cookie,
     stranger_with_cookie].

%% Every pair of six nodes takes the best transport that both have, and every message arrives.
mixed_cluster(_) ->
    Kinds = [shm, shm, auto, auto, tcp, plain],
    Options = [#{}, #{transport => auto}, #{args => ["-caravan", "ring_bytes", "65536"]},
               #{args => ["+sbwt", "none"]}, #{transport => tcp}, #{carrier => plain}],
    with(Options, fun(Nodes) ->
        Kinded = lists:zip(Kinds, Nodes),
        [true = connect(A, B) || A <- Nodes, B <- Nodes, A < B],
        [begin
             Expected = case lists:member(KindB, [tcp, plain]) orelse KindA =:= tcp of
                            true -> tcp;
                            false -> shm
                        end,
             ?assertEqual({name(A), name(B), Expected}, {name(A), name(B), transport(A, B)})
         end || {KindA, A} <- Kinded, KindA =/= plain, {KindB, B} <- Kinded, A =/= B],
        [?assertEqual([{ok, name(B)} || B <- Nodes],
                      call(A, erpc, multicall, [[name(B) || B <- Nodes], erlang, node, []]))
         || A <- Nodes]
    end).

%% A node of another kind comes back under the same name, and the link becomes the best that both
%% have.
one_life(_) ->
    Name = peer:random_name(),
    with([#{}], fun([A]) ->
        [with([Options#{name => Name}],
              fun([B]) ->
                      true = connect(A, B),
                      ?assertEqual(Expected, transport(A, B)),
                      ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []])),
                      true = call(A, erlang, disconnect_node, [name(B)])
              end)
         || {Options, Expected} <- [{#{}, shm}, {#{carrier => plain}, tcp}, {#{}, shm},
                                    {#{transport => tcp}, tcp}, {#{}, shm}]]
    end).

erl_call(_) ->
    with([#{}], fun([A]) ->
        [Name, _] = string:split(atom_to_list(name(A)), "@"),
        {0, Text} = caravan_cluster:shell("erl_call -sname " ++ Name ++
                                          " -c caravan_test -a \"erlang node\""),
        ?assertEqual(atom_to_list(name(A)), string:trim(Text, both, "'")),
        caravan_cluster:wait_until(fun() -> [] =:= call(A, erlang, nodes, [hidden]) end)
    end).

%% A C node reads our name with the bit that says that we speak Caravan.
c_node(Config) ->
    Source = filename:join(proplists:get_value(data_dir, Config), "c_node.c"),
    Program = filename:join(proplists:get_value(priv_dir, Config), "c_node"),
    Ei = code:lib_dir(erl_interface),
    {0, _} = caravan_cluster:shell(lists:flatten(
               ["cc -o \"", Program, "\" \"", Source, "\" -I", Ei, "/include -I", code:root_dir(),
                "/usr/include -L", Ei, "/lib -L", code:root_dir(), "/usr/lib -lei -lpthread"])),
    with([#{}], fun([A]) ->
        [_, Host] = string:split(atom_to_list(name(A)), "@"),
        Alive = peer:random_name(),
        CNode = open_port({spawn_executable, Program}, [{args, [Alive, "caravan_test"]}, {line, 80},
                                                        exit_status]),
        receive {CNode, {data, {eol, "listening"}}} -> ok end,
        Name = list_to_atom(Alive ++ "@" ++ Host),
        true = call(A, net_kernel, connect_node, [Name]),
        ?assertEqual({Name, hello},
                     call(A, fun() ->
                                     {anyone, Name} ! {self(), hello},
                                     receive {Name, _} = Reply -> Reply after 60000 -> none end
                             end)),
        ?assertMatch(#{transport := tcp, reason := <<"the peer does not speak Caravan">>},
                     call(A, caravan_dist, info, [Name])),
        true = call(A, erlang, disconnect_node, [Name]),
        receive {CNode, {exit_status, 0}} -> ok end
    end).

%% The connection fails on both sides, neither sees the other come up, and the log says why.
named_and_not_to_be_had(_) ->
    with([#{transport => shm}, #{transport => tcp}, #{carrier => plain}], fun([Shm, Tcp, Plain]) ->
        [caravan_cluster:watch_nodes(Node) || Node <- [Shm, Tcp, Plain]],
        [false = connect(A, B) || {A, B} <- [{Shm, Tcp}, {Tcp, Shm}, {Shm, Plain}, {Plain, Shm}]],
        [?assertEqual([], caravan_cluster:seen_nodes(Node)) || Node <- [Shm, Tcp, Plain]],
        [has_logged(Shm, [Why])
         || Why <- ["names shm here, and it cannot be had: the peer does not speak Caravan",
                    "names shm here, and it cannot be had: the option transport names tcp at the peer"]],
        true = connect(Tcp, Plain)
    end).

%% Another user of this host: TCP, and the log of both sides says why.
other_user(_) ->
    as_root(fun(Ebin) ->
        %% Not in this folder, which may lie where only its owner can go.
        Exec = {"/usr/bin/env",
                ["-C", "/", "setpriv", "--reuid", "nobody", "--regid", "nogroup",
                 "--clear-groups", "erl"]},
        with([#{}, #{exec => Exec, ebin => Ebin, env => [{"HOME", "/tmp"}]}], fun([A, B]) ->
            ?assertNotEqual(call(A, os, cmd, ["id -u"]), call(B, os, cmd, ["id -u"])),
            [begin
                 true = connect(X, Y),
                 [begin
                      #{transport := tcp, reason := Why} = info(N, Other),
                      ?assertMatch({match, _}, re:run(Why, "^shared memory: .*same user; RDMA: .+$")),
                      has_logged(N, [binary_to_list(Why)])
                  end || {N, Other} <- [{X, Y}, {Y, X}]],
                 ?assertEqual(name(Y), call(X, erpc, call, [name(Y), erlang, node, []])),
                 true = call(X, erlang, disconnect_node, [name(Y)])
             end || {X, Y} <- [{A, B}, {B, A}]]
        end)
    end).

%% Two network namespaces are two hosts as far as Caravan is concerned.
other_network_namespace(_) ->
    as_root(fun(Ebin) ->
        Spaces = ["caravan_a" ++ os:getpid(), "caravan_b" ++ os:getpid()],
        Veth = ["cva" ++ os:getpid(), "cvb" ++ os:getpid()],
        Hosts = ["10.213.7.1", "10.213.7.2"],
        try
            [ip(["netns add ", Space]) || Space <- Spaces],
            ip(["link add ", hd(Veth), " type veth peer name ", lists:last(Veth)]),
            [begin
                 ip(["link set ", Link, " netns ", Space]),
                 ip(["-n ", Space, " addr add ", Host, "/24 dev ", Link]),
                 ip(["-n ", Space, " link set ", Link, " up"]),
                 ip(["-n ", Space, " link set lo up"])
             end || {Space, Link, Host} <- lists:zip3(Spaces, Veth, Hosts)],
            %% No epmd: it would outlive the case.
            Args = ["-epmd_module", "caravan_test_epmd", "-start_epmd", "false"],
            with([#{exec => {ip_program(), ["netns", "exec", Space, "erl"]}, ebin => Ebin,
                    name => "port_" ++ Port, longnames => true, host => Host, args => Args}
                  || {Space, Host, Port} <- lists:zip3(Spaces, Hosts, ["45001", "45002"])],
                 fun([A, B]) ->
                         true = connect(A, B),
                         [begin
                              #{transport := tcp, reason := Why} = info(X, Y),
                              ct:pal("other network namespace: ~ts", [Why]),
                              %% Why neither of the better ones, there and in the log.
                              ?assertMatch({match, _}, re:run(Why, "^shared memory: .+; RDMA: .+$")),
                              has_logged(X, [binary_to_list(Why)])
                          end || {X, Y} <- [{A, B}, {B, A}]],
                         ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []]))
                 end)
        after
            [os:cmd("ip netns del " ++ Space) || Space <- Spaces]
        end
    end).

%% Containers that share a network namespace and a user share memory, though no process of one has a
%% number in the other.
other_pid_namespace(_) ->
    as_root(fun(_) ->
        Args = caravan_cluster:no_auto_connect(),
        %% Process 1 of a namespace of its own. An epmd that it started would go with it.
        Contained = #{exec => {"/usr/bin/env", ["unshare", "--pid", "--mount", "--fork",
                                                "--kill-child", "--mount-proc", "erl"]},
                      args => ["-start_epmd", "false" | Args]},
        with([#{args => Args}], fun([A]) -> with([Contained, Contained], fun([B, C]) ->
            ?assertEqual(["1", "1"], [call(Node, os, getpid, []) || Node <- [B, C]]),
            [begin
                 true = connect(X, Y),
                 [?assertMatch(#{transport := shm, reason := <<>>}, Info)
                  || Info <- [info(X, Y), info(Y, X)]],
                 ?assertEqual(name(Y), call(X, erpc, call, [name(Y), erlang, node, []])),
                 true = call(X, erlang, disconnect_node, [name(Y)]),
                 caravan_cluster:settle(Y)
             end || {X, Y} <- [{A, B}, {B, A}, {B, C}, {C, B}]],
            [true = connect(X, C) || X <- [A, B]],
            ok = call(C, init, stop, []),
            [caravan_cluster:wait_until(fun() -> [] =:= call(X, erlang, nodes, []) end)
             || X <- [A, B]]
        end) end)
    end).

%% Nobody gets anything out of our speaking Caravan before the cookies have been compared: no port
%% of the driver, not even for a moment, no memory, no file, and no process once the stranger has gone.
stranger_without_cookie(_) ->
    with([#{args => caravan_cluster:no_auto_connect()}], fun([A]) ->
        greet(A),
        {_, Before, _} = State = caravan_cluster:state(A),
        1 = call(A, erlang, trace_pattern, [{caravan_driver, open, 0}, true, [call_count]]),
        Port = listening_port(A),
        Stranger = {<<"stranger@host">>, flags(A) bor (1 bsl 63)},
        Capable = [<<"caravan", 1, 2:16, 1, 0>>, <<"caravan", 1, 2:16, 3, 0>>,
                   <<"caravan", 1, 65000:16, 1, 0>>, <<"caravan", 255, 0:16>>, <<>>,
                   rand:bytes(60000)],
        [begin
             Socket = caravan_stranger:connect(Port),
             ok = caravan_stranger:name(Socket, Stranger, Capability),
             <<"ok">> = caravan_stranger:status(Socket),
             {Challenge, _} = caravan_stranger:challenge(Socket),
             ?assertEqual(maps:get(ports, Before) + 1, maps:get(ports, caravan_cluster:resources(A))),
             ?assertEqual(maps:get(mappings, Before),
                          maps:get(mappings, caravan_cluster:resources(A))),
             case Next of
                 wrong_cookie -> caravan_stranger:reply(Socket, Challenge, "wrong", Capability);
                 negotiate -> caravan_stranger:send(Socket, "Ldescriptor");
                 connected -> caravan_stranger:send(Socket, "C")
             end,
             ?assert(caravan_stranger:closed(Socket)),
             caravan_stranger:close(Socket)
         end || Capability <- Capable, Next <- [wrong_cookie, negotiate, connected]],
        ?assertEqual({call_count, 0}, call(A, erlang, trace_info, [{caravan_driver, open, 0}, call_count])),
        caravan_cluster:unchanged(State)
    end).

%% One that knows the cookie and says nonsense loses its connection; the node loses nothing.
stranger_with_cookie(_) ->
    with([#{args => caravan_cluster:no_auto_connect()}], fun([A]) ->
        Port = listening_port(A),
        greet(A),
        State = caravan_cluster:state(A),
        [begin
             Socket = caravan_stranger:connect(Port),
             Theirs = caravan_stranger:initiator(
                        Socket, {<<"stranger@host">>, flags(A)},
                        {"caravan_test", <<"caravan", 1, 2:16, 1, 0>>}),
             ?assertMatch(<<"caravan", _/binary>>, Theirs),
             <<$L, _/binary>> = caravan_stranger:recv(Socket),
             ok = caravan_stranger:send(Socket, Nonsense),
             ?assert(caravan_stranger:closed(Socket)),
             caravan_stranger:close(Socket)
         end || Nonsense <- ["X", "", "L", "Y", "Cx", rand:bytes(65535)]],
        %% It says nothing at all: for five seconds, and no longer.
        Silent = caravan_stranger:connect(Port),
        _ = caravan_stranger:initiator(Silent, {<<"stranger@host">>, flags(A)},
                                       {"caravan_test", <<"caravan", 1, 2:16, 1, 0>>}),
        <<$L, _/binary>> = caravan_stranger:recv(Silent),
        ?assert(caravan_stranger:closed(Silent)),
        caravan_stranger:close(Silent),
        %% It says that it connected, and did not: we decline, and stay on TCP with it.
        Socket = caravan_stranger:connect(Port),
        _ = caravan_stranger:initiator(Socket, {<<"stranger@host">>, flags(A)},
                                       {"caravan_test", <<"caravan", 1, 2:16, 1, 0>>}),
        <<$L, _/binary>> = caravan_stranger:recv(Socket),
        ok = caravan_stranger:send(Socket, "C"),
        <<$N, Why/binary>> = caravan_stranger:recv(Socket),
        ct:pal("not connected: ~ts", [Why]),
        caravan_stranger:close(Socket),
        caravan_cluster:unchanged(State)
    end).

%% ---------------------------------------------------------------------------------------------

%% One connection of the usual kind, for what a node makes once and keeps.
greet(Node) ->
    with([#{}], fun([Other]) -> true = connect(Other, Node) end),
    caravan_cluster:settle(Node).

flags(Node) ->
    element(2, call(Node, erts_internal, get_dflags, [])) bor ?DFLAG_PUBLISHED.

listening_port(Node) ->
    [Name, _] = string:split(atom_to_list(name(Node)), "@"),
    {port, Port, _} = erl_epmd:port_please(Name, {127, 0, 0, 1}),
    Port.

%% The fun gets a copy of the code that any user can read.
as_root(Fun) ->
    case {os:cmd("id -u"), os:getenv("CARAVAN_SKIP_ROOT_TESTS")} of
        {"0\n", _} ->
            Root = readable_copy(),
            try Fun(filename:join(Root, "ebin"))
            after {0, _} = caravan_cluster:shell("rm -rf " ++ Root)
            end;
        {_, false} ->
            ct:fail("this case makes other users and network namespaces, which takes root: run "
                    "the tests as root, or set CARAVAN_SKIP_ROOT_TESTS=1");
        _ ->
            {skip, "CARAVAN_SKIP_ROOT_TESTS is set"}
    end.

ip_program() ->
    os:find_executable("ip", os:getenv("PATH") ++ ":/usr/sbin:/sbin").

ip(Arguments) ->
    {0, _} = caravan_cluster:shell(lists:flatten([ip_program(), " ", Arguments])).

readable_copy() ->
    Root = "/tmp/caravan_test_" ++ os:getpid(),
    From = filename:dirname(filename:dirname(code:which(caravan_dist))),
    Test = filename:dirname(code:which(?MODULE)),
    {0, _} = caravan_cluster:shell(lists:flatten(
               ["rm -rf ", Root, "; mkdir -p ", Root, "; cp -RL \"", From, "/ebin\" \"",
                From, "/priv\" ", Root, "; cp \"", Test, "\"/*.beam ", Root, "/ebin; chmod -R a+rX ", Root])),
    Root.

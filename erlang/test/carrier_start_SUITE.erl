%% How a node starts, its name, where it listens, and what it reports when it cannot start.
-module(carrier_start_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([long_names/1, long_and_short/1, dynamic_name/1, not_listening/1, fixed_ports/1,
         epmd_module/1, listen_range/1, use_interface/1, check_ip/1, socket_options/1,
         allowed/1, both_families/1, start_and_stop/1,
         bad_options/1, bad_option_at_run_time/1, config_file/1, option_changes/1,
         doubled_flag/1, no_driver/1, simultaneous/1, name_taken/1]).

-import(caravan_cluster, [with/2, call/2, call/4, connect/2, transport/2, name/1, has_logged/2, logged_with/2]).

suite() -> [{timetrap, {minutes, 10}}].

all() ->
    [long_names, long_and_short, dynamic_name, not_listening, fixed_ports, epmd_module,
     listen_range, use_interface, check_ip, socket_options, allowed, both_families, start_and_stop, bad_options, bad_option_at_run_time,
     config_file, option_changes, doubled_flag, no_driver, simultaneous, name_taken].

ports(Node) ->
    call(Node, fun() ->
                       [Address || Port <- erlang:ports(),
                                   {name, "tcp_inet"} =:= erlang:port_info(Port, name),
                                   {error, enotconn} =:= inet:peername(Port),
                                   {ok, Address} <- [inet:sockname(Port)]]
               end).

long_names(_) ->
    Long = #{longnames => true, host => "127.0.0.1"},
    with([Long, Long], fun([A, B]) ->
        true = connect(A, B),
        ?assertEqual(shm, transport(A, B)),
        ?assertEqual("127.0.0.1", lists:last(string:split(atom_to_list(name(A)), "@")))
    end).

%% Nodes with short names do not reach hosts with dots, and the other way round; the log says so.
long_and_short(_) ->
    with([#{}, #{longnames => true, host => "127.0.0.1"}], fun([Short, Long]) ->
        false = connect(Short, Long),
        false = connect(Long, Short),
        [has_logged(Node, ["is illegal"]) || Node <- [Short, Long]]
    end).

dynamic_name(_) ->
    with([#{}, #{name => none, args => ["-sname", "undefined"]}], fun([A, Nameless]) ->
        ?assertEqual(nonode@nohost, call(Nameless, erlang, node, [])),
        true = connect(Nameless, A),
        Given = call(Nameless, erlang, node, []),
        ?assertNotEqual(nonode@nohost, Given),
        ?assertEqual(shm, transport(Nameless, A)),
        ?assertMatch(#{transport := shm}, call(A, caravan_dist, info, [Given])),
        ?assertEqual(Given, call(A, erpc, call, [Given, erlang, node, []]))
    end).

not_listening(_) ->
    with([#{}, #{args => ["-dist_listen", "false"]}], fun([A, B]) ->
        ?assertEqual([], ports(B)),
        false = connect(A, B),
        true = connect(B, A),
        ?assertEqual(shm, transport(B, A)),
        ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []]))
    end).

%% No epmd at all: both nodes listen at the same port, on addresses of their own.
fixed_ports(_) ->
    Port = free_port(),
    Options = [#{longnames => true, host => Host,
                 args => ["-start_epmd", "false", "-erl_epmd_port", integer_to_list(Port),
                          %% Where no epmd listens, for the node to be found without one.
                          "-epmd_port", "1", "-kernel", "inet_dist_use_interface",
                          lists:flatten(io_lib:format("~w", [Ip]))]}
               || {Host, Ip} <- [{"127.0.0.1", {127, 0, 0, 1}}, {"127.0.0.2", {127, 0, 0, 2}}]],
    with(Options, fun([A, B]) ->
        ?assertEqual([{{127, 0, 0, 2}, Port}], ports(B)),
        true = connect(A, B),
        ?assertEqual(shm, transport(A, B))
    end).

epmd_module(_) ->
    Names = ["port_" ++ integer_to_list(free_port()) || _ <- [1, 2]],
    with([#{name => Name, args => ["-epmd_module", "caravan_test_epmd", "-start_epmd", "false"]}
          || Name <- Names],
         fun([A, B]) ->
                 [[{_, Port}] = ports(Node) || {Node, Name} <- lists:zip([A, B], Names),
                                               "port_" ++ Text <- [Name],
                                               Port <- [list_to_integer(Text)]],
                 true = connect(A, B),
                 ?assertEqual(shm, transport(A, B))
         end).

listen_range(_) ->
    First = free_port(),
    Last = First + 4,
    Args = ["-kernel", "inet_dist_listen_min", integer_to_list(First),
            "inet_dist_listen_max", integer_to_list(Last)],
    with([#{args => Args}, #{args => Args}], fun([A, B]) ->
        Ports = [Port || Node <- [A, B], {_, Port} <- ports(Node)],
        ?assertEqual(2, length(lists:usort(Ports))),
        [?assert(First =< Port andalso Port =< Last) || Port <- Ports],
        true = connect(A, B),
        {Status, Text} = boot_fails(["-kernel inet_dist_listen_min ", integer_to_list(hd(Ports)),
                                     " inet_dist_listen_max ", integer_to_list(hd(Ports))]),
        ?assertEqual(1, Status),
        ?assertNotEqual(nomatch, string:find(Text, "eaddrinuse"))
    end).

use_interface(_) ->
    with([#{args => ["-kernel", "inet_dist_use_interface", "{127,0,0,3}"]},
          #{longnames => true, host => "127.0.0.1"}],
         fun([A, B]) ->
                 ?assertMatch([{{127, 0, 0, 3}, _}], ports(A)),
                 ?assertMatch([{{0, 0, 0, 0}, _}], ports(B))
         end).

%% Loopback is a network that this host is on.
check_ip(_) ->
    with([#{args => ["-kernel", "check_ip", "true"]}, #{}], fun([A, B]) ->
        true = connect(B, A)
    end).

socket_options(_) ->
    with([#{args => ["-kernel", "inet_dist_listen_options", "[{keepalive,true},{packet,4}]"]},
          #{args => ["-kernel", "inet_dist_connect_options", "[{keepalive,true}]", "dist_nodelay",
                     "false"]}],
         fun([A, B]) ->
                 true = connect(B, A),
                 [?assertEqual({ok, [{keepalive, true}]},
                               call(X, net_kernel, getopts, [name(Y), [keepalive]]))
                  || {X, Y} <- [{A, B}, {B, A}]],
                 %% And on TCP, where they count.
                 true = call(B, erlang, disconnect_node, [name(A)]),
                 ok = call(B, application, set_env, [caravan, transport, tcp]),
                 true = connect(B, A),
                 ?assertEqual({ok, [{nodelay, false}, {packet, 4}]},
                              call(B, net_kernel, getopts, [name(A), [nodelay, packet]]))
         end).

%% net_kernel:allow/1.
allowed(_) ->
    with([#{}, #{}, #{}], fun([A, B, C]) ->
        ok = call(A, net_kernel, allow, [[name(B)]]),
        true = connect(B, A),
        false = connect(C, A),
        false = connect(A, C)
    end).

%% As with OTP's own two, epmd takes one registration: the node is up, over the first.
both_families(_) ->
    with([#{carrier => plain, args => ["-proto_dist", "caravan", "caravan6"]}, #{}],
         fun([A, B]) ->
                 true = connect(A, B),
                 ?assertEqual(shm, transport(A, B))
         end).

start_and_stop(_) ->
    with([#{}, #{name => none}], fun([A, B]) ->
        Carrier = name(A),
        Cycle = fun(N) ->
             ?assertEqual([], call(B, caravan_dist, info, [])),
             {ok, _} = call(B, net_kernel, start, [[list_to_atom("again" ++ integer_to_list(N)),
                                                    shortnames]]),
             true = call(B, erlang, set_cookie, [caravan_test]),
             true = call(B, net_kernel, connect_node, [Carrier]),
             ?assertMatch(#{transport := shm}, call(B, caravan_dist, info, [Carrier])),
             ok = call(B, net_kernel, stop, []),
             ?assertEqual(nonode@nohost, call(B, erlang, node, [])),
             caravan_cluster:wait_until(fun() -> [] =:= call(A, erlang, nodes, []) end)
        end,
        Cycle(1),
        Before = caravan_cluster:state(B),
        [Cycle(N) || N <- [2, 3, 4]],
        caravan_cluster:unchanged(Before)
    end).

%% The boot stops with a status that says so, and one sentence with the option and what it takes.
bad_options(_) ->
    [begin
         {Status, Text} = boot_fails(Flags),
         ?assertEqual({1, Flags}, {Status, Flags}),
         [?assertNotEqual({nomatch, Word, Text}, {string:find(Text, Word), Word, Text})
          || Word <- Words]
     end || {Flags, Words} <-
                [{"-caravan transport fast", ["transport takes auto, shm, rdma or tcp", "fast"]},
                 {"-caravan encrypt maybe", ["encrypt takes true or false", "maybe"]},
                 {"-caravan ring_bytes 100000", ["ring_bytes takes a power of two", "100000"]},
                 {"-caravan ring_bytes 1MiB", ["ring_bytes takes a power of two", "1MiB"]},
                 {"-caravan spin maybe", ["spin takes auto, on or off"]},
                 {"-caravan busy_bytes 0", ["busy_bytes takes a number"]},
                 {"-caravan fragments 1", ["fragments takes true or false"]},
                 {"-caravan transport", ["transport takes", "no value"]},
                 {"-caravan tranport shm", ["no option tranport", "transport"]}]].

bad_option_at_run_time(_) ->
    with([#{}, #{name => none, args => ["-caravan", "spin", "maybe"]}], fun([A, B]) ->
        {error, _} = call(B, net_kernel, start, [[late, shortnames]]),
        has_logged(B, ["spin takes"]),
        %% A bad value that comes later: no connection, and the log says which.
        ok = call(A, application, set_env, [caravan, ring_bytes, 5]),
        false = call(A, net_kernel, connect_node, [name(A, "nobody")]),
        with([#{}], fun([C]) -> false = connect(A, C) end),
        has_logged(A, ["ring_bytes takes"])
    end).

name(Node, Name) ->
    [_, Host] = string:split(atom_to_list(name(Node)), "@"),
    list_to_atom(Name ++ "@" ++ Host).

%% The environment of a sys.config is there although the distribution starts first.
config_file(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "caravan"),
    ok = file:write_file(File ++ ".config", "[{caravan, [{transport, tcp}]}].\n"),
    with([#{args => ["-config", File]}, #{},
          #{args => ["-config", File, "-caravan", "transport", "shm"]}],
         fun([A, B, C]) ->
                 true = connect(A, B),
                 ?assertMatch(#{transport := tcp,
                                reason := <<"the option transport names tcp here">>},
                              caravan_cluster:info(A, B)),
                 ?assertMatch(#{transport := tcp,
                                reason := <<"the option transport names tcp at the peer">>},
                              caravan_cluster:info(B, A)),
                 true = connect(C, B),
                 ?assertEqual(shm, transport(C, B)),
                 {Status, Text} = boot_fails(["-config \"", bad_config(Config), "\""]),
                 ?assertEqual(1, Status),
                 ?assertNotEqual(nomatch, string:find(Text, "transport takes"))
         end).

bad_config(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "bad"),
    ok = file:write_file(File ++ ".config", "[{caravan, [{transport, fast}]}].\n"),
    File.

option_changes(_) ->
    with([#{}, #{}], fun([A, B]) ->
        true = connect(A, B),
        ?assertEqual(shm, transport(A, B)),
        ok = call(A, application, set_env, [caravan, transport, tcp]),
        true = call(A, erlang, disconnect_node, [name(B)]),
        true = connect(A, B),
        ?assertEqual(tcp, transport(A, B))
    end).

%% Where Erlang/OTP takes the first flag alone, that node speaks Caravan, and nothing is said.
doubled_flag(_) ->
    with([#{args => ["-proto_dist", "caravan"]}, #{}], fun([A, B]) ->
        true = connect(A, B),
        doubled_flag(call(A, erlang, whereis, [caravan_links]) =/= undefined, A, B)
    end).

doubled_flag(true, A, B) ->
    ?assertEqual(shm, transport(A, B)),
    ok = call(A, application, start, [caravan]),
    ?assertEqual([], logged_with(A, "was given 2"));
%% Elsewhere it starts inet_tcp and says nothing; the application does.
doubled_flag(false, A, B) ->
    ?assertEqual([], call(A, caravan_dist, info, [])),
    ok = call(A, application, start, [caravan]),
    ?assertMatch([_, _ | _], logged_with(A, "-proto_dist was given 2 times")),
    ok = call(B, application, start, [caravan]),
    ?assertEqual([], logged_with(B, "-proto_dist")).

%% Without its library a node speaks TCP, and says why; or nothing, where TCP was not asked for.
no_driver(Config) ->
    Copy = filename:join(proplists:get_value(priv_dir, Config), "no_driver/ebin"),
    ok = filelib:ensure_dir(filename:join(Copy, "x")),
    [{ok, _} = file:copy(Beam, filename:join(Copy, filename:basename(Beam)))
     || Beam <- filelib:wildcard(filename:join(filename:dirname(code:which(caravan_dist)), "*"))],
    with([#{ebin => Copy}, #{ebin => Copy, transport => shm}, #{}, #{carrier => plain}],
         fun([Auto, Shm, Other, Plain]) ->
                 true = connect(Auto, Other),
                 #{transport := tcp, reason := Why} = caravan_cluster:info(Auto, Other),
                 ?assertNotEqual(nomatch, string:find(Why, "caravan_driver.so could not be loaded")),
                 #{transport := tcp, reason := <<"the peer could not load its driver">>} =
                     caravan_cluster:info(Other, Auto),
                 true = connect(Auto, Plain),
                 [false = connect(X, Y) || {X, Y} <- [{Shm, Other}, {Other, Shm}, {Shm, Plain},
                                                      {Plain, Shm}, {Auto, Shm}]],
                 has_logged(Shm, ["names shm here"])
         end).

%% Both sides connect at the same moment, many times: one link comes of it, and no loss.
simultaneous(_) ->
    Told = #{args => caravan_cluster:no_auto_connect()},
    with([Told, Told], fun([A, B]) ->
        [begin
             Self = self(),
             Pids = [spawn_link(fun() ->
                                        receive go -> ok end,
                                        Self ! {self(), connect(X, Y)}
                                end) || {X, Y} <- [{A, B}, {B, A}]],
             [Pid ! go || Pid <- Pids],
             [receive {Pid, true} -> ok end || Pid <- Pids],
             ?assertEqual(shm, transport(A, B)),
             ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []])),
             true = call(A, erlang, disconnect_node, [name(B)]),
             caravan_cluster:wait_until(fun() -> [] =:= call(B, erlang, nodes, []) end)
         end || _ <- lists:seq(1, 50)]
    end).

name_taken(_) ->
    with([#{name => "caravan_taken"}], fun([_]) ->
        {Status, Text} = boot_fails("", "caravan_taken"),
        ?assertEqual(1, Status),
        ?assertNotEqual(nomatch, string:find(Text, "in use by another Erlang node"))
    end).

%% ---------------------------------------------------------------------------------------------

boot_fails(Flags) ->
    boot_fails(Flags, peer:random_name()).

boot_fails(Flags, Name) ->
    Ebin = filename:absname(filename:dirname(code:which(caravan_dist))),
    caravan_cluster:shell(lists:flatten(
                            ["erl -noshell -sname ", Name, " -proto_dist caravan -pa \"", Ebin,
                             "\" ", Flags, " -s init stop"])).

free_port() ->
    {ok, Socket} = gen_tcp:listen(0, []),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

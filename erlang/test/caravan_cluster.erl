%% Nodes for the suites. A node is controlled over its standard input and output, so that the
%% distribution is free to be broken; the node that runs the tests is not distributed itself.
-module(caravan_cluster).

-export([start/1, start_all/1, with/2, no_auto_connect/0, stop/1, kill/1, name/1, os_pid/1, signal/2]).
-export([call/2, call/4, connect/2, transport/2, info/2, wait_until/1, wait_until/2, nodedown_after/3]).
-export([resources/1, resident_bytes/1, settle/1, state/1, unchanged/1, unchanged/2, logged/1, logged/2, logged_with/2, has_logged/2, shell/1, shm_files/0]).
-export([rdma/0, log/2]).
-export([start_load/2, start_load/4, stop_load/1, load/3, sink/0, start_counter/1, counted/1, watch_nodes/1, seen_nodes/1]).

-define(BOOT_MS, 180000).
-define(CALL_MS, 300000).

%% `at' runs a fun at the node's host.
-record(test_node, {peer :: pid(), name :: node(), os_pid :: string(), at :: fun((fun(() -> T)) -> T)}).

%% #{name => none | string(), carrier => caravan | caravan6 | plain, transport, args, longnames,
%%   host, cookie, connect_all, ebin, exec, env, at}
start(Options) ->
    At = maps:get(at, Options, fun(Fun) -> Fun() end),
    At(fun() -> start_here(Options, At) end).

start_here(Options, At) ->
    Carrier = maps:get(carrier, Options, caravan),
    Name = maps:get(name, Options, peer:random_name()),
    Args = carrier_args(Carrier)
        ++ ["-setcookie", maps:get(cookie, Options, "caravan_test"),
            "-connect_all", atom_to_list(maps:get(connect_all, Options, false)),
            "-kernel", "prevent_overlapping_partitions", "false", "+S", "1", "+SDio", "1",
            "-pa", directory(?MODULE), maps:get(ebin, Options, directory(caravan_dist))]
        ++ case Options of
               #{transport := Transport} -> ["-caravan", "transport", atom_to_list(Transport)];
               _ -> []
           end
        ++ maps:get(args, Options, []),
    Common = #{connection => standard_io, args => Args, wait_boot => ?BOOT_MS},
    Named = case Options of
                #{name := none} -> Common;
                _ -> maps:merge(Common#{name => Name}, maps:with([longnames, host], Options))
            end,
    {ok, Peer, Node} = peer:start(maps:merge(Named, maps:with([exec, env], Options))),
    TestNode = #test_node{peer = Peer, name = Node, os_pid = peer:call(Peer, os, getpid, [], ?CALL_MS), at = At},
    ok = call(TestNode, fun collect_logs/0),
    TestNode.

%% Starts several nodes at once: most of a start is waiting.
start_all(OptionsList) ->
    Self = self(),
    Starts = [{spawn_monitor(fun() -> Self ! {self(), start(Options)}, receive stop -> ok end end),
               Options} || Options <- OptionsList],
    [receive
         {Pid, Node} ->
             erlang:demonitor(Monitor, [flush]),
             Pid ! stop,
             Node;
         {'DOWN', Monitor, process, Pid, Reason} -> error({not_started, Options, Reason})
     end || {{Pid, Monitor}, Options} <- Starts].

%% Starts nodes, runs the fun with them, and stops them whatever happens.
with(OptionsList, Fun) ->
    Nodes = start_all(OptionsList),
    try Fun(Nodes) after stop(Nodes) end.

%% Returns arguments for nodes that connect only when they are told to: without them `global' on either side may undo
%% a disconnection at once.
no_auto_connect() ->
    ["-kernel", "dist_auto_connect", "never"].

carrier_args(plain) -> [];
carrier_args(Carrier) -> ["-proto_dist", atom_to_list(Carrier)].

directory(Module) ->
    filename:absname(filename:dirname(code:which(Module))).

stop(#test_node{peer = Peer, at = At}) ->
    At(fun() -> catch peer:stop(Peer) end),
    ok;
stop(Nodes) when is_list(Nodes) ->
    lists:foreach(fun stop/1, Nodes).

kill(Node) ->
    signal(Node, "KILL").

signal(#test_node{os_pid = OsPid, at = At}, Signal) ->
    "" = At(fun() -> os:cmd("kill -" ++ Signal ++ " " ++ OsPid) end),
    ok.

name(#test_node{name = Name}) -> Name.
os_pid(#test_node{os_pid = OsPid}) -> OsPid.

call(Node, Fun) ->
    call(Node, erlang, apply, [Fun, []]).

call(#test_node{peer = Peer, at = At}, Module, Function, Arguments) ->
    At(fun() -> peer:call(Peer, Module, Function, Arguments, ?CALL_MS) end).

connect(A, B) ->
    call(A, net_kernel, connect_node, [name(B)]).

%% Returns A's info about its link to B. The accepting side of a connection is up a moment after the
%% initiating one.
info(A, B) ->
    wait_until(fun() -> undefined =/= call(A, caravan_dist, info, [name(B)]) end),
    call(A, caravan_dist, info, [name(B)]).

transport(A, B) ->
    maps:get(transport, info(A, B)).

%% Returns how many milliseconds after the fault A hears that B is down, and the reason.
nodedown_after(A, B, Fault) ->
    Name = name(B),
    Self = self(),
    Watcher = spawn_link(fun() -> Self ! {self(), call(A, fun() -> watch_down(Name) end)} end),
    wait_until(fun() -> is_pid(call(A, erlang, whereis, [down_watcher])) end),
    At = call(A, erlang, system_time, [millisecond]),
    Fault(),
    receive {Watcher, {SeenAt, Info}} -> {SeenAt - At, proplists:get_value(nodedown_reason, Info)} end.

watch_down(Name) ->
    Wanted = [nodedown_reason, {node_type, all}],
    ok = net_kernel:monitor_nodes(true, Wanted),
    true = register(down_watcher, self()),
    receive
        {nodedown, Name, Info} ->
            unregister(down_watcher),
            net_kernel:monitor_nodes(false, Wanted),
            {erlang:system_time(millisecond), Info}
    end.

%% Waits until the fun returns true, for changes that give no event. The failure contains the last
%% result of the fun.
wait_until(Condition) ->
    wait_until(Condition, 120000).

wait_until(Condition, Ms) ->
    wait_until_time(Condition, erlang:monotonic_time(millisecond) + Ms).

wait_until_time(Condition, Deadline) ->
    IsLast = erlang:monotonic_time(millisecond) >= Deadline,
    case Condition() of
        true -> ok;
        Other when IsLast -> error({still, Other});
        _ ->
            receive after 20 -> ok end,
            wait_until_time(Condition, Deadline)
    end.

%% Returns what a node has without links, to be compared later.
state(Node) ->
    {Node, settle(Node), resident_bytes(Node)}.

%% Waits until a node has again what it had, and fails if its memory has grown by more than so many MiB.
unchanged(State) ->
    unchanged(State, 48).

unchanged({Node, Resources, Bytes}, GrownMiB) ->
    wait_until(fun() -> same(Resources, settle(Node)) end),
    Grown = resident_bytes(Node) - Bytes,
    ct:pal("~p: ~p, memory grown by ~b KiB", [name(Node), Resources, Grown div 1024]),
    Grown < GrownMiB bsl 20 orelse error({grown, Grown}).

%% Returns true if nothing has grown, or what has.
same(Before, Now) ->
    Grown = maps:filter(fun(Key, Count) ->
                                case Key of
                                    %% Pools of the emulator's own shrink when they like.
                                    processes -> Count > maps:get(Key, Before);
                                    _ -> Count =/= maps:get(Key, Before)
                                end
                        end, Now),
    map_size(Grown) =:= 0 orelse {before, Before, now, Grown}.

%% Returns what must not grow: ports, processes, descriptors, rows, tables.
resources(Node) ->
    call(Node, fun() ->
                       #{ports => length(erlang:ports()),
                         processes => length(erlang:processes()),
                         fds => length(filelib:wildcard("/proc/" ++ os:getpid() ++ "/fd/*")),
                         mappings => mappings(),
                         tables => length(ets:all()),
                         rows => case ets:info(caravan_links, size) of
                                     undefined -> 0;
                                     Rows -> Rows
                                 end}
               end).

resident_bytes(Node) ->
    {ok, Statm} = call(Node, file, read_file, ["/proc/self/statm"]),
    [_, Resident | _] = binary:split(Statm, <<" ">>, [global]),
    binary_to_integer(Resident) * 4096.

mappings() ->
    {ok, Maps} = file:read_file("/proc/self/maps"),
    length([L || L <- binary:split(Maps, <<"\n">>, [global]),
                 binary:match(L, <<"memfd:">>) =/= nomatch]).

%% Waits until no link is left, and no rest of one.
settle(Node) ->
    wait_until(fun() -> [] =:= call(Node, erlang, nodes, [[visible, hidden]]) end),
    wait_until(fun() -> maps:get(rows, resources(Node)) =< 1 end),
    settled(Node, resources(Node)).

%% The rest of a connection goes within moments, port by port.
settled(Node, Seen) ->
    receive after 200 -> ok end,
    case resources(Node) of
        Seen -> Seen;
        Other -> settled(Node, Other)
    end.

shm_files() ->
    filelib:wildcard("/dev/shm/*").

%% Returns the texts that this node has logged, oldest first.
logged(Node) ->
    call(Node, fun() -> [Text || {_, _, Text} <- ets:tab2list(caravan_test_log)] end).

%% Returns only the texts of at least this level.
logged(Node, Level) ->
    call(Node, fun() -> [Text || {_, Of, Text} <- ets:tab2list(caravan_test_log),
                                 logger:compare_levels(Of, Level) =/= lt]
               end).

%% Returns the texts with this part.
logged_with(Node, Part) ->
    [Text || Text <- logged(Node), string:find(Text, Part) =/= nomatch].

%% Waits until one of the texts has each of the parts.
has_logged(Node, Parts) ->
    wait_until(fun() ->
        Texts = logged(Node),
        lists:any(fun(Text) -> lists:all(fun(Part) -> string:find(Text, Part) =/= nomatch end, Parts) end, Texts)
            orelse {not_logged, Parts, Texts}
    end).

collect_logs() ->
    Self = self(),
    spawn(fun() ->
                  _ = ets:new(caravan_test_log, [named_table, public, ordered_set]),
                  Self ! ready,
                  receive stop -> ok end
          end),
    receive ready -> ok end,
    ok = logger:set_primary_config(level, info),
    ok = logger:set_module_level(caravan_handshake, debug),
    ok = logger:set_handler_config(default, level, critical),
    logger:add_handler(caravan_test, ?MODULE, #{level => debug}).

%% A logger handler's callback.
log(Event, _Config) ->
    Text = logger_formatter:format(Event, #{single_line => true, template => [msg]}),
    ets:insert(caravan_test_log,
               {erlang:unique_integer([monotonic]), maps:get(level, Event), lists:flatten(Text)}).

%% Within a node: returns the RDMA ports of its machine, or why it has none.
rdma() ->
    {ok, Port} = caravan_driver:open(),
    ok = caravan_driver:configure(Port, #{ring_bytes => 65536, busy_bytes => 65536, spin => off,
                                          fragments => true, me => <<"a@h">>, peer => <<"b@h">>,
                                          seal => none}),
    Offer = caravan_driver:offer(Port, 2000),
    ok = caravan_driver:close(Port),
    Offer.

%% Runs a command; returns its output, and 124 if it took more than two minutes.
shell(Command) ->
    Output = os:cmd("timeout 120 sh -c '" ++ Command ++ "' 2>&1; echo \"|$?\""),
    [Text, Status] = string:split(Output, "|", trailing),
    {list_to_integer(string:trim(Status)), Text}.

%% ---------------------------------------------------------------------------------------------
%% Traffic from A to B and back, in messages of each size, until stop_load/1.

start_load(A, B) ->
    start_load(A, B, [10, 1000, 100000], once).

%% `again': a sender whose link was lost connects again and goes on.
start_load(A, B, Sizes, How) ->
    Node = name(B),
    call(A, fun() -> [spawn(?MODULE, load, [Node, Bytes, How]) || Bytes <- Sizes], ok end).

load(Node, Bytes, How) ->
    put(caravan_load, true),
    {Sink, Monitor} = spawn_monitor(Node, ?MODULE, sink, []),
    Data = {self(), binary:copy(<<Bytes:16>>, Bytes)},
    %% Four on their way at any time.
    [erlang:send(Sink, Data, [noconnect]) || _ <- lists:seq(1, 4)],
    load_loop(Sink, Monitor, Data),
    How =:= again andalso load(Node, Bytes, How).

load_loop(Sink, Monitor, Data) ->
    receive
        {back, _} ->
            erlang:send(Sink, Data, [noconnect]),
            load_loop(Sink, Monitor, Data);
        {'DOWN', Monitor, _, _, _} ->
            ok
    end.

sink() ->
    receive {From, Data} -> erlang:send(From, {back, Data}, [noconnect]), sink()
    after 60000 -> ok
    end.

stop_load(Node) ->
    call(Node, fun() ->
        [exit(Pid, kill) || Pid <- processes(),
                            {dictionary, Dictionary} <- [process_info(Pid, dictionary)],
                            lists:member({caravan_load, true}, Dictionary)],
        ok
    end).

%% Starts a process on a node that counts what it is sent; returns it.
start_counter(Node) ->
    call(Node, fun() ->
        Pid = spawn(fun() -> count(0) end),
        true = register(counter, Pid),
        Pid
    end).

count(N) ->
    receive
        {counted, From} -> From ! {counted, N}, count(N);
        {_, [1 | _]} -> count(N + 1)
    end.

counted(Node) ->
    call(Node, fun() -> counter ! {counted, self()}, receive {counted, N} -> N end end).

%% Notes from now on which nodes come up, as this node sees it.
watch_nodes(Node) ->
    call(Node, fun() ->
        Self = self(),
        spawn(fun() ->
                  true = register(node_watcher, self()),
                  ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
                  Self ! watching,
                  watch([])
              end),
        receive watching -> ok end
    end).

watch(Seen) ->
    receive
        {seen, From} -> From ! {seen, lists:reverse(Seen)}, watch(Seen);
        {nodeup, Node, _} -> watch([Node | Seen]);
        {nodedown, _, _} -> watch(Seen)
    end.

seen_nodes(Node) ->
    call(Node, fun() -> node_watcher ! {seen, self()}, receive {seen, Nodes} -> Nodes end end).

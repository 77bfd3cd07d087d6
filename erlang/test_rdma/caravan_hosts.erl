%% Nodes on one host or on two, which tests/verbs-vm makes. The tests run at host 0; host 1 serves them
%% over a folder that both see, so that every wire is free to be cut.
-module(caravan_hosts).


-export([run/1]).
-export([init/2, pre_init_per_testcase/4, post_end_per_testcase/5]).
-export([count/0, kind/0, peer_host/0, on/2, shell/2, devices/0, objects/0, objects/1, as_before/2]).
-export([start_all/1, stop/1, signal/2, name/1, os_pid/1, call/2, call/4]).
-export([pair/2, with/2, linked/2]).
-export([connect/2, info/2, transport/2, logged/1, has_logged/2, resources/1, settle/1,
         resident_bytes/1, nodedown_after/3]).

-define(REPLY_MS, 300000).
%% A folder of two machines tells of nothing by itself.
-define(LOOK_MS, 10).

%% Runs suites at host 0, serves them at host 1, and ends this node with a status.
%% CARAVAN_CASES="CASE..." runs these alone, of the suites that have them.
run(Suites) ->
    halt(case {count(), os:getenv("VERBS_HOST")} of
             {2, "1"} -> serve(0);
             _ -> verdict([run_suite(Suite) || Suite <- Suites])
         end).

run_suite(Suite) ->
    ok = filelib:ensure_dir(logs() ++ "/"),
    Only = [list_to_atom(Case) || Case <- string:lexemes(os:getenv("CARAVAN_CASES", ""), " ")],
    Cases = [Case || Case <- Suite:all(), Only =:= [] orelse lists:member(Case, Only)],
    ct:run_test([{suite, Suite}, {testcase, Cases}, {dir, filename:dirname(code:which(Suite))}, {auto_compile, false},
                 {logdir, logs()}, {ct_hooks, [?MODULE]}]).

%% Hooks of Common Test: each case is named when it begins, for whoever watches that something moves, and when it has
%% ended, with the time that it took.
init(_, _) -> {ok, none}.

pre_init_per_testcase(Suite, Case, Config, _) ->
    io:format(user, "~p:~p~n", [Suite, Case]),
    {Config, erlang:monotonic_time(millisecond)}.

post_end_per_testcase(Suite, Case, _, Return, Begin) ->
    io:format(user, "~p:~p took ~.1f s~n", [Suite, Case, (erlang:monotonic_time(millisecond) - Begin) / 1000]),
    {Return, Begin}.

logs() -> os:getenv("CARAVAN_LOGS", "/tmp/caravan_logs").

verdict(Results) ->
    count() =:= 2 andalso on(1, finish),
    Passed = lists:all(fun({Ok, 0, {0, 0}}) -> Ok > 0; (_) -> false end, Results),
    io:format("caravan: passed, failed, {skipped, skipped by failures}: ~p~n", [Results]),
    Passed orelse io:put_chars(failures()),
    case Passed of true -> 0; false -> 1 end.

%% The logs go with the machine: what they say of cases that failed.
failures() ->
    Logs = filelib:wildcard(logs() ++ "/ct_run.*/*/run.*/suite.log"),
    [["=case ", Case] || Log <- Logs, {ok, Text} <- [file:read_file(Log)],
                         Case <- tl(binary:split(Text, <<"\n=case ">>, [global])),
                         binary:match(Case, <<"=result        ok">>) =:= nomatch].

%% ---------------------------------------------------------------------------------------------
%% Hosts.

count() -> list_to_integer(os:getenv("VERBS_HOSTS")).

kind() -> os:getenv("VERBS_KIND").

%% Returns the host of the second node of a pair.
peer_host() -> count() - 1.

%% Returns the result of the fun at that host. At host 1 many funs run beside each other.
on(0, Fun) ->
    Fun();
on(1, Fun) ->
    Number = erlang:unique_integer([positive]),
    Request = shared("request", Number),
    ok = file:write_file(Request ++ ".part", term_to_binary(Fun)),
    ok = file:rename(Request ++ ".part", Request),
    case wait_for_file(shared("reply", Number), ?REPLY_MS) of
        {returned, Value} -> Value;
        {raised, Class, Reason, Stack} -> erlang:raise(Class, Reason, Stack)
    end.

serve(Served) ->
    Names = filelib:wildcard("request.*[0-9]", shared()),
    case [Fun || Name <- Names, Fun <- [taken(Name)], Fun =:= finish] of
        [] ->
            receive after ?LOOK_MS -> ok end,
            serve(Served + length(Names));
        [finish] ->
            0
    end.

taken(Name) ->
    Path = filename:join(shared(), Name),
    {ok, Bytes} = file:read_file(Path),
    ok = file:delete(Path),
    "request." ++ Number = Name,
    case binary_to_term(Bytes) of
        finish ->
            reply(Number, {returned, ok}),
            finish;
        Fun ->
            spawn(fun() ->
                      reply(Number, try {returned, Fun()}
                                    catch Class:Reason:Stack -> {raised, Class, Reason, Stack}
                                    end)
                  end)
    end.

reply(Number, Reply) ->
    Path = shared("reply", Number),
    ok = file:write_file(Path ++ ".part", term_to_binary(Reply)),
    ok = file:rename(Path ++ ".part", Path).

wait_for_file(Path, Ms) ->
    case file:read_file(Path) of
        {ok, Bytes} ->
            ok = file:delete(Path),
            binary_to_term(Bytes);
        {error, enoent} when Ms > 0 ->
            receive after ?LOOK_MS -> ok end,
            wait_for_file(Path, Ms - ?LOOK_MS)
    end.

shared() -> os:getenv("VERBS_SHARED").

shared(What, Number) when is_integer(Number) -> shared(What, integer_to_list(Number));
shared(What, Number) -> filename:join(shared(), What ++ "." ++ Number).

%% Returns what a command prints at a host; the command has to succeed.
shell(Host, Command) ->
    on(Host, fun() ->
                 {0, Text} = caravan_cluster:shell(Command),
                 Text
             end).

%% Returns what each host's kernel keeps for the users of its devices: counts of each kind.
devices() ->
    [shell(Host, "rdma resource show") || Host <- lists:seq(0, peer_host())].

%% Returns these counts without the contexts, one for each process that has the device open.
objects() -> objects(devices()).

objects(Devices) -> [re:replace(Text, "ctx [0-9]+", "", [global, {return, list}]) || Text <- Devices].

%% Waits until the kernels keep what they kept before. The result of end_per_testcase: Common Test fails a case whose
%% end returns {fail, _}, and only warns of one whose end raises an exception.
as_before(Kept, Before) ->
    try
        caravan_cluster:wait_until(fun() ->
            case Kept() of
                Before -> true;
                Now -> {before, Before, now, Now}
            end
        end)
    catch
        error:Why -> {fail, Why}
    end.

%% ---------------------------------------------------------------------------------------------
%% Nodes: {Host, what caravan_cluster calls a node}.

start_all(Places) ->
    Self = self(),
    Starts = [spawn_monitor(fun() -> Self ! {self(), on(Host, fun() -> start_lasting(Options) end)} end)
              || {Host, Options} <- Places],
    [receive
         {Pid, Node} -> erlang:demonitor(Monitor, [flush]), {Host, Node};
         {'DOWN', Monitor, process, Pid, Reason} -> error({not_started, Place, Reason})
     end || {{Pid, Monitor}, {Host, _} = Place} <- lists:zip(Starts, Places)].

%% The process that starts a node is linked to it.
start_lasting(Options) ->
    [Node] = caravan_cluster:start_all([Options]),
    Node.

stop(Nodes) when is_list(Nodes) -> lists:foreach(fun stop/1, Nodes);
stop({Host, Node}) -> on(Host, fun() -> caravan_cluster:stop(Node) end).

%% Starts one node at each host; if there is only one, both there.
pair(OptionsA, OptionsB) ->
    start_all([{0, OptionsA}, {peer_host(), OptionsB}]).

with(Nodes, Fun) ->
    try Fun(Nodes) after stop(Nodes) end.

%% Links two nodes over RDMA, or fails with the logs of both. A slow machine may exceed the time that a node gives to
%% agreeing on a transport: then a later attempt succeeds.
linked(A, B) ->
    caravan_cluster:wait_until(fun() ->
        case connect(A, B) andalso transport(A, B) of
            rdma -> true;
            Other ->
                call(A, erlang, disconnect_node, [name(B)]),
                {Other, [logged(X) || X <- [A, B]]}
        end
    end).

signal({Host, Node}, Signal) -> on(Host, fun() -> caravan_cluster:signal(Node, Signal) end).

name({_, Node}) -> caravan_cluster:name(Node).

%% Returns the node's process number, at its host.
os_pid({_, Node}) -> caravan_cluster:os_pid(Node).

call({Host, Node}, Fun) -> on(Host, fun() -> caravan_cluster:call(Node, Fun) end).

call({Host, Node}, M, F, A) -> on(Host, fun() -> caravan_cluster:call(Node, M, F, A) end).

connect(A, B) -> call(A, net_kernel, connect_node, [name(B)]).

%% As caravan_cluster's of two nodes.
info({Host, A}, {_, B}) -> on(Host, fun() -> caravan_cluster:info(A, B) end).

transport(A, B) -> maps:get(transport, info(A, B)).

logged({Host, Node}) -> on(Host, fun() -> caravan_cluster:logged(Node) end).

%% Whether one of the texts that a node has logged has each of the parts; waits for it.
has_logged({Host, Node}, Parts) ->
    on(Host, fun() ->
        caravan_cluster:wait_until(fun() ->
            Texts = caravan_cluster:logged(Node),
            lists:any(fun(Text) -> lists:all(fun(Part) -> string:find(Text, Part) =/= nomatch end, Parts)
                      end, Texts) orelse {not_logged, Parts, Texts}
        end)
    end).

resources({Host, Node}) -> on(Host, fun() -> caravan_cluster:resources(Node) end).

settle({Host, Node}) -> on(Host, fun() -> caravan_cluster:settle(Node) end).

resident_bytes({Host, Node}) ->
    on(Host, fun() ->
        {ok, Statm} = file:read_file("/proc/" ++ caravan_cluster:os_pid(Node) ++ "/statm"),
        [_, Resident | _] = binary:split(Statm, <<" ">>, [global]),
        binary_to_integer(Resident) * 4096
    end).

%% How long after the fault the first node hears that the second is down, in milliseconds of the first
%% one's host, and the reason.
nodedown_after({Host, A}, B, Fault) ->
    Name = name(B),
    Self = self(),
    Watcher = spawn_link(fun() -> Self ! {self(), on(Host, fun() -> watch(A, Name) end)} end),
    on(Host, fun() ->
        caravan_cluster:wait_until(fun() -> is_pid(caravan_cluster:call(A, erlang, whereis, [down_watcher])) end)
    end),
    At = on(Host, fun() -> erlang:system_time(millisecond) end),
    Fault(),
    receive {Watcher, {SeenAt, Info}} -> {SeenAt - At, proplists:get_value(nodedown_reason, Info)} end.

watch(A, Name) ->
    caravan_cluster:call(A, fun() ->
        Wanted = [nodedown_reason, {node_type, all}],
        ok = net_kernel:monitor_nodes(true, Wanted),
        true = register(down_watcher, self()),
        receive
            {nodedown, Name, Info} ->
                unregister(down_watcher),
                net_kernel:monitor_nodes(false, Wanted),
                {erlang:system_time(millisecond), Info}
        end
    end).

%% Nodes on one host or on two, which tests/verbs-vm makes. The tests run at host 0; host 1 serves them
%% over a folder that both see, so that every wire is free to be cut.
-module(caravan_hosts).

-export([run/1]).
-export([init/2, pre_init_per_testcase/4, post_end_per_testcase/5]).
-export([count/0, kind/0, peer_host/0, on/2, shell/2, devices/0, objects/0, objects/1, as_before/2]).
-export([node_at/2, pair/2, linked/2, forgotten/1, forgotten/2]).

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
%% Nodes.

%% Returns the options of a node at that host.
node_at(Host, Options) -> Options#{at => fun(Fun) -> on(Host, Fun) end}.

%% Returns the options of one node at each host; if there is only one, of both there.
pair(OptionsA, OptionsB) -> [node_at(0, OptionsA), node_at(peer_host(), OptionsB)].

%% Links two nodes over RDMA, or fails with the logs of both. A slow machine may exceed the time that a node gives to
%% agreeing on a transport: then a later attempt succeeds.
linked(A, B) ->
    caravan_cluster:wait_until(fun() ->
        case caravan_cluster:connect(A, B) andalso caravan_cluster:transport(A, B) of
            rdma -> true;
            Other ->
                caravan_cluster:call(A, erlang, disconnect_node, [caravan_cluster:name(B)]),
                {Other, [caravan_cluster:logged(X) || X <- [A, B]]}
        end
    end).

%% Returns when this node has no link any more.
forgotten(Node) -> forgotten(Node, 120000).

forgotten(Node, Ms) ->
    caravan_cluster:wait_until(fun() ->
        [] =:= caravan_cluster:call(Node, erlang, nodes, [])
            andalso [] =:= caravan_cluster:call(Node, caravan_dist, info, [])
    end, Ms).

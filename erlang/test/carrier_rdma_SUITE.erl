%% RDMA where it is not available: what nodes report then, and what asking for it does to a node.
%% The links themselves are tested where there are devices: tests/verbs.
%%
%% Every case holds on a machine without a device, whether rdma-core is installed on it or not;
%% process_stays_as_it_was also on one with devices.
-module(carrier_rdma_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([demanded/1, demanded_of_older/1, encrypted/1, encrypted_over_shm/1,
         job_without_device/1, asking_is_cheap/1, process_stays_as_it_was/1]).

-import(caravan_cluster, [with/2, call/2, call/4, connect/2, transport/2, name/1, has_logged/2]).

suite() -> [{timetrap, {minutes, 10}}].

all() ->
    [demanded, demanded_of_older, encrypted, encrypted_over_shm, job_without_device,
     asking_is_cheap, process_stays_as_it_was].

%% Where TCP is refused, it is by both sides, and both logs say what was demanded and why it cannot be.
refused(A, B, Words) ->
    false = connect(A, B),
    [has_logged(Node, ["no link to" | Wanted]) || {Node, Wanted} <- Words],
    ?assertEqual([], call(A, erlang, nodes, [[visible, hidden]])),
    ?assertEqual([], call(B, erlang, nodes, [[visible, hidden]])).

demanded(_) ->
    Why = "this machine has no RDMA device",
    with([#{transport => rdma}, #{}, #{transport => shm}, #{transport => tcp}],
         fun([Rdma, Auto, Shm, Tcp]) ->
                 refused(Rdma, Auto, [{Rdma, ["the option transport names rdma here", Why]},
                                      {Auto, ["the option transport names rdma at the peer", Why]}]),
                 refused(Auto, Rdma, [{Auto, ["the option transport names rdma at the peer"]}]),
                 refused(Rdma, Shm, [{Rdma, ["names rdma here", "names shm at the peer"]},
                                     {Shm, ["names shm here", "names rdma at the peer"]}]),
                 refused(Tcp, Rdma, [{Tcp, ["names rdma at the peer", "names tcp here"]},
                                     {Rdma, ["names rdma here", "names tcp at the peer"]}]),
                 %% Each of them is well otherwise.
                 true = connect(Auto, Shm),
                 ?assertEqual(shm, transport(Auto, Shm))
         end).

%% A node that does not speak Caravan is told nothing, and gets no link.
demanded_of_older(_) ->
    with([#{transport => rdma}, #{carrier => plain}], fun([Rdma, Plain]) ->
        refused(Rdma, Plain, [{Rdma, ["names rdma here", "the peer does not speak Caravan"]}]),
        false = connect(Plain, Rdma)
    end).

%% TCP would be in the clear: refused, with the remedy. Shared memory needs no encryption.
encrypted(_) ->
    Remedy = "-proto_dist inet_tls",
    Encrypt = ["-caravan", "encrypt", "true"],
    with([#{args => Encrypt}, #{transport => tcp}, #{carrier => plain}], fun([Encrypting, Tcp, Plain]) ->
        refused(Encrypting, Tcp, [{Encrypting, ["encrypt is set here", Remedy, "names tcp at the peer"]},
                                   {Tcp, ["encrypt is set at the peer", Remedy, "names tcp here"]}]),
        refused(Tcp, Encrypting, [{Tcp, ["encrypt is set at the peer", Remedy]},
                                   {Encrypting, ["encrypt is set here", "names tcp at the peer"]}]),
        refused(Encrypting, Plain, [{Encrypting, ["encrypt is set here", "does not speak Caravan"]}]),
        false = connect(Plain, Encrypting)
    end).

encrypted_over_shm(_) ->
    with([#{args => ["-caravan", "encrypt", "true"]}, #{}], fun([A, B]) ->
        true = connect(A, B),
        ?assertEqual(shm, transport(A, B)),
        ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []]))
    end).

%% The driver's operations out of order, in haste, given up and left behind: a sentence each, and
%% nothing is left.
job_without_device(_) ->
    with([#{}], fun([A]) ->
        %% Once, for what is made once.
        call(A, fun jobs/0),
        Before = caravan_cluster:state(A),
        call(A, fun jobs/0),
        caravan_cluster:unchanged(Before)
    end).

jobs() ->
    Configuration = #{ring_bytes => 65536, busy_bytes => 65536, spin => off, fragments => true,
                      me => <<"a@h">>, peer => <<"b@h">>, seal => {cookie, <<"mint">>}},
    NoDevice = {error, <<"this machine has no RDMA device">>},
    [begin
         {ok, Port} = caravan_driver:open(),
         {error, _} = caravan_driver:rdma_connect(Port, <<"x">>, 1000),
         ok = caravan_driver:configure(Port, Configuration#{seal := Seal}),
         NoDevice = caravan_driver:offer(Port, 1000),
         {error, _} = caravan_driver:rdma_connect(Port, <<>>, 1000),
         {error, _} = caravan_driver:rdma_connect(Port, <<7:64, 0, "ports">>, 1000),
         {error, Key} = caravan_driver:rdma_connect(Port, <<65536:64, (1 - Hello), "kports">>, 1000),
         true = string:find(Key, "key") =/= nomatch,
         {error, _} = caravan_driver:rdma_accept(Port, <<0, "message">>, 1000),
         {error, _} = caravan_driver:rdma_finish(Port, <<"answer">>, 1000),
         <<>> = caravan_driver:device(Port),
         %% Two at once; and a port that closes under one.
         _ = port_control(Port, 15, <<>>),
         _ = port_control(Port, 15, <<>>),
         ok = caravan_driver:cancel(Port),
         _ = port_control(Port, 15, <<>>),
         ok = caravan_driver:close(Port),
         receive {Port, done, _} -> ok after 0 -> ok end
     end || _ <- lists:seq(1, 50), {Seal, Hello} <- [{none, 0}, {{cookie, <<"mint">>}, 1}]],
    ok.

%% Each connection over TCP asks; without a device that is a look at a folder.
asking_is_cheap(_) ->
    with([#{}], fun([A]) ->
        Times = call(A, fun() ->
                    {error, <<"this machine has no RDMA device">>} = caravan_cluster:rdma(),
                    lists:sort([element(1, timer:tc(fun caravan_cluster:rdma/0)) || _ <- lists:seq(1, 101)])
                end),
        Median = lists:nth(51, Times),
        ct:pal("asking whether there is RDMA: ~b us", [Median]),
        ?assert(Median < 10000)
    end).

%% A library in the emulator must leave its signal handlers alone, and start no thread in secret.
process_stays_as_it_was(Config) ->
    Broken = filename:join(proplists:get_value(priv_dir, Config), "broken"),
    ok = filelib:ensure_dir(filename:join(Broken, "x")),
    [ok = file:write_file(filename:join(Broken, File), "not a library")
     || File <- ["libibverbs.so.1", "librdmacm.so.1"]],
    [with([#{name => none, args => ["-caravan", "transport", "auto"], env => Env}, #{}], fun([A, B]) ->
         %% Everything that the emulator does by itself when it first runs, loads and connects.
         call(A, fun() -> [os:cmd("true"), inet:getaddr("localhost", inet)] end),
         Before = call(A, fun process/0),
         ?assertEqual([], call(A, fun drivers/0)),
         {ok, _} = call(A, net_kernel, start, [[list_to_atom(peer:random_name()), shortnames]]),
         true = call(A, erlang, set_cookie, [caravan_test]),
         true = call(A, net_kernel, connect_node, [name(B)]),
         #{transport := shm} = call(A, caravan_dist, info, [name(B)]),
         _ = call(A, caravan_cluster, rdma, []),
         pong = call(A, net_adm, ping, [name(B)]),
         ?assertEqual(["caravan_driver"], call(A, fun drivers/0)),
         After = call(A, fun process/0),
         ct:pal("~p: ~p", [Env, After]),
         ?assertEqual(maps:get(signals, Before), maps:get(signals, After)),
         ?assertEqual([], maps:get(threads, After) -- maps:get(threads, Before))
     end) || Env <- [[], [{"LD_LIBRARY_PATH", Broken}]]].

%% What the kernel says of this process: caught, ignored and blocked signals of each thread, and what
%% its threads are called.
process() ->
    Tasks = filelib:wildcard("/proc/self/task/*"),
    #{signals => lists:usort([Line || Line <- lines("/proc/self/status"),
                                      string:prefix(Line, "Sig") =/= nomatch,
                                      string:prefix(Line, "SigQ") =:= nomatch,
                                      string:prefix(Line, "SigPnd") =:= nomatch]),
      threads => lists:sort(lists:append([lines(filename:join(Task, "comm")) || Task <- Tasks]))}.

lines(File) ->
    {ok, Text} = file:read_file(File),
    string:lexemes(binary_to_list(Text), "\n").

drivers() ->
    {ok, Loaded} = erl_ddll:loaded_drivers(),
    [Name || Name <- Loaded, Name =:= "caravan_driver"].

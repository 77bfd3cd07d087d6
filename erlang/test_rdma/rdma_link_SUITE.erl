%% Links over RDMA between real nodes: how they come about, what they say of themselves, and that all
%% that is sent arrives.
%%
%% To start a node takes seconds in a guest, so all cases have one pair of them, which reads its options anew for each
%% connection. Only what the command line alone can say, and what ends a node, takes nodes of a case's own.
-module(rdma_link_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).
-export([named/1, automatic/1, ipv6/1, terms/1, encrypted/1, wrong_cookie/1, said_last/1, released/1]).
-export([take/3]).

-import(caravan_hosts, [linked/2, pair/2, forgotten/1]).
-import(caravan_cluster, [with/2, call/2, call/4, connect/2, info/2, name/1, transport/2, has_logged/2]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [named, automatic, ipv6, terms, encrypted, wrong_cookie, said_last, released].

%% No node runs yet: what the kernel keeps now for users of devices, it must keep after every case.
init_per_suite(Config) ->
    Before = caravan_hosts:devices(),
    [{both, caravan_cluster:start_all(pair(#{}, #{}))}, {devices, Before} | Config].

end_per_suite(Config) ->
    caravan_cluster:stop(both(Config)).

init_per_testcase(_, Config) ->
    [call(X, ets, delete_all_objects, [caravan_test_log]) || X <- both(Config)],
    set(both(Config), [{transport, rdma}]),
    Config.

%% The next case begins when nothing is left of this one's links, neither at the nodes nor in the kernel. A node that
%% has used iWARP keeps the devices open until it ends, as librdmacm has it.
end_per_testcase(released, _) ->
    ok;
end_per_testcase(_, Config) ->
    part(both(Config)),
    caravan_hosts:as_before(fun caravan_hosts:objects/0, caravan_hosts:objects(proplists:get_value(devices, Config))).

%% The last case: what the nodes had open goes with them.
released(Config) ->
    caravan_cluster:stop(both(Config)),
    ok = caravan_hosts:as_before(fun caravan_hosts:devices/0, proplists:get_value(devices, Config)).

both(Config) -> proplists:get_value(both, Config).

%% The options of these nodes for the links to come: these, and else the defaults.
set(Nodes, Options) ->
    [call(X, fun() ->
         [application:unset_env(caravan, Option)
          || Option <- [transport, ring_bytes, busy_bytes, fragments, encrypt]],
         [application:set_env(caravan, Option, Value) || {Option, Value} <- Options]
     end) || X <- Nodes].

%% Ends the link between two nodes, and returns when both have forgotten it.
part([A, B]) ->
    call(A, erlang, disconnect_node, [name(B)]),
    [forgotten(X) || X <- [A, B]].

named(Config) ->
    [A, B] = both(Config),
    linked(A, B),
    [told_of(X, Y) || {X, Y} <- [{A, B}, {B, A}]].

told_of(X, Y) ->
    #{transport := rdma, device := Device, registered_bytes := Registered, ring_bytes := Ring,
      doorbells := Doorbells, completions := Completions} = info(X, Y),
    ?assertMatch(<<_:3/binary, _, " port 1 (", _/binary>>, Device),
    ?assertEqual(list_to_binary(caravan_hosts:kind()), binary:part(Device, 0, 3)),
    ?assert(Registered >= 2 * Ring),
    ?assert(Doorbells > 0),
    ?assert(Completions > 0),
    has_logged(X, ["caravan: RDMA to " ++ atom_to_list(name(Y)), binary_to_list(Device)]).

%% Two hosts take RDMA by themselves, and say why not shared memory; one host takes shared memory.
automatic(Config) ->
    [A, B] = both(Config),
    set([A, B], []),
    case caravan_hosts:count() of
        1 ->
            true = connect(A, B),
            ?assertEqual(shm, transport(A, B));
        2 ->
            linked(A, B),
            [begin
                 told_of(X, Y),
                 has_logged(X, ["caravan: RDMA to", "shared memory: the peer's UNIX socket cannot be reached"])
             end || {X, Y} <- [{A, B}, {B, A}]]
    end.

ipv6(_) ->
    Options = #{transport => rdma, carrier => caravan6},
    with(pair(Options, Options), fun([A, B]) ->
        linked(A, B),
        told_of(A, B),
        ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []]))
    end).

%% Terms of every size around those of the rings, by some processes both ways at once.
terms(Config) ->
    Small = [{transport, rdma}, {ring_bytes, 65536}, {busy_bytes, 4096}],
    [begin
         set(both(Config), Options),
         exchange(both(Config))
     end || Options <- [Small, [{fragments, false} | Small], [{transport, rdma}]]].

exchange([A, B]) ->
    linked(A, B),
    Classes = [{60, small}, {20, {binary, 5000}}, {10, {binary, 300000}}, {10, {nested, 3000}},
               {2, {binary, 2000000}}, {1, {nested, 20000}}],
    carrier_property_SUITE:exchange([A, B], 60, Classes, 2),
    part([A, B]).

%% One side that wants it is enough.
encrypted(Config) ->
    [A, B] = both(Config),
    [begin
         [set([X], [{transport, rdma}, {encrypt, Wants}]) || {X, Wants} <- [{A, First}, {B, Second}]],
         [call(X, ets, delete_all_objects, [caravan_test_log]) || X <- [A, B]],
         linked(A, B),
         Sentence = case First or Second of
                        true -> "caravan: encrypted RDMA to ";
                        false -> "caravan: RDMA to "
                    end,
         [has_logged(X, [Sentence ++ atom_to_list(name(Y))]) || {X, Y} <- [{A, B}, {B, A}]],
         exchange([A, B])
     end || First <- [true, false], Second <- [true, false]].

wrong_cookie(Config) ->
    [A, B] = both(Config),
    Cookie = call(B, erlang, get_cookie, []),
    call(B, erlang, set_cookie, [another]),
    try
        [?assertEqual(pang, call(X, net_adm, ping, [name(Y)])) || {X, Y} <- [{A, B}, {B, A}]],
        [?assertEqual([], call(X, caravan_dist, info, [])) || X <- [A, B]]
    after
        call(B, erlang, set_cookie, [Cookie])
    end.

%% What was sent before an orderly end arrives, as over TCP: what is in the ring, and what waits for room
%% in the port. (What the emulator holds back from a busy port is lost, over TCP, too.)
said_last(Config) ->
    [A, B] = both(Config),
    {Few, Many} = {{100, 10}, {15, 40000}},
    with(lists:duplicate(3, #{transport => rdma}), fun([Stops, StopsToo, Halts]) ->
        [begin
             {Count, _} = Sizes,
             ?assertEqual({End, {took, Count}}, {End, said_last(X, B, End, Sizes)}),
             forgotten(B)
         end || {X, End, Sizes} <- [{A, disconnect, Few}, {A, disconnect, Many}, {Stops, stop, Few}, {StopsToo, stop, Many}]],
        %% A node that halts at once takes a part along, over TCP, too: what comes is whole and in order.
        ?assertMatch({took, _}, said_last(Halts, B, halt, Many))
    end).

said_last(A, B, End, {Count, Bytes}) ->
    linked(A, B),
    Self = self(),
    Taker = spawn_link(fun() -> Self ! {self(), call(B, ?MODULE, take, [name(A), Count, Bytes])} end),
    caravan_cluster:wait_until(fun() -> is_pid(call(B, erlang, whereis, [taker])) end),
    Node = name(B),
    catch call(A, fun() ->
        [{taker, Node} ! {N, binary:copy(<<N>>, Bytes)} || N <- lists:seq(1, Count)],
        case End of
            disconnect -> erlang:disconnect_node(Node);
            stop -> init:stop();
            halt -> halt()
        end
    end),
    receive {Taker, Result} -> Result end.

%% Messages of a number and so many bytes of it, in their order, until the sender's node has ended.
take(Sender, Count, Bytes) ->
    true = monitor_node(Sender, true),
    true = register(taker, self()),
    take_next(1, Count, Bytes).

take_next(N, Count, _) when N > Count ->
    {took, Count};
take_next(N, Count, Bytes) ->
    Expected = binary:copy(<<N>>, Bytes),
    receive
        {N, Expected} -> take_next(N + 1, Count, Bytes);
        {nodedown, _} -> {took, N - 1};
        Other -> {came, Other, instead_of, N}
    end.

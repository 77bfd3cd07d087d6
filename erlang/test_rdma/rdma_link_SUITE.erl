%% Links over RDMA between real nodes: how they come about, what they say of themselves, and that all
%% that is sent arrives.
-module(rdma_link_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([named/1, automatic/1, ipv6/1, terms/1, encrypted/1, wrong_cookie/1, said_last/1]).
-export([take/3]).

-import(caravan_hosts, [linked/2, pair/2, with/2,
                        call/2, call/4, connect/2, info/2, name/1, transport/2, has_logged/2]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [named, automatic, ipv6, terms, encrypted, wrong_cookie, said_last].

%% Nothing runs yet: what the kernel keeps now for users of devices, it must keep after every case.
init_per_suite(Config) ->
    [{devices, caravan_hosts:devices()} | Config].

end_per_suite(_) ->
    ok.

end_per_testcase(_, Config) ->
    Before = proplists:get_value(devices, Config),
    caravan_cluster:wait_until(fun() ->
        case caravan_hosts:devices() of
            Before -> true;
            Now -> {before, Before, now, Now}
        end
    end).

pair(Options) ->
    pair(Options, Options).

named(_) ->
    with(pair(#{transport => rdma}), fun([A, B]) ->
        pong = call(A, net_adm, ping, [name(B)]),
        [told_of(X, Y) || {X, Y} <- [{A, B}, {B, A}]]
    end).

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
automatic(_) ->
    with(pair(#{}), fun([A, B]) ->
        pong = call(A, net_adm, ping, [name(B)]),
        case caravan_hosts:count() of
            1 ->
                ?assertEqual(shm, transport(A, B));
            2 ->
                [begin
                     told_of(X, Y),
                     has_logged(X, ["caravan: RDMA to", "shared memory: the peer's UNIX socket cannot be reached"])
                 end || {X, Y} <- [{A, B}, {B, A}]]
        end
    end).

ipv6(_) ->
    with(pair(#{transport => rdma, carrier => caravan6}), fun([A, B]) ->
        linked(A, B),
        told_of(A, B),
        ?assertEqual(name(B), call(A, erpc, call, [name(B), erlang, node, []]))
    end).

%% Terms of every size around those of the rings, by some processes both ways at once.
terms(_) ->
    Args = ["-caravan", "ring_bytes", "65536", "-caravan", "busy_bytes", "4096"],
    [with(pair(#{transport => rdma, args => More}), fun([A, B]) -> exchange(A, B) end)
     || More <- [Args, Args ++ ["-caravan", "fragments", "false"], []]].

exchange(A, B) ->
    linked(A, B),
    Seed = case os:getenv("CARAVAN_SEED") of
               false -> erlang:system_time() band 16#FFFFFFFF;
               Text -> list_to_integer(Text)
           end,
    ct:pal("CARAVAN_SEED=~b", [Seed]),
    Classes = [{60, small}, {20, {binary, 5000}}, {10, {binary, 300000}}, {10, {nested, 3000}},
               {2, {binary, 2000000}}, {1, {nested, 20000}}],
    Count = 60,
    Runs = [begin
                Name = list_to_atom("receiver_" ++ integer_to_list(N)),
                {_, Taking} = spawn_monitor(fun() ->
                    exit(call(To, carrier_property_SUITE, receive_all,
                              [Name, {Seed, N, 0}, Count, Classes, 60000]))
                end),
                caravan_cluster:wait_until(fun() -> is_pid(call(To, erlang, whereis, [Name])) end),
                {_, Sending} = spawn_monitor(fun() ->
                    exit(call(From, carrier_property_SUITE, send,
                              [{Name, name(To)}, {Seed, N, 0}, Count, Classes, 0]))
                end),
                [{Taking, {ok, Count}}, {Sending, ok}]
            end || {From, To, N} <- [{A, B, 1}, {B, A, 2}, {A, B, 3}, {B, A, 4}]],
    [receive {'DOWN', Monitor, _, _, Result} -> ?assertEqual(Expected, Result) end
     || {Monitor, Expected} <- lists:append(Runs)].

%% One side that wants it is enough.
encrypted(_) ->
    Plain = #{transport => rdma},
    Sealed = #{transport => rdma, args => ["-caravan", "encrypt", "true"]},
    [with(pair(First, Second), fun([A, B]) ->
         linked(A, B),
         Word = case Sealed of First -> encrypted; Second -> encrypted; _ -> plain end,
         Sentence = maps:get(Word, #{encrypted => "caravan: encrypted RDMA to ", plain => "caravan: RDMA to "}),
         [has_logged(X, [Sentence ++ atom_to_list(name(Y))]) || {X, Y} <- [{A, B}, {B, A}]],
         exchange(A, B)
     end) || {First, Second} <- [{Sealed, Sealed}, {Sealed, Plain}, {Plain, Sealed}, {Plain, Plain}]].

wrong_cookie(_) ->
    with(pair(#{transport => rdma}, #{transport => rdma, cookie => "another"}), fun([A, B]) ->
        [?assertEqual(pang, call(X, net_adm, ping, [name(Y)])) || {X, Y} <- [{A, B}, {B, A}]],
        [?assertEqual([], call(X, caravan_dist, info, [])) || X <- [A, B]]
    end).

%% What was sent before an orderly end arrives, as over TCP: what is in the ring, and what waits for room
%% in the port. (What the emulator holds back from a busy port is lost, over TCP, too.)
said_last(_) ->
    [with(pair(#{transport => rdma}), fun([A, B]) ->
         ?assertEqual({End, {took, Count}}, {End, said_last(A, B, End, {Count, Bytes})})
     end) || End <- [disconnect, stop], {Count, Bytes} <- [{100, 10}, {15, 40000}]],
    %% A node that halts at once takes a part along, over TCP, too: what comes is whole and in order.
    with(pair(#{transport => rdma}), fun([A, B]) ->
        ?assertMatch({took, _}, said_last(A, B, halt, {15, 40000}))
    end).

said_last(A, B, End, {Count, Bytes}) ->
    true = connect(A, B),
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

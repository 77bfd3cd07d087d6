-module(caravan_options_tests).
-include_lib("eunit/include/eunit.hrl").

defaults_test() ->
    {ok, Options} = caravan_options:check([], []),
    ?assertMatch(#{transport := auto, spin := auto, fragments := true, encrypt := false}, Options).

%% What each option takes, and one value beside it.
accepted_test_() ->
    [?_assertMatch({ok, #{Name := Value}}, caravan_options:check([{Name, Value}], []))
     || {Name, Values} <- [{transport, [auto, shm, rdma, tcp]}, {encrypt, [true, false]}, {spin, [auto, on, off]},
                           {fragments, [true, false]}, {ring_bytes, [65536, 1 bsl 30]},
                           {busy_bytes, [1024, 1 bsl 30, 100000]}],
        Value <- Values].

refused_test_() ->
    [fun() ->
             {error, Sentence} = caravan_options:check([{Name, Value}], []),
             ?assertNotEqual(nomatch, string:find(Sentence, atom_to_list(Name))),
             ?assertNotEqual(nomatch, string:find(Sentence, " takes "))
     end || {Name, Values} <- [{transport, [fast, "shm", 1]}, {spin, [true, never]},
                               {fragments, [on, 0]}, {encrypt, [on, "true"]},
                               {ring_bytes, [65535, 65537, 3 * 65536, 1 bsl 31, "1MiB", 65536.0]},
                               {busy_bytes, [1023, (1 bsl 30) + 1, -1, auto]}],
            Value <- Values].

flags_test_() ->
    [?_assertMatch({ok, #{transport := shm, ring_bytes := 131072}},
                   caravan_options:check([], [["transport", "shm"], ["ring_bytes", "131072"]])),
     ?_assertMatch({ok, #{transport := shm, spin := off}},
                   caravan_options:check([], [["transport", "shm", "spin", "off"]])),
     ?_assertMatch({ok, #{transport := rdma, encrypt := true}},
                   caravan_options:check([], [["transport", "rdma"], ["encrypt", "true"]])),
     {"the command line wins",
      ?_assertMatch({ok, #{transport := tcp}},
                    caravan_options:check([{transport, shm}], [["transport", "tcp"]]))},
     {"the last flag wins",
      ?_assertMatch({ok, #{transport := tcp}},
                    caravan_options:check([], [["transport", "shm"], ["transport", "tcp"]]))},
     {"no value", ?_assertMatch({error, "the caravan option spin takes" ++ _},
                                caravan_options:check([], [["spin"]]))},
     {"no such option",
      fun() ->
              {error, Sentence} = caravan_options:check([], [["transprot", "shm"]]),
              ?assertNotEqual(nomatch, string:find(Sentence, "transprot")),
              ?assertNotEqual(nomatch, string:find(Sentence, "ring_bytes"))
      end},
     {"no such option in the environment",
      ?_assertMatch({error, _}, caravan_options:check([{ring_byte, 65536}], []))}].

spins_test_() ->
    [?_assertEqual(auto, caravan_options:spins(auto, ["beam.smp", "--", "-sbwt", "none"])),
     ?_assertEqual(off, caravan_options:spins(auto, ["beam.smp", "-sbwt", "none", "--"])),
     ?_assertEqual(off, caravan_options:spins(auto, ["beam.smp", "-sbwtnone", "--"])),
     ?_assertEqual(auto, caravan_options:spins(auto, ["-sbwt", "none", "-sbwt", "short"])),
     ?_assertEqual(off, caravan_options:spins(auto, ["-sbwt", "short", "-sbwt", "none"])),
     ?_assertEqual(auto, caravan_options:spins(auto, ["-sbwtdcpu", "none", "-sbwtdio", "none"])),
     ?_assertEqual(auto, caravan_options:spins(auto, ["-sbwtdcpunone", "-S", "1"])),
     ?_assertEqual(on, caravan_options:spins(on, ["-sbwt", "none"])),
     ?_assertEqual(off, caravan_options:spins(off, []))].

doubled_proto_dist_test_() ->
    Check = fun caravan_options:doubled_proto_dist/1,
    [?_assertEqual(none, Check(error)),
     ?_assertEqual(none, Check({ok, [["caravan"]]})),
     ?_assertEqual(none, Check({ok, [["caravan", "inet6_tcp"]]})),
     ?_assertEqual(none, Check({ok, [["inet_tcp"], ["inet_tls"]]})),
     ?_assertMatch({warning, _}, Check({ok, [["caravan"], ["caravan"]]})),
     ?_assertMatch({warning, _}, Check({ok, [["inet_tcp"], ["caravan6"]]}))].

%% @doc The options of this node: their names, their values and their sources.
%%
%% They come from the application environment of `caravan' and from the command line. The command
%% line wins:
%% ```
%% erl -sname a -proto_dist caravan -caravan transport shm -caravan ring_bytes 4194304
%% '''
%% ```
%% [{caravan, [{transport, shm}, {ring_bytes, 4194304}]}].   % sys.config
%% '''
%% <table border="1">
%% <tr><th>option</th><th>takes</th><th>default</th></tr>
%% <tr><td>`transport'</td><td>`auto', `shm', `rdma', `tcp'</td><td>`auto'</td></tr>
%% <tr><td>`ring_bytes'</td><td>a power of two, 64 KiB to 1 GiB; one ring each way</td><td>512 KiB</td></tr>
%% <tr><td>`spin'</td><td>`auto', `on', `off'</td><td>`auto' (`off' under `+sbwt none')</td></tr>
%% <tr><td>`busy_bytes'</td><td>1 KiB to 1 GiB; senders are suspended while more bytes than this
%%   wait in the driver</td><td>128 KiB</td></tr>
%% <tr><td>`fragments'</td><td>`true', `false'; whether the emulator may split long messages</td>
%%   <td>`true'</td></tr>
%% <tr><td>`encrypt'</td><td>`true', `false'; whether RDMA links are encrypted, and TCP refused</td>
%%   <td>`false'</td></tr>
%% </table>
%% If a value is bad, the distribution does not start, and a sentence names the option.
-module(caravan_options).

-include_lib("kernel/include/dist.hrl").

-export([read/0, check/2, spins/2, rejected_flags/1, doubled_proto_dist/1]).
-export_type([options/0]).

-type options() :: #{transport := auto | caravan_transport:transport(),
                     ring_bytes := pos_integer(),
                     spin := auto | on | off,
                     busy_bytes := pos_integer(),
                     fragments := boolean(),
                     encrypt := boolean()}.

-define(MIN_RING_BYTES, 16#10000).
-define(MAX_RING_BYTES, 16#40000000).
-define(MIN_BUSY_BYTES, 1024).
-define(MAX_BUSY_BYTES, 16#40000000).

%% @doc Returns the current options. The distribution starts before applications are loaded, so
%% this loads `caravan', which brings its environment (also from `sys.config').
-spec read() -> {ok, options()} | {error, Sentence :: string()}.
read() ->
    Flags = case init:get_argument(caravan) of
                {ok, Lists} -> Lists;
                error -> []
            end,
    %% Check the flags before the load: the application controller reads them, too, and a bad one
    %% makes it end the node without naming the flag.
    case check([], Flags) of
        {ok, _} ->
            ok = ensure_loaded(),
            check(proplists:delete(included_applications, application:get_all_env(caravan)), Flags);
        Error ->
            Error
    end.

%% @doc Makes the options from an environment and the values of `-caravan' flags, as `init' returns
%% them.
-spec check([{atom(), term()}], [[string()]]) -> {ok, options()} | {error, Sentence :: string()}.
check(Environment, Flags) ->
    case pairs(Flags) of
        {ok, Pairs} -> fold(Environment ++ Pairs, defaults());
        Error -> Error
    end.

%% @doc Returns when to spin: `auto' becomes `off' under `+sbwt none', with which schedulers do not
%% busy-wait. `EmulatorArguments' is what `erlang:system_info(emu_args)' returns. It contains
%% `+sbwt none' as `"-sbwt", "none"' or as one word, wherever it was given, also in ERL_FLAGS.
-spec spins(auto | on | off, [string()]) -> auto | on | off.
spins(auto, EmulatorArguments) ->
    case busy_wait(EmulatorArguments, default) of
        "none" -> off;
        _ -> auto
    end;
spins(Spin, _) ->
    Spin.

%% @doc Returns the distribution flags that this node rejects from every peer, whatever the
%% transport: it must choose them before it knows the peer.
-spec rejected_flags(options()) -> non_neg_integer().
rejected_flags(#{fragments := true}) -> 0;
rejected_flags(#{fragments := false}) -> ?DFLAG_FRAGMENTS band dist_util:rejectable_flags().

%% @doc Returns a warning if `-proto_dist' was given in more than one flag and one of them names
%% Caravan: OTP 25 then starts inet_tcp without a message, and OTP 27 uses only the first flag.
-spec doubled_proto_dist({ok, [[string()]]} | error) -> none | {warning, Sentence :: string()}.
doubled_proto_dist({ok, [_, _ | _] = Flags}) ->
    Named = lists:append(Flags),
    case lists:member("caravan", Named) orelse lists:member("caravan6", Named) of
        true ->
            {warning,
             lists:flatten(io_lib:format(
               "-proto_dist was given ~b times (~s): Erlang/OTP ignores all of them, or all but the "
               "first, and this node does not speak Caravan; give the flag once (look into vm.args, "
               "ERL_FLAGS, ERL_AFLAGS and ERL_ZFLAGS)",
               [length(Flags), lists:join(", ", Named)]))};
        false ->
            none
    end;
doubled_proto_dist(_) ->
    none.

%% ---------------------------------------------------------------------------------------------

%% Runs for each connection, and calls the application controller only if it must.
-spec ensure_loaded() -> ok.
ensure_loaded() ->
    case application:get_key(caravan, vsn) of
        {ok, _} -> ok;
        %% Without a caravan.app there is no environment, and the defaults apply.
        undefined -> _ = application:load(caravan), ok
    end.

-spec defaults() -> options().
defaults() ->
    #{transport => auto, ring_bytes => 16#80000, spin => auto, busy_bytes => 16#20000,
      fragments => true, encrypt => false}.

%% One flag may carry several pairs: `-caravan transport shm spin off'.
-spec pairs([[string()]]) -> {ok, [{atom(), term()}]} | {error, string()}.
pairs(Flags) ->
    pairs(lists:append(Flags), []).

-spec pairs([string()], [{atom(), term()}]) -> {ok, [{atom(), term()}]} | {error, string()}.
pairs([Name, Text | Rest], Pairs) ->
    case known(Name) of
        {ok, Option} -> pairs(Rest, [{Option, value(Text)} | Pairs]);
        error -> unknown(Name)
    end;
pairs([Name], _) ->
    case known(Name) of
        {ok, Option} -> sentence("the caravan option ~s takes ~s; no value was given",
                                 [Name, takes(Option)]);
        error -> unknown(Name)
    end;
pairs([], Pairs) ->
    {ok, lists:reverse(Pairs)}.

-spec known(string()) -> {ok, atom()} | error.
known(Name) ->
    case [Option || Option <- maps:keys(defaults()), atom_to_list(Option) =:= Name] of
        [Option] -> {ok, Option};
        [] -> error
    end.

%% Text that is neither a number nor one of these words stays text, which no option takes.
-spec value(string()) -> integer() | atom() | string().
value(Text) ->
    try list_to_integer(Text)
    catch error:badarg ->
            case lists:member(Text, ["auto", "shm", "rdma", "tcp", "on", "off", "true",
                                      "false"]) of
                true -> list_to_atom(Text);
                false -> Text
            end
    end.

-spec fold([{atom(), term()}], options()) -> {ok, options()} | {error, string()}.
fold([{Option, Value} | Rest], Options) when is_map_key(Option, Options) ->
    case takes(Option, Value) of
        true -> fold(Rest, Options#{Option := Value});
        false -> sentence("the caravan option ~s takes ~s; it was given ~tp",
                          [Option, takes(Option), Value])
    end;
fold([{Option, _} | _], _) ->
    unknown(Option);
fold([], Options) ->
    {ok, Options}.

-spec takes(atom(), term()) -> boolean().
takes(transport, Value) -> lists:member(Value, [auto, shm, rdma, tcp]);
takes(spin, Value) -> lists:member(Value, [auto, on, off]);
takes(Flag, Value) when Flag =:= fragments; Flag =:= encrypt -> is_boolean(Value);
takes(ring_bytes, Value) ->
    is_integer(Value) andalso Value >= ?MIN_RING_BYTES andalso Value =< ?MAX_RING_BYTES
        andalso Value band (Value - 1) =:= 0;
takes(busy_bytes, Value) ->
    is_integer(Value) andalso Value >= ?MIN_BUSY_BYTES andalso Value =< ?MAX_BUSY_BYTES.

-spec takes(atom()) -> string().
takes(transport) -> "auto, shm, rdma or tcp";
takes(spin) -> "auto, on or off";
takes(Flag) when Flag =:= fragments; Flag =:= encrypt -> "true or false";
takes(ring_bytes) ->
    lists:flatten(io_lib:format("a power of two from ~b to ~b (bytes)",
                                [?MIN_RING_BYTES, ?MAX_RING_BYTES]));
takes(busy_bytes) ->
    lists:flatten(io_lib:format("a number from ~b to ~b (bytes)",
                                [?MIN_BUSY_BYTES, ?MAX_BUSY_BYTES])).

-spec unknown(atom() | string()) -> {error, string()}.
unknown(Name) ->
    Names = lists:sort([atom_to_list(Option) || Option <- maps:keys(defaults())]),
    sentence("caravan has no option ~ts; its options are ~s", [Name, lists:join(", ", Names)]).

-spec sentence(string(), [term()]) -> {error, string()}.
sentence(Format, Arguments) ->
    {error, lists:flatten(io_lib:format(Format, Arguments))}.

%% Returns the last value given, as the emulator uses it. Words after "--" are not for the emulator.
-spec busy_wait([string()], default | string()) -> default | string().
busy_wait(["--" | _], Found) -> Found;
busy_wait(["-sbwt", Value | Rest], _) -> busy_wait(Rest, Value);
busy_wait(["-sbwt" ++ Value | Rest], Found) when Value =/= "dcpu", Value =/= "dio", Value =/= [] ->
    case Value of
        "dcpu" ++ _ -> busy_wait(Rest, Found);
        "dio" ++ _ -> busy_wait(Rest, Found);
        _ -> busy_wait(Rest, Value)
    end;
busy_wait([_ | Rest], Found) -> busy_wait(Rest, Found);
busy_wait([], Found) -> Found.

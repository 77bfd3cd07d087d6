%% @doc One node of the benchmark, driven line by line by `caravan bench erlang':
%%
%%     erl -noinput -hidden -name bench1@127.0.0.1 -start_epmd false
%%         -epmd_module caravan_bench_epmd -pa bench/erlang/ebin -s caravan_bench
%%
%% The node reads commands from standard input, one a line, with spaces between
%% the words. It answers each with one line on standard output, `@caravan ok key=value ...'
%% or `@caravan error sentence'. Any other line is the node's log. When the node is up,
%% it prints `@caravan ok name=... port=...' without a command. The node ends at once
%% at the end of standard input, so it does not outlive `caravan bench', even if that is
%% killed.
-module(caravan_bench).

-export([start/0, mark/0]).

-spec start() -> pid().
start() ->
    ok = caravan_bench_ping:start_echo(),
    ok = caravan_bench_stream:start_sink(),
    ok = caravan_bench_rpc:start_servers(),
    spawn(fun standard_input/0).

%% Prints `@caravan mark' when a measured span begins or ends. `caravan bench' then
%% reads the CPU time of this node's operating-system process, which the node itself
%% could read only late while it is under load.
-spec mark() -> ok.
mark() ->
    ?MODULE ! {answer, mark},
    ok.

%% Owns the pipe to `caravan bench' and does nothing else, so that it sees the end
%% of input even while a measurement runs or hangs.
standard_input() ->
    true = register(?MODULE, self()),
    _ = process_flag(priority, max),
    Port = open_port({fd, 0, 1}, [eof, binary, {line, 65536}]),
    Commander = spawn_link(fun() -> commander(Port) end),
    answer(Port, {ok, hello()}),
    standard_input(Port, Commander).

standard_input(Port, Commander) ->
    receive
        {Port, {data, {eol, Line}}} ->
            Commander ! {line, Line},
            standard_input(Port, Commander);
        {Port, eof} ->
            erlang:halt(0, [{flush, false}]);
        {answer, Answer} ->
            answer(Port, Answer),
            standard_input(Port, Commander)
    end.

%% Runs the commands one after the other. It measures the windows of time, so it
%% must not wait behind a hundred callers.
commander(Port) ->
    _ = process_flag(priority, max),
    receive
        {line, Line} ->
            Words = [binary_to_list(W) || W <- binary:split(Line, <<" ">>, [global, trim_all])],
            Answer = try {ok, command(Words)}
                     catch Class:Reason:Stack -> {error, {Class, Reason, Stack}}
                     end,
            ?MODULE ! {answer, Answer},
            commander(Port)
    end.

command(["peers" | Peers]) ->
    caravan_bench_epmd:set_peers([list_to_tuple(string:split(P, "=")) || P <- Peers]),
    [];
command(["connect" | Peers]) ->
    caravan_bench_links:connect(nodes_of(Peers)),
    [];
command(["links" | Peers]) ->
    [{link, L} || L <- caravan_bench_links:counts(nodes_of(Peers))];
command(["rpc", Processes, WarmUp, Window | Peers]) ->
    caravan_bench_rpc:run(nodes_of(Peers), integer(Processes), integer(WarmUp), integer(Window));
command(["ping", Peer, Window]) ->
    caravan_bench_ping:run(list_to_atom(Peer), integer(Window));
command(["stream", Peer, Bytes, InFlight, Window]) ->
    caravan_bench_stream:run(list_to_atom(Peer), integer(Bytes), integer(InFlight), integer(Window));
command(["ping_behind", Peer, Bytes, InFlight, Window]) ->
    caravan_bench_stream:ping_behind(list_to_atom(Peer), integer(Bytes), integer(InFlight),
                                     integer(Window));
command(Words) ->
    error({unknown_command, Words}).

integer(Word) -> list_to_integer(Word).

nodes_of(Words) -> [list_to_atom(W) || W <- Words].

hello() ->
    [{name, node()},
     {port, caravan_bench_epmd:port()},
     {os_pid, os:getpid()},
     {otp, otp_version()},
     {schedulers, erlang:system_info(schedulers_online)}].

%% Returns the full version (25.2.3) if the installation has it, else the release (25).
otp_version() ->
    Release = erlang:system_info(otp_release),
    File = filename:join([code:root_dir(), "releases", Release, "OTP_VERSION"]),
    case file:read_file(File) of
        {ok, Version} -> string:trim(binary_to_list(Version));
        {error, _} -> Release
    end.

answer(Port, mark) ->
    port_command(Port, <<"@caravan mark\n">>);
answer(Port, {ok, Fields}) ->
    port_command(Port, ["@caravan ok", [[$\s, atom_to_list(K), $=, word(V)] || {K, V} <- Fields], $\n]);
answer(Port, {error, What}) ->
    Text = io_lib:format("~0p", [What]),
    port_command(Port, ["@caravan error ", unicode:characters_to_binary(Text), $\n]).

word(V) when is_integer(V) -> integer_to_list(V);
word(V) when is_atom(V) -> atom_to_list(V);
word(V) -> V.

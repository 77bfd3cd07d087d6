%% @doc The server that remote callers call. It passes each request to
%% {@link caravan_bench_back}, which replies to the caller. Like `rpc' of OTP, it never
%% waits, so a slow request would not delay the others.
-module(caravan_bench_front).
-behaviour(gen_server).

-export([start/0]).
-export([init/1, handle_call/3, handle_cast/2]).

-spec start() -> {ok, pid()}.
start() -> gen_server:start({local, ?MODULE}, ?MODULE, [], []).

-spec init([]) -> {ok, []}.
init([]) -> {ok, []}.

-spec handle_call(term(), gen_server:from(), []) -> {noreply, []}.
handle_call(Request, From, State) ->
    gen_server:cast(caravan_bench_back, {Request, From}),
    {noreply, State}.

-spec handle_cast(term(), []) -> {noreply, []}.
handle_cast(_Message, State) -> {noreply, State}.

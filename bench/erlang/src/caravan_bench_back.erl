%% @doc The server behind {@link caravan_bench_front}: it executes the call and replies to the caller.
-module(caravan_bench_back).
-behaviour(gen_server).

-export([start/0]).
-export([init/1, handle_call/3, handle_cast/2]).

-spec start() -> {ok, pid()}.
start() -> gen_server:start({local, ?MODULE}, ?MODULE, [], []).

-spec init([]) -> {ok, []}.
init([]) -> {ok, []}.

-spec handle_call(term(), gen_server:from(), []) -> {reply, term(), []}.
handle_call(Request, _From, State) -> {reply, Request, State}.

-spec handle_cast({term(), gen_server:from()}, []) -> {noreply, []}.
handle_cast({{add, A, B}, From}, State) ->
    gen_server:reply(From, A + B),
    {noreply, State}.

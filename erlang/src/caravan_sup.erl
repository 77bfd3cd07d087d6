%% @doc The application's supervisor. It has no children: what must live lives in the kernel's
%% tree, under the distribution that it serves (see {@link caravan_dist:childspecs/0}).
-module(caravan_sup).
-behaviour(supervisor).

-export([start_link/0, init/1]).

%% @private
-spec start_link() -> {ok, pid()} | ignore | {error, term()}.
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), []}}.
init([]) ->
    {ok, {#{}, []}}.

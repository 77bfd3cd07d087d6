%% @doc The application's supervisor. It has no children: Caravan's processes are in the kernel's
%% supervision tree, under the distribution (see {@link caravan_dist:childspecs/0}).
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

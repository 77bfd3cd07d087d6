%% @doc The OTP application. It lets a release list `caravan' like any other application. At its
%% start, it warns of flags that keep the node from using Caravan. The distribution does not need it.
-module(caravan_app).
-behaviour(application).

-export([start/2, stop/1]).

%% @private
-spec start(term(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Arguments) ->
    caravan_dist:warn_of_doubled_flag(),
    caravan_sup:start_link().

%% @private
-spec stop(term()) -> ok.
stop(_State) ->
    ok.

%% @doc The OTP application, which lets a release list `caravan' like any other application. The
%% distribution does not need it. When it starts, it warns of flags that keep the node from using
%% Caravan.
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

%% @doc The OTP application. The distribution runs without it being started: this only warns of
%% flags that keep the distribution from being Caravan's, and lets a release list `caravan' like
%% any other application.
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

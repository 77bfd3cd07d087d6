defmodule Pair.MixProject do
  use Mix.Project

  def project do
    [
      app: :pair,
      version: "1.0.0",
      deps: [{:caravan, path: System.fetch_env!("CARAVAN_CHECKOUT") <> "/erlang", manager: :rebar3}]
    ]
  end

  def application do
    [mod: {:pair, []}]
  end
end

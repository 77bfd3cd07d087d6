%% @doc Finds the address and the TCP port of a node from its name, through the epmd module.
-module(caravan_locate).

-export([reachable/2, reach/4, epmd/2]).

-type place() :: #{host := string(), ip := term(), port := integer(), version := term()}.

%% @doc Checks whether the host part of a node's name has an address in this family.
-spec reachable(caravan_tcp:inet(), node()) -> boolean().
reachable(Inet, Node) ->
    case string:split(atom_to_list(Node), "@", all) of
        [[_ | _] = Name, [_ | _] = Host] ->
            case epmd(address_please, [Name, Host, Inet:family()]) of
                {ok, _} -> true;
                {ok, _, _, _} -> true;
                _ -> false
            end;
        _ ->
            false
    end.

%% @doc Finds a node and connects to it. Calls `Reset' before each step that may take long.
-spec reach(caravan_tcp:inet(), node(), longnames | shortnames, Reset :: fun(() -> term())) ->
          {ok, place(), inet:socket()} | {error, term()}.
reach(Inet, Node, Names, Reset) ->
    case locate(Inet, Node, Names, Reset) of
        {ok, #{ip := Ip, port := Port} = Place} ->
            _ = Reset(),
            case caravan_tcp:connect(Inet, Ip, Port) of
                {ok, Socket} -> {ok, Place, Socket};
                Error -> Error
            end;
        Error ->
            Error
    end.

%% Returns where a node listens.
-spec locate(caravan_tcp:inet(), node(), longnames | shortnames, Reset :: fun(() -> term())) ->
          {ok, place()} | {error, term()}.
locate(Inet, Node, Names, Reset) ->
    case name_and_host(Inet, Node, Names) of
        {ok, Name, Host} ->
            case epmd(address_please, [Name, Host, Inet:family()]) of
                {ok, Ip, Port, Version} ->
                    {ok, #{host => Host, ip => Ip, port => Port, version => Version}};
                {ok, Ip} ->
                    _ = Reset(),
                    case (net_kernel:epmd_module()):port_please(Name, Ip) of
                        {port, Port, Version} ->
                            {ok, #{host => Host, ip => Ip, port => Port, version => Version}};
                        Error -> {error, {no_port, Error}}
                    end;
                Error ->
                    {error, {no_address, Error}}
            end;
        Error ->
            Error
    end.

%% @doc Calls a function of this node's epmd module, or OTP's if that module does not export it.
-spec epmd(atom(), [term()]) -> term().
epmd(Function, Arguments) ->
    Module = net_kernel:epmd_module(),
    _ = erlang:module_loaded(Module) orelse code:ensure_loaded(Module),
    case erlang:function_exported(Module, Function, length(Arguments)) of
        true -> apply(Module, Function, Arguments);
        false -> apply(erl_epmd, Function, Arguments)
    end.

%% ---------------------------------------------------------------------------------------------

-spec name_and_host(caravan_tcp:inet(), node(), longnames | shortnames) ->
          {ok, string(), string()} | {error, illegal_name}.
name_and_host(Inet, Node, Names) ->
    case string:split(atom_to_list(Node), "@", all) of
        [Name, Host] ->
            Dotted = lists:member($., Host),
            case Names of
                shortnames when Dotted ->
                    refuse("** System NOT running to use fully qualified hostnames **~n"
                           "** Hostname ~ts is illegal **~n", [Host]);
                longnames when not Dotted ->
                    %% An IPv6 address has no dots, but is a full host name.
                    case Inet:parse_address(Host) of
                        {ok, _} -> {ok, Name, Host};
                        _ -> refuse("** System running to use fully qualified hostnames **~n"
                                    "** Hostname ~ts is illegal **~n", [Host])
                    end;
                _ ->
                    {ok, Name, Host}
            end;
        _ ->
            refuse("** Nodename ~tp illegal, it is not of the form name@host **~n", [Node])
    end.

-spec refuse(string(), [term()]) -> {error, illegal_name}.
refuse(Format, Arguments) ->
    error_logger:error_msg(Format, Arguments),
    {error, illegal_name}.

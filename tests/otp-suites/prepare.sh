# shellcheck shell=bash
# shellcheck disable=SC2154 # set by the caller
# Prepares what tests/otp-suites/run needs: OTP's sources, compiled suites.
# The caller sources this, sets here, work and otp_source, and defines fail and say.

erlang_lib() { erl -noinput -eval 'io:put_chars(code:lib_dir()), halt().'; }

# Compiles the modules of this directory and OTP's hook and helpers, and writes $node, the script that
# starts every test node.
prepare_nodes() {
    local release test_server=$otp_source/lib/common_test/test_server bindir
    release=$(erl -noinput -eval 'io:put_chars(erlang:system_info(otp_release)), halt().')
    [ "$(cut -d. -f1 "$otp_source/OTP_VERSION")" = "$release" ] ||
        fail "$otp_source is OTP $(cat "$otp_source/OTP_VERSION"), the installed erl is OTP $release"
    mkdir -p "$work/beams"
    erlc -o "$work/beams" "$here"/src/*.erl || fail "the test runner does not compile"
    compile "$work/beams" "$test_server/ts_install_cth.erl" "$test_server/ts_lib.erl" "$test_server/ts_make.erl"
    node=$work/erl
    bindir=$(erl -noinput -eval 'io:put_chars(os:getenv("BINDIR")), halt().')
    # A node starts its peers with the program in PROGNAME, so they use this script, too. If -proto_dist
    # is given twice, Erlang ignores both without a message. So a case that gives its own one (gen_tcp,
    # erl_uds) gets only that.
    cat >"$node" <<NODE
#!/bin/sh
export ROOTDIR='${bindir%/erts-*}' BINDIR='$bindir' EMU=beam PROGNAME='$node'
ERL_AFLAGS=\$CARAVAN_SUITES_FLAGS
case " \$* " in
    *" -proto_dist "*)
        echo "\$*" >>"\$CARAVAN_SUITES_OTHER"
        ERL_AFLAGS=\${ERL_AFLAGS#-proto_dist caravan} ;;
esac
# The environment would override a case's own -epmd_port.
case " \$* " in
    *" -epmd_port "*) port=\${*#*-epmd_port }; export ERL_EPMD_PORT=\${port%% *} ;;
esac
export ERL_AFLAGS
exec '$bindir/erlexec' "\$@"
NODE
    chmod +x "$node"
}

compile() {
    local out=$1; shift
    # Run erlc in the output directory: it removes its working directory from the front of paths.
    (cd "$out" && erlc +nowarn_export_all +nowarn_deprecated_function +debug_info \
        -I "$otp_source/lib/kernel/test" -I "$otp_source/lib/kernel/src" -o . "$@") >"$out/compile.log" 2>&1 ||
        fail "OTP's source does not compile: $(grep -v Warning "$out/compile.log" | head -n 3)"
}

# prepare_suite SOURCE-DIR SUITE: compiles the suite and its data directory, and prints their folder.
prepare_suite() {
    local from=$otp_source/$1 suite=$2 into=$work/$2 helper
    mkdir -p "$into"
    cp "$from/$suite.erl" "$into/"
    [ ! -d "$from/${suite}_data" ] || cp -r "$from/${suite}_data" "$into/"
    for helper in erts_test_utils literal_area_collector_test kernel_test_lib dummy_via error_logger_forwarder; do
        [ ! -e "$from/$helper.erl" ] || ! grep -q "$helper" "$from/$suite.erl" || compile "$into" "$from/$helper.erl"
    done
    for helper in gen_tcp_dist erl_uds_dist; do
        compile "$into" "$otp_source/lib/kernel/examples/$helper/src/$helper.erl"
    done
    compile "$into" "$into/$suite.erl"
    [ ! -e "$into/${suite}_data/Makefile.src" ] || make_data "$into/${suite}_data"
    printf '%s\n' "$into"
}

# Makes a Makefile from Makefile.src and runs make, as OTP's test installer does for C nodes and drivers.
make_data() {
    local data=$1 lib ei rules
    lib=$(erlang_lib)
    ei=$(echo "$lib"/erl_interface-*)
    # shellcheck disable=SC2016 # for make to expand
    rules='%.so: %.c\n\t$(CC) -shared -fPIC -O1 -w -I'"${lib%/lib}"'/usr/include -o $@ $<'
    sed -e 's|^include @erl_interface_mk_include@||' -e 's|@CC@|cc|; s|@LD@|cc|' \
        -e 's|@EI_CFLAGS@|-O1 -w -pthread -D_REENTRANT|' \
        -e 's|@CFLAGS@|-O1 -w|; s|@DEFS@||; s|@CROSSLDFLAGS@||; s|@LIBS@|-lm|' \
        -e "s|@erl_interface_include@|$ei/include|; s|@erl_interface_eilib@|$ei/lib/libei.a|" \
        -e 's|@erl_interface_sock_libs@||; s|@erl_interface_threadlib@|-lpthread|' \
        -e 's|@exe@||g; s|@obj@|.o|g; s|@dll@|.so|g' -e "s|@SHLIB_RULES@|$rules|" -e "s|@erl_name@|$node|" \
        "$data/Makefile.src" >"$data/Makefile"
    # distribution_SUITE's Makefile compiles with an Erlang node, which is $node here.
    (cd "$data" && HOME=$data CARAVAN_SUITES_FLAGS='' make >"$data/make.log" 2>&1) ||
        say "$data: make failed ($(tail -n 1 "$data/make.log")); its cases will fail" >&2
}

# Runs one unit of Redis's test suite in this process, against a server that runs already.
#
#     cd REDIS-SOURCE && CASES=FILE tclsh unit.tcl UNIT HOST PORT
#
# Appends a line to FILE for each case: its outcome, a tab, its name, a tab, and why it failed or was left out. Redis's
# own `runtest` starts a second process for the cases and ends at the first command that the server does not know;
# this only replaces its last part, and the cases are Redis's.

lassign $argv unit host port
set outcomes [open $env(CASES) a]
fconfigure $outcomes -encoding utf-8 -buffering line

# What needs another database, replication, files of the server, or the insides of Redis. --durable turns an error within a
# case into its failure.
set argv [list --host $host --port $port --durable --singledb --ignore-encoding --ignore-digest \
    --tags {-needs:repl -needs:debug -needs:pfdebug -needs:save}]

# The suite's program without its last part, which would start the run.
set program [open tests/test_helper.tcl]
set text [read $program]
close $program
set end [string first "\nif {\$::client} {" $text]
if {$end < 0} {
    puts stderr "tests/test_helper.tcl is not the one of Redis 7.0"
    exit 2
}
eval [string range $text 0 $end]

# The cases report by this. The name of a case that failed is followed by its file and the reason. Of an error that is no failed
# comparison, Redis cuts the first letters off and then gives it in full, with the calls that led to it.
proc send_data_packet {fd status data {elapsed 0}} {
    set reason ""
    if {$status eq "err"} {
        incr ::failures
        if {![regexp {^(.*) in tests/\S+\n(.*)$} $data all data reason]} {
            # An error outside of the cases.
            set reason $data
            set data "a block"
        }
        regexp {\n([^\n]*)\n    while executing} $reason all reason
    } elseif {$status eq "ignore"} {
        regexp {^(.*): (.*?)$} $data all data reason
    } elseif {$status ni {ok skip}} {
        return
    }
    set plain {\n " | " \t " "}
    puts $::outcomes "$status\t[string map $plain $data]\t[string map $plain $reason]"
}

# A case that fails may leave its connection in the middle of a transaction, or closed. The next one gets a new connection.
set failures 0
rename test run_case
proc test args {
    set before $::failures
    uplevel 1 [list run_case {*}$args]
    if {$::failures > $before} {
        catch {reconnect}
        # Cases of unit/auth set passwords.
        foreach password [list foobar abc\x00def] {catch {r auth $password}}
    }
}

# Servers that the suite would start with settings of their own are this server with CONFIG SET. A block whose settings the
# server does not have is left out.
proc run_block {code overrides} [string map {"r function flush" "catch {r function flush}"} \
    [info body run_external_server_test]]
proc run_external_server_test {code overrides} {
    set client [redis $::host $::port 0 0]
    foreach {name value} $overrides {
        if {[catch {$client config set $name [lindex [$client config get $name] 1]} reason]} {
            send_data_packet "" ignore "a block with the setting $name: $reason"
            $client close
            return
        }
    }
    $client close
    # The code runs two levels above run_block.
    uplevel 1 [list run_block $code $overrides]
}

# Cases that Redis's authors do not run against a server that runs already: those that work all the same are compared.
proc tags_acceptable {tags err_return} [string map {external:skip no:skip} [info body tags_acceptable]]

set test_server_fd ""
if {[catch {execute_test_file $unit}]} {
    send_data_packet "" err "the rest of the unit in tests/$unit.tcl\n$errorInfo"
}
exit

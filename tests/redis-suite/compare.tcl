# Compares the outcomes of Redis's cases on both servers, and prints a table.
#
#     tclsh compare.tcl FOLDER DIFFERENCES
#
# FOLDER has UNIT.redis and UNIT.caravan (with a colon for each slash) as unit.tcl writes them. DIFFERENCES lists cases
# that may fail, each with its reason. Exit status: 1 if another case fails that Redis passes.

lassign $argv folder differences

# Returns the lines of a file.
proc lines {path} {
    set file [open $path]
    fconfigure $file -encoding utf-8
    set text [read -nonewline $file]
    close $file
    return [split $text \n]
}

# Returns case -> {outcome reason}. Of cases with the same name, the second one is "NAME (2)".
proc cases {path} {
    set cases [dict create]
    foreach line [lines $path] {
        lassign [split $line \t] outcome name reason
        dict incr times $name
        if {[dict get $times $name] > 1} {append name " ([dict get $times $name])"}
        dict set cases $name [list $outcome $reason]
    }
    return $cases
}

# Returns {UNIT CASE} -> reason. A line that is not indented names a unit and a case; indented lines below are the reason.
proc allowed {path} {
    set allowed [dict create]
    foreach line [lines $path] {
        if {[string match "#*" $line] || [string trim $line] eq ""} continue
        if {[string match " *" $line]} {
            dict append allowed $key "[string trim $line] "
        } else {
            set key [list [lindex [split $line] 0] [join [lrange [split $line] 1 end]]]
            dict set allowed $key ""
        }
    }
    return $allowed
}

# What a server says about commands and settings that it does not have.
set unknown "unknown command|unknown subcommand|Unknown option or number of arguments for CONFIG SET|immutable config"

set allowed [allowed $differences]
set counted [dict create]
set failed {}
set notes {}
puts [format "%-22s %8s %8s %12s %8s %8s" UNIT "REDIS OK" SAME "NOT SPOKEN" LISTED FAILED]
foreach path [lsort [glob $folder/*.redis]] {
    set unit [string map {: /} [file rootname [file tail $path]]]
    set caravan [cases [file rootname $path].caravan]
    set counts [dict create ok 0 same 0 unknown 0 listed 0 failed 0]
    dict for {name redis} [cases $path] {
        if {[lindex $redis 0] ne "ok"} continue
        dict incr counts ok
        set outcome not-run
        set reason "the case did not run"
        if {[dict exists $caravan $name]} {lassign [dict get $caravan $name] outcome reason}
        set key [list $unit $name]
        set is_listed [dict exists $allowed $key]
        if {$outcome eq "ok"} {
            dict incr counts same
            if {$is_listed} {lappend failed "$unit: $name\n    is listed in $differences, and passes: remove it there"}
        } elseif {[regexp $unknown $reason]} {
            dict incr counts unknown
            lappend notes "$unit: $name\n    not spoken: [string range $reason 0 150]"
        } elseif {$is_listed} {
            dict incr counts listed
            lappend notes "$unit: $name\n    listed: [dict get $allowed $key]"
        } else {
            dict incr counts failed
            lappend failed "$unit: $name\n    $reason"
        }
    }
    puts [format "%-22s %8d %8d %12d %8d %8d" $unit {*}[dict values $counts]]
    dict for {name count} $counts {dict incr counted $name $count}
}
puts [format "%-22s %8d %8d %12d %8d %8d" total {*}[dict values $counted]]
if {[llength $notes]} {puts "\nCases that need what the store does not have:\n[join $notes \n]"}
if {[llength $failed]} {puts "\nFAILED:\n[join $failed \n]"}
exit [expr {[llength $failed] > 0 || [dict get $counted ok] == 0}]

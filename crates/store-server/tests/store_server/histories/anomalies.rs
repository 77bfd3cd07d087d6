//! The judge of transactions against anomalies made by hand, and against two that Elle's authors published.

use super::cycles::{Rule, judge};
use super::history::{ClientAct, Outcome, Step, StepKind};

/// Makes a history of lines: begin, end (`-` for no reply, `x` for a transaction that did not happen) and steps,
/// which are a name, a key, the value written if it writes, and the reply if it has one (`nil` for no value).
fn history(lines: &[&str]) -> Vec<ClientAct> {
    let act = |(client, line): (usize, &&str)| {
        let (times, steps) = line.split_once(':').unwrap();
        let (begin, end) = times.trim().split_once(' ').unwrap();
        let (end_ns, outcome) = match end {
            "-" => (None, Outcome::Unknown),
            "x" => (None, Outcome::Refused),
            end => (Some(end.parse().unwrap()), Outcome::Done),
        };
        let steps = steps.split('|').map(step).collect();
        ClientAct { client: client as u32, begin_ns: begin.parse().unwrap(), end_ns, outcome, steps }
    };
    lines.iter().enumerate().map(act).collect()
}

fn step(text: &str) -> Step {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (kind, has_value) = match words[0] {
        "r" => (StepKind::Get, false),
        "set" => (StepKind::Set, true),
        "getset" => (StepKind::GetSet, true),
        "append" => (StepKind::Append, true),
        "incr" => (StepKind::Incr, false),
        other => panic!("{other}"),
    };
    let value = has_value.then(|| words[2].to_owned());
    let reply = words.get(if has_value { 3 } else { 2 }).filter(|reply| **reply != "nil");
    Step { reply: reply.map(|reply| (*reply).to_owned()), ..Step::new(kind, words[1], value) }
}

#[track_caller]
fn assert_ordered(lines: &[&str]) {
    if let Err(violation) = judge(&history(lines)) {
        panic!("{:?}: {}", violation.rule, violation.text);
    }
}

#[track_caller]
fn assert_violation(rule: Rule, words: &str, lines: &[&str]) {
    let violation = judge(&history(lines)).expect_err("the anomaly was not noticed");
    assert_eq!(violation.rule, rule, "{}", violation.text);
    assert!(violation.text.contains(words), "{}", violation.text);
}

#[test]
fn histories_that_have_an_order_pass() {
    assert_ordered(&[]);
    assert_ordered(&["0 1: append x a;", "2 3: append x b;", "4 5: r x a;b; | r y nil"]);
    // At the same time, both orders are right.
    assert_ordered(&["0 9: append x a;", "1 8: r x nil", "2 7: r x a;"]);
    assert_ordered(&["0 1: set x a;", "2 3: getset x b; a;", "4 5: append x c;", "6 7: getset x d; b;c;"]);
    assert_ordered(&["0 1: incr n 1", "0 2: incr n 2 | r n 2", "0 3: r n 1"]);
}

#[test]
fn a_transaction_without_a_reply_may_happen_at_any_time_or_never() {
    assert_ordered(&["0 -: append x a;", "1 2: r x nil", "9 10: r x a;"]);
    assert_ordered(&["0 -: append x a;", "1 2: r x nil", "9 10: r x nil"]);
    assert_ordered(&["0 -: incr n", "1 2: incr n 2", "3 4: r n 2"]);
    assert_ordered(&["0 1: set x a;", "2 -: r x a; | set x b;", "3 4: r x a; | set x c;", "5 6: r x c;"]);
    // But once it has, it has.
    assert_violation(Rule::Cycle, "rw", &["0 -: append x a;", "1 2: r x a;", "3 4: r x nil"]);
    // And not without its condition.
    assert_violation(
        Rule::LostUpdate,
        "version",
        &["0 1: set x a;", "2 -: r x a; | set x b;", "3 4: r x a; | set x c;", "5 6: r x b;"],
    );
    assert_violation(Rule::Repeated, "1 without a reply", &["0 -: incr n", "1 2: incr n 2", "3 4: incr n 4"]);
}

#[test]
fn g0_writes_in_two_orders() {
    assert_violation(
        Rule::Cycle,
        "(ww, ww)",
        &["0 9: append x a; | append y a;", "0 9: append x b; | append y b;", "0 9: r x a;b; | r y b;a;"],
    );
}

#[test]
fn g1a_a_write_that_did_not_happen_is_read() {
    assert_violation(Rule::AbortedRead, "did not happen", &["0 x: append x a;", "1 2: r x a;"]);
    assert_violation(
        Rule::AbortedRead,
        "did not happen",
        &["0 x: append x a;", "1 2: append x b;", "3 4: r x a;b;"],
    );
}

#[test]
fn g1b_a_write_is_read_that_was_replaced_at_once() {
    assert_violation(Rule::IntermediateRead, "replaced", &["0 9: append x a; | append x b;", "1 2: r x a;"]);
}

#[test]
fn g1c_two_transactions_read_each_other() {
    assert_violation(Rule::Cycle, "(wr, wr)", &["0 9: append x a; | r y b;", "0 9: append y b; | r x a;"]);
}

#[test]
fn g_single_a_read_of_two_moments() {
    let skewed = ["0 9: append x a; | append y a;", "0 9: r x nil | r y a;"];
    assert_violation(Rule::Cycle, "rw", &[skewed[0], skewed[1], "8 9: r x a;"]);
}

#[test]
fn g2_write_skew() {
    let skew = ["0 9: r x nil | append y a;", "0 9: r y nil | append x b;", "10 11: r x b; | r y a;"];
    assert_violation(Rule::Cycle, "(rw, rw)", &skew);
}

#[test]
fn an_update_is_lost() {
    let lost = ["0 1: set x a;", "2 9: getset x b; a;", "2 9: getset x c; a;"];
    assert_violation(Rule::LostUpdate, "\"a\"", &lost);
    assert_violation(
        Rule::LostUpdate,
        "\"a\"",
        &["0 1: set x a;", "2 9: r x a; | set x b;", "2 9: getset x c; a;"],
    );
    assert_violation(Rule::LostUpdate, "same number", &["0 9: incr n 1", "0 9: incr n 1"]);
}

#[test]
fn a_read_is_stale() {
    assert_violation(Rule::Cycle, "(time, rw)", &["0 1: append x a;", "2 3: r x nil", "4 5: r x a;"]);
    // Only time connects the writer of x with the reader, by a third transaction.
    let chain = ["0 1: append x a;", "2 3: append y b;", "2 9: r y b;", "10 11: r x nil", "12 13: r x a;"];
    assert_violation(Rule::Cycle, "rw", &chain);
}

/// What was acknowledged is missing, and no later value shows where it was.
#[test]
fn a_write_is_lost() {
    assert_violation(Rule::Cycle, "(time, rw)", &["0 1: append x a;", "2 3: r x nil"]);
    assert_violation(Rule::Cycle, "(time, ww)", &["0 1: append x a;", "2 3: append x b;", "4 5: r x b;"]);
    // Somebody has seen the other half of its transaction.
    let half = ["0 -: append x a; | append y b;", "2 3: r x a;", "4 5: r y nil"];
    assert_violation(Rule::Cycle, "rw", &half);
    // It may have been replaced by a transaction without a reply, but only by a later one.
    assert_ordered(&["0 1: append x a;", "0 -: getset x b;", "2 3: r x b;"]);
    let earlier = ["0 -: getset x b;", "1 2: r x b;", "3 4: append x c;", "5 6: r x b;"];
    assert_violation(Rule::Cycle, "precedes", &earlier);
    // Nobody knows which of two that ran at the same time came first.
    assert_ordered(&["0 9: set x a;", "0 9: set x b;", "10 11: r x a;"]);
}

#[test]
fn values_that_nobody_wrote() {
    let wide = "a,a,a;";
    assert_ordered(&[&format!("0 1: set x {wide}"), &format!("2 3: r x {wide}")]);
    assert_violation(
        Rule::Garbage,
        "torn",
        &[&format!("0 1: set x {wide}"), "0 1: set x b,b,b;", "2 3: r x a,b,b;"],
    );
    assert_violation(Rule::Garbage, "nobody", &["0 1: set x a;", "2 3: r x c;"]);
    assert_violation(Rule::Garbage, "torn", &["0 1: set x a;", "2 3: r x a"]);
    assert_violation(Rule::Repeated, "is 2 after 1", &["0 1: incr n 1", "2 3: r n 2"]);
}

#[test]
fn writes_that_happen_twice_or_in_two_orders() {
    assert_violation(Rule::Repeated, "twice", &["0 1: append x a;", "2 3: r x a;a;"]);
    assert_violation(Rule::Repeated, "is 3 after 2", &["0 1: incr n 1", "2 3: incr n 3"]);
    let orders = ["0 9: append x a;", "0 9: append x b;", "0 9: r x a;b;", "0 9: r x b;a;"];
    assert!(matches!(judge(&history(&orders)).unwrap_err().rule, Rule::Order | Rule::LostUpdate));
    assert_violation(Rule::Internal, "differ", &["0 1: append x a;", "2 3: append x b; | r x a;"]);
    assert_violation(Rule::Internal, "differ", &["0 9: append x a;", "2 3: r x nil | r x a;"]);
}

/// The example of Elle's README, which it calls G1c.
#[test]
fn the_example_of_elle() {
    assert_violation(
        Rule::Cycle,
        "(ww, wr)",
        &["0 9: append x 1a; | r y 1b;", "0 9: append x 2a; | append y 1b;", "0 9: r x 1a;2a;"],
    );
}

/// Elle's paper, of TiDB: a transaction appends to a list without having seen what was appended meanwhile. The paper calls
/// it G-single, and a lost update that is what it is.
#[test]
fn the_example_of_elle_and_tidb() {
    assert_violation(
        Rule::LostUpdate,
        "two writes follow version \"t1\"",
        &[
            "0 1: append a34 t2;",
            "2 3: append a34 t1;",
            "4 9: r a34 t2;t1; | append a36 t5; | append a34 t4;",
            "4 9: append a34 t5;",
            "10 11: r a34 t2;t1;t5;t4;",
        ],
    );
}

#[test]
fn a_long_history_is_judged_at_once() {
    let mut lines = vec!["0 1: set x a0;".to_owned()];
    for number in 1..100_000 {
        let before = number - 1;
        lines.push(format!("{} {}: getset x a{number}; a{before}; | r y nil", 2 * number, 2 * number + 1));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_ordered(&lines);
}

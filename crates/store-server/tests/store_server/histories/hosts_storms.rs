//! Histories of a store of several servers, which are stopped and killed with and without their memory while parts go from one
//! to another; and the same with a fault planted.

use std::time::Duration;

use caravan_store::faults::PlantedFault;

use super::clients::Workload;
use super::cycles::{Rule, judge};
use super::history::ClientAct;
use super::hosts::{HOSTS, Hosts, Plot};
use super::quiet::compare_copies;
use super::several::{LEASE, OwnEnd};
use super::storms::{describe, environment, kills, seed, until_noticed, write_history};

/// How often servers are killed or stopped.
const BLOWS: usize = 6;
/// Blows in one history.
const BLOWS_AT_ONCE: usize = 20;
/// What clients have at least written down between two blows, in lines.
const LINES_OF_A_BLOW: u64 = 100;

fn blows() -> usize {
    environment("CARAVAN_CLUSTER_KILLS").map_or(BLOWS, |blows| blows as usize)
}

/// Does something to a server, and waits until all copies are complete again.
fn strike(hosts: &mut Hosts) {
    let host = hosts.random.below(HOSTS);
    match hosts.random.below(6) {
        0 | 1 => hosts.kill_server(host),
        2 | 3 => {
            hosts.kill_host(host);
            let tenths = hosts.random.below(3) as u32;
            std::thread::sleep(LEASE * tenths / 10);
            hosts.start_again(host);
        }
        4 => hosts.stop_server(host),
        _ => hosts.stop_server_for_long(host),
    }
    if hosts.random.below(2) == 0 {
        hosts.kill_client();
    }
    let lines = hosts.herd.lines();
    hosts.herd.wait_for_lines(lines + LINES_OF_A_BLOW);
    hosts.until_whole();
}

/// Returns a history with so many blows, after which the copies are what their primaries are.
fn history(workload: Workload, seed: u64, blows: usize, plot: Plot) -> Vec<ClientAct> {
    let mut hosts = Hosts::new(workload, seed, plot);
    hosts.herd.wait_for_lines(LINES_OF_A_BLOW);
    (0..blows).for_each(|_| strike(&mut hosts));
    let (acts, compared) = hosts.end();
    compared.unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    acts
}

#[test]
#[ignore = "run by make test-store"]
fn every_history_of_several_servers_has_an_order() {
    let (blows, mut seed) = (blows(), seed());
    let mut struck = 0;
    while struck < blows {
        let count = BLOWS_AT_ONCE.min(blows - struck);
        let acts = history(Workload::Chains, seed, count, Plot::default());
        struck += count;
        println!("{struck} kills and stops: {}", describe(&acts));
        if let Err(violation) = judge(&acts) {
            panic!("seed {seed}: {:?}: {}", violation.rule, violation.text);
        }
        seed += 1;
    }
}

/// Writes histories of single values of several servers for `tests/histories/run`: sound ones, and some of servers that answer
/// before the copies have a write.
#[test]
#[ignore = "run by make store-histories"]
fn write_histories_of_several_servers() {
    let first = seed();
    for number in 0..kills().div_ceil(10 * BLOWS_AT_ONCE) {
        let acts = history(Workload::Registers, first + number as u64, BLOWS_AT_ONCE, Plot::default());
        write_history(&format!("sound-several-{number}"), &acts);
    }
    for number in 0..5 {
        let mut hosts = Hosts::new(Workload::Registers, first + number, planted(PlantedFault::AnsweredEarly));
        kill_all_hosts(&mut hosts);
        write_history(&format!("faulty-unreplicated-{number}"), &hosts.herd.kill_all());
    }
}

/// Has something happen again and again until the judge notices.
fn assert_noticed(plot: Plot, mut happen: impl FnMut(&mut Hosts)) {
    let rules = [Rule::LostUpdate, Rule::Order, Rule::Cycle, Rule::Internal];
    until_noticed(&rules, seed(), |seed| {
        let mut hosts = Hosts::new(Workload::Chains, seed, plot);
        hosts.herd.wait_for_lines(LINES_OF_A_BLOW);
        happen(&mut hosts);
        let lines = hosts.herd.lines();
        hosts.herd.wait_for_lines(lines + 5 * LINES_OF_A_BLOW);
        hosts.herd.kill_all()
    });
}

fn planted(fault: PlantedFault) -> Plot {
    Plot { in_servers: Some(fault), ..Plot::default() }
}

#[test]
#[ignore = "run by make test-store"]
fn a_reply_before_the_copies_have_the_write_is_noticed() {
    assert_noticed(planted(PlantedFault::AnsweredEarly), kill_all_hosts);
}

/// Kills each host once, while clients write.
fn kill_all_hosts(hosts: &mut Hosts) {
    for host in 0..HOSTS {
        let lines = hosts.herd.lines();
        hosts.herd.wait_for_lines(lines + LINES_OF_A_BLOW);
        hosts.kill_host(host);
        hosts.start_again(host);
        hosts.until_whole();
    }
}

/// What a stopped server had begun is not answered.
#[test]
#[ignore = "run by make test-store"]
fn a_server_that_was_expelled_in_a_commit_answers_nothing() {
    let mut hosts = Hosts::new(
        Workload::Chains,
        seed(),
        Plot { last_ends: Some(OwnEnd::StopAtRecord(500)), ..Plot::default() },
    );
    hosts.wake_expelled(HOSTS - 1);
    let lines = hosts.herd.lines();
    hosts.herd.wait_for_lines(lines + 5 * LINES_OF_A_BLOW);
    let (acts, compared) = hosts.end();
    if let Err(violation) = judge(&acts) {
        panic!("{:?}: {}", violation.rule, violation.text);
    }
    compared.unwrap();
}

#[test]
#[ignore = "run by make test-store"]
fn a_copy_that_leaves_a_record_out_is_noticed() {
    let mut hosts = Hosts::new(Workload::Chains, seed(), planted(PlantedFault::SkippedRecord));
    hosts.herd.wait_for_lines(10 * LINES_OF_A_BLOW);
    hosts.herd.kill_all();
    let compared = compare_copies(&hosts, Duration::from_secs(3));
    println!("{}", compared.expect_err("the copies are equal although they leave records out"));
}

/// The servers of the last host are killed again and again, each at such a moment.
fn assert_noticed_after_deaths(fault: PlantedFault, last_ends: OwnEnd) {
    let plot = Plot { last_ends: Some(last_ends), ..planted(fault) };
    assert_noticed(plot, |hosts| (0..3).for_each(|_| hosts.wait_for_death(HOSTS - 1)));
}

#[test]
#[ignore = "run by make test-store"]
fn branches_that_a_new_owner_forgets_are_noticed() {
    assert_noticed_after_deaths(PlantedFault::ForgottenBranch, OwnEnd::KillAtBranch(20));
}

#[test]
#[ignore = "run by make test-store"]
fn branches_without_a_note_are_noticed() {
    assert_noticed_after_deaths(PlantedFault::UnnotedBranch, OwnEnd::KillAtBranch(20));
}

#[test]
#[ignore = "run by make test-store"]
fn decisions_without_a_note_are_noticed() {
    assert_noticed_after_deaths(PlantedFault::UnnotedDecision, OwnEnd::KillAtDecision(10));
}

#[test]
#[ignore = "run by make test-store"]
fn a_transaction_that_is_committed_after_it_was_given_up_is_noticed() {
    let plot = Plot { clients_stop: true, ..planted(PlantedFault::NeverClosed) };
    assert_noticed(plot, |hosts| {
        (0..8).for_each(|_| hosts.herd.wake_one(2 * caravan_store::limits::BRANCH_WAIT));
    });
}

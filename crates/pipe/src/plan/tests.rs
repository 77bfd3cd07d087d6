//! Tests which hops and movers a pipeline takes.

use super::*;
use crate::control::Mover;

/// Returns a request for these stages, with default options.
pub fn request(stages: &[&str]) -> PipelineRequest {
    let stages = stages.iter().map(|text| Stage::parse(text).expect("a stage")).collect();
    let options = PipelineOptions::default();
    PipelineRequest { stages, is_ring: false, options }
}

fn plan(stages: &[&str], input: bool) -> PipelinePlan {
    PipelinePlan::new(&request(stages), input).expect("a plan")
}

fn connected(_: u32) -> Option<HopCarrier> {
    Some(HopCarrier::Connection(HopOptions { sealed: true, ..HopOptions::default() }))
}

fn part(plan: &PipelinePlan, agent: usize, carrier: fn(u32) -> Option<HopCarrier>) -> AgentPart {
    plan.part(agent, carrier)
}

#[test]
fn hosts_are_agents_once_and_the_caller_is_here() {
    let plan = plan(&["a:x", "b:y", "a:z"], true);
    let names: Vec<_> = (0..plan.agents.len()).map(|agent| plan.name(agent)).collect();
    assert_eq!(names, ["a", "b", "here"]);
    let legs: Vec<_> = plan.legs.iter().map(|leg| (plan.name(leg.from), plan.name(leg.to))).collect();
    assert_eq!(legs, [("here", "a"), ("a", "b"), ("b", "a"), ("a", "here")]);
    assert_eq!(plan.hops.len(), 4);
    // A terminal gives another host nothing to read.
    assert_eq!(super::PipelinePlan::new(&request(&["a:x"]), false).expect("a plan").hops.len(), 1);
}

#[test]
fn stages_of_one_host_share_a_pipe_and_nothing_is_between() {
    let plan = plan(&[":x", ":y"], true);
    let here = part(&plan, 0, connected);
    assert!(here.movers.is_empty() && plan.hops.is_empty());
    let ends: Vec<_> = here.commands.iter().map(|command| (command.input, command.output)).collect();
    let [(CommandEnd::Caller, CommandEnd::Pipe(one)), (CommandEnd::Pipe(other), CommandEnd::Caller)] =
        ends.as_slice()
    else {
        panic!("{ends:?}");
    };
    assert_eq!(one, other);
}

#[test]
fn a_pace_takes_a_mover_even_on_one_host() {
    let mut request = request(&[":x", ":y"]);
    request.options.rate = Some(1000);
    let plan = PipelinePlan::new(&request, false).expect("a plan");
    let here = part(&plan, 0, connected);
    let rates: Vec<_> = here.movers.iter().map(|mover| mover.options.rate).collect();
    assert_eq!(rates, [Some(1000)]);
}

/// The rate holds for every stream: a rate for the input alone would do nothing if the input is /dev/null.
#[test]
fn every_stream_keeps_to_the_pace() {
    for (stages, input, expected) in [
        (&["a:x", "b:y"][..], true, 3),
        (&["a:x", "b:y"], false, 2),
        (&["a:<f", "b:y", "c:>g"], true, 2),
        (&["a:x", "b,c:y"], true, 4),
    ] {
        let mut request = request(stages);
        request.options.rate = Some(1000);
        let plan = PipelinePlan::new(&request, input).expect("a plan");
        let parts = (0..plan.agents.len()).map(|agent| part(&plan, agent, connected));
        let movers: Vec<_> = parts.flat_map(|part| part.movers).collect();
        let gives = |mover: &&Mover| !matches!(mover.from, InletSpec::Hop(..));
        assert!(movers.iter().all(|mover| mover.options.rate.is_some() == gives(&mover)), "{stages:?}");
        assert_eq!(movers.iter().filter(gives).count(), expected, "{stages:?}");
    }
}

#[test]
fn a_pipe_that_is_handed_over_needs_no_movers() {
    let plan = plan(&["a:x", "b:y"], false);
    let by_pipe = |_: u32| Some(HopCarrier::Pipe);
    let (a, b) = (part(&plan, 0, by_pipe), part(&plan, 1, by_pipe));
    let number = plan.hops[0].number;
    assert_eq!(a.commands[0].output, CommandEnd::Pipe(number));
    assert_eq!(b.commands[0].input, CommandEnd::Pipe(number));
    assert!(a.movers.is_empty());
    // Its output goes to the caller, which belongs to another agent.
    assert_eq!(b.commands[0].output, CommandEnd::Pipe(plan.hops[1].number));
    let hop = part(&plan, 0, connected).movers;
    assert!(matches!(hop[0].to[0], OutletSpec::Hop(to, ref options) if to == number && options.sealed));
}

#[test]
fn several_hosts_are_a_chain_and_a_star_where_some_may_be_lost() {
    let chain = plan(&[":x", "a,b,c:y"], false);
    let legs = |plan: &PipelinePlan| -> Vec<_> {
        let named = plan.legs.iter().map(|leg| format!("{}>{}", plan.name(leg.from), plan.name(leg.to)));
        named.take(3).collect()
    };
    assert_eq!(legs(&chain), ["here>a", "a>b", "b>c"]);
    let mut request = request(&[":x", "a,b,c:y"]);
    request.options.on_dead = DeadOutlet::Continue;
    let star = PipelinePlan::new(&request, false).expect("a plan");
    assert_eq!(legs(&star), ["here>a", "here>b", "here>c"]);
    let lines = part(&star, 0, connected)
        .movers
        .iter()
        .filter(|mover| matches!(mover.to.as_slice(), [OutletSpec::Lines(prefix)] if prefix.starts_with('[')))
        .count();
    assert_eq!(lines, 3, "outputs come line by line");
    request.options.fan_out = FanOut::Chain;
    let refused = PipelinePlan::new(&request, false).expect_err("refused");
    assert!(refused.to_string().contains("--star"), "{refused}");
    let refused = PipelinePlan::new(&super::tests::request(&["a,b:x", "c:y"]), false).expect_err("refused");
    assert!(refused.to_string().contains("stage 1"), "{refused}");
}

#[test]
fn files_are_stages_that_every_case_ends() {
    for stages in [
        &["a:<f", "b:>g"][..],
        &["a:<f"],
        &["a:>g"],
        &["a,b:>g"],
        &["a:x", "b:<f", "c:>g"],
        &["a:<f", "a:<g", "a:>h", "a:y"],
        &["a:<f", "a,b:>g"],
    ] {
        let plan = plan(stages, false);
        let mut known = Vec::new();
        for agent in 0..plan.agents.len() {
            for mover in part(&plan, agent, connected).movers {
                known.extend(match mover.from {
                    InletSpec::File { stage } => Some(stage),
                    _ => None,
                });
                known.extend(mover.to.iter().filter_map(|target| match target {
                    OutletSpec::File { stage } => Some(*stage),
                    _ => None,
                }));
            }
        }
        let files = plan.jobs.iter().zip(0_u32..).filter(|(job, _)| job.file.is_some());
        let wanted: Vec<_> = files.map(|(_, id)| id).collect();
        known.sort_unstable();
        assert_eq!(known, wanted, "{stages:?}: a file that no mover has would never end");
    }
}

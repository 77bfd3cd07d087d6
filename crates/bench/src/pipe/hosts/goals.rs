//! What the figures are to be, and whether they are.

use serde::Serialize;

use super::report::Row;
use super::tool::Tool;
use crate::stats::Summary;

/// What a figure is to be.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    pub text: String,
    pub value: f64,
    pub is_reached: bool,
}

fn row(rows: &[Row], tool: Tool) -> Option<&Row> {
    rows.iter().find(|row| row.key == tool.key())
}

fn at_least(text: impl Into<String>, least: f64, value: f64) -> Goal {
    Goal { text: text.into(), value, is_reached: value >= least }
}

/// Of two commands of one host.
pub fn same_host(rows: &[Row]) -> Vec<Goal> {
    let ratio = |rows: &[Row]| rows.first()?.value.ratio(&rows.get(1)?.value);
    let goal =
        |ratio: Summary| at_least("at least a bare shell pipe (ratio in the same round)", 1.0, ratio.median);
    ratio(rows).map(goal).into_iter().collect()
}

/// Of a line through two hosts.
pub fn start(rows: &[Row]) -> Vec<Goal> {
    let seconds = rows.first().map(|row| row.value.median);
    let goal = |value| Goal { text: "under 0.5 s".to_owned(), value, is_reached: value < 0.5 };
    seconds.map(goal).into_iter().collect()
}

/// Of streams without a limit.
pub fn streams(rows: &[Row]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let Some(open) = row(rows, Tool::CaravanInsecure) else { return goals };
    goals.push(at_least("at least 4 GB/s, not encrypted", 4.0, open.value.median));
    for (tool, what) in [(Tool::Iperf3File, "the same file"), (Tool::Iperf3, "one buffer")] {
        let ratio = row(rows, tool).and_then(|iperf3| open.value.ratio(&iperf3.value));
        let text = format!("at least 0.9 of iperf3 with {what}, not encrypted");
        goals.extend(ratio.map(|ratio| at_least(text, 0.9, ratio.median)));
    }
    for tool in [Tool::Nc, Tool::Socat, Tool::Mbuffer] {
        let ratio = row(rows, tool).and_then(|other| open.value.ratio(&other.value));
        let text = format!("faster than {}, not encrypted (ratio)", tool.key());
        goals.extend(ratio.map(|ratio| at_least(text, 1.0, ratio.median)));
    }
    if let Some(bare) = row(rows, Tool::CaravanBare) {
        goals.push(at_least("at least 4 GB/s, not encrypted, no digest", 4.0, bare.value.median));
        if let Some(ratio) = row(rows, Tool::Socat).and_then(|socat| bare.cpu_s.ratio(&socat.cpu_s)) {
            let text = "less processor time than socat, no digest (ratio)".to_owned();
            goals.push(Goal { text, value: ratio.median, is_reached: ratio.median < 1.0 });
        }
    }
    let sealed = row(rows, Tool::Caravan).zip(row(rows, Tool::Ssh));
    if let Some(ratio) = sealed.and_then(|(sealed, ssh)| sealed.value.ratio(&ssh.value)) {
        goals.push(at_least("faster than ssh, encrypted (ratio)", 1.0, ratio.median));
    }
    if let Some(ratio) = row(rows, Tool::Socat).and_then(|socat| open.cpu_s.ratio(&socat.cpu_s)) {
        let text = "less processor time than socat, not encrypted (ratio)".to_owned();
        goals.push(Goal { text, value: ratio.median, is_reached: ratio.median < 1.0 });
    }
    goals
}

/// Of streams through a line of a known rate.
pub fn line(rows: &[Row]) -> Vec<Goal> {
    let goal = |(tool, text): (Tool, &str)| {
        let percent = row(rows, tool)?.percent_of_line?;
        Some(at_least(format!("at least 95 % of the line, {text}"), 95.0, percent))
    };
    [(Tool::CaravanInsecure, "not encrypted"), (Tool::Caravan, "encrypted")]
        .into_iter()
        .filter_map(goal)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;

    #[test]
    fn goals_are_reached_or_not() {
        let reached = |caravan: f64| {
            let goals = example(caravan).cases.remove(0).goals;
            goals.iter().map(|goal| goal.is_reached).collect::<Vec<_>>()
        };
        // 4 GB/s; iperf3, twice; nc, socat, mbuffer; no digest, which is as the others: 4 GB/s, processor
        // time; ssh (encrypted, as fast as it); processor time.
        assert_eq!(reached(2.0), [true, true, true, true, true, true, false, false, true, true]);
        assert_eq!(reached(0.8), [false, false, false, false, false, false, false, false, true, true]);
    }
}

//! Tests agents that report what they must not: the pipeline ends with an error that names the host, and no other
//! host's status or lines change.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use caravan_pipe::Error;
use caravan_pipe::control::{
    self, AgentOrder, AgentReport, ControlMessage, Hello, HopOrder, HopReport, MoverResult, Status,
};
use caravan_pipe::coordinator::{
    AgentSession, Guard, HopFigures, HopTransport, Launcher, Observer, PipelineOptions, PipelineRequest,
    PipelineSummary, run,
};
use caravan_pipe::limits::{LINES_CREDIT_BYTES, RELAY_BYTES_MAX, RELAY_CREDIT_BYTES};
use caravan_pipe::mover::MoverFigures;
use caravan_pipe::place::Place;
use caravan_pipe::plan::AgentPart;
use caravan_pipe::stage::Stage;

/// The false reports of host b's agent, made from its own part and the hop that it sends on.
type Lies = fn(&AgentPart, u32) -> Vec<ControlMessage<AgentReport>>;

/// Starts agents that run nothing. The agent of host a reports an exit with 7 before b reports anything.
struct Liars {
    lies: Lies,
    a_has_spoken: (Sender<()>, Mutex<Option<Receiver<()>>>),
    /// Dropped once b's agent has ended.
    b_runs: Mutex<Option<Sender<()>>>,
}

impl Launcher for Liars {
    fn launch(&self, host: Option<&str>, _: &AtomicBool) -> Result<AgentSession, Error> {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let from = ours.try_clone().expect("cloned");
        let (lies, a_speaks) = (self.lies, self.a_has_spoken.0.clone());
        let end = ours.try_clone().expect("cloned");
        match host {
            Some("a") => drop(serve(theirs, move |part, _, mut say| {
                say(truth(part, 7));
                let _ = a_speaks.send(());
            })),
            Some("b") => {
                let a_has_spoken = self.a_has_spoken.1.lock().expect("no panic").take().expect("once");
                let b_runs = self.b_runs.lock().expect("no panic").take();
                let b = serve(theirs, move |part, hop, mut say| {
                    a_has_spoken.recv().expect("it speaks");
                    say(lies(part, hop));
                    say(truth(part, 0));
                });
                std::thread::spawn(move || {
                    let _ = b.join();
                    drop(b_runs);
                });
            }
            _ => drop(serve(theirs, |part, _, mut say| say(truth(part, 0)))),
        }
        Ok(AgentSession { from: Box::new(from), to: Box::new(ours), guard: Box::new(Ends(end)) })
    }
}

/// Returns the reports that all stages exit with `code`, and all movers have moved everything.
fn truth(part: &AgentPart, code: u8) -> Vec<ControlMessage<AgentReport>> {
    let stages = part.commands.iter().map(|command| ended(command.stage, code));
    let movers = part.movers.iter().map(|mover| moved(mover.mover));
    stages.chain(movers).collect()
}

fn ended(stage: u32, code: u8) -> ControlMessage<AgentReport> {
    ControlMessage::Word(AgentReport::Ended { stage, status: Status::Exit(code) })
}

fn moved(mover: u32) -> ControlMessage<AgentReport> {
    let all = MoverResult { inlet: Ok(true), outlets: vec![Ok(true)], ..MoverResult::failed(&"") };
    ControlMessage::Word(AgentReport::Moved { mover, result: all })
}

/// Plays an agent, up to its reports after the order to start.
fn serve(
    mut socket: UnixStream,
    play: impl FnOnce(&AgentPart, u32, Box<dyn FnMut(Vec<ControlMessage<AgentReport>>) + '_>) + Send + 'static,
) -> JoinHandle<()> {
    let mut play = Some(play);
    let mut from = socket.try_clone().expect("cloned");
    let hello = Hello {
        identity: control::identity(),
        place: Place::here(),
        addresses: Vec::new(),
        ssh_address: None,
        ssh_client: None,
        offer: Err("none".to_owned()),
    };
    std::thread::spawn(move || {
        let mut last_hop = 0;
        let mut commands = Vec::new();
        while let Ok(message) = control::read::<AgentOrder>(&mut from) {
            let said = match message {
                ControlMessage::Word(AgentOrder::Hello { .. }) => AgentReport::Hello(Box::new(hello.clone())),
                ControlMessage::Word(AgentOrder::Hop { hop, attempt, order: HopOrder::Relay }) => {
                    last_hop = hop;
                    AgentReport::Hop { hop, attempt, report: HopReport::Connected("ssh".to_owned()) }
                }
                ControlMessage::Word(AgentOrder::Command(command)) => {
                    commands.push(command);
                    AgentReport::Ping
                }
                ControlMessage::Word(AgentOrder::Start { movers, .. }) => {
                    let part = AgentPart { commands: std::mem::take(&mut commands), movers };
                    // The coordinator stops reading an agent that it has given up.
                    let say = |said: Vec<ControlMessage<AgentReport>>| {
                        let _ = said.iter().try_for_each(|message| control::write(&mut socket, message));
                    };
                    play.take().expect("it starts once")(&part, last_hop, Box::new(say));
                    AgentReport::Ping
                }
                ControlMessage::Word(AgentOrder::Abort) => AgentReport::Gone,
                ControlMessage::Word(AgentOrder::End) => return,
                _ => AgentReport::Ping,
            };
            if control::write(&mut socket, &ControlMessage::Word(said)).is_err() {
                return;
            }
        }
    })
}

/// The socket of an agent.
struct Ends(UnixStream);

impl Guard for Ends {
    fn why_ended(&mut self) -> String {
        "it ended".to_owned()
    }

    fn end(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// An observer that takes no line, and so returns no credit, as long as b's agent runs.
struct Lines {
    b_runs: Receiver<()>,
    lines: Vec<(String, String)>,
}

impl Observer for Lines {
    fn note(&mut self, _: &str) {}

    fn warn(&mut self, _: &str) {}

    fn line(&mut self, host: &str, text: &str) {
        // Nothing is ever sent.
        let _ = self.b_runs.recv();
        self.lines.push((host.to_owned(), text.to_owned()));
    }

    fn progress(&mut self, _: &[HopFigures]) {}
}

fn piped(lies: Lies) -> (PipelineSummary, Vec<(String, String)>) {
    let options = PipelineOptions {
        transport: Some(HopTransport::Ssh),
        silence: Duration::from_secs(60),
        ..PipelineOptions::default()
    };
    let stages = ["a:x", "b:y"].map(|text| Stage::parse(text).expect("a stage")).into();
    let request = PipelineRequest { stages, is_ring: false, options };
    let ((a_speaks, a_has_spoken), (b_runs, b_has_ended)) = (channel(), channel());
    let launcher = Liars {
        lies,
        a_has_spoken: (a_speaks, Mutex::new(Some(a_has_spoken))),
        b_runs: Mutex::new(Some(b_runs)),
    };
    let mut observer = Lines { b_runs: b_has_ended, lines: Vec::new() };
    let flags: [Arc<AtomicBool>; 2] = Default::default();
    let summary = run(&request, &launcher, &mut observer, &flags[0], &flags[1]).expect("it runs");
    (summary, observer.lines)
}

fn lines(stage: u32, texts: Vec<String>) -> ControlMessage<AgentReport> {
    ControlMessage::Word(AgentReport::Lines { stage, texts })
}

fn figures(mover: u32) -> ControlMessage<AgentReport> {
    ControlMessage::Word(AgentReport::Figures(vec![(mover, MoverFigures::default())]))
}

#[test]
fn an_honest_pipeline_has_its_stages_statuses_and_lines() {
    let (summary, lines) = piped(|part, _| vec![lines(part.commands[0].stage, vec!["its own".to_owned()])]);
    assert_eq!((summary.status, summary.failures), (7, vec!["stage 1 (a): 'x' exited 7".to_owned()]));
    assert_eq!(lines, [("b".to_owned(), "its own".to_owned())]);
}

#[test]
fn no_host_speaks_for_another() {
    const ANOTHERS: &str = "b: its agent reports on what is another's";
    // The first stage is a's. Of two hops, the one that is neither 0 nor b's own has no end at b.
    let lies: [(&str, Lies); 8] = [
        ("a status", |_, _| vec![ended(0, 0)]),
        ("a status of nobody", |_, _| vec![ended(99, 0)]),
        ("lines", |_, _| vec![lines(0, vec!["forged".to_owned()])]),
        ("a mover's end", |part, _| vec![moved(99 + part.movers[0].mover)]),
        ("an outlet's end", |_, _| {
            vec![ControlMessage::Word(AgentReport::Left { mover: 99, outlet: 0, has_failed: false })]
        }),
        ("figures", |_, _| vec![figures(99)]),
        ("a file's length", |_, _| {
            vec![ControlMessage::Word(AgentReport::Prepared { lengths: vec![(0, Some(1))] })]
        }),
        ("a hop", |_, _| {
            let report = HopReport::Unreachable(String::new());
            vec![ControlMessage::Word(AgentReport::Hop { hop: 99, attempt: 1, report })]
        }),
    ];
    for (what, lies) in lies {
        let (summary, lines) = piped(lies);
        assert_eq!(summary.failures.first().map(String::as_str), Some(ANOTHERS), "{what}");
        // The coordinator may read b's reports before a's.
        let of_a = summary.statuses[0][0];
        assert!(summary.status == 255 && (of_a.is_none() || of_a == Some(7)), "{what}: {of_a:?}");
        assert!(lines.is_empty(), "{what}: {lines:?}");
    }
}

/// The coordinator keeps no more than its credit allows, however slow the user's terminal or the other host is.
#[test]
fn no_host_makes_memory_grow() {
    const LINE_BYTES: usize = 8 << 10;
    let lies: [(&str, Lies); 5] = [
        ("b: its agent sent more lines than it was given leave for", |part, _| {
            let stage = part.commands[0].stage;
            let lines = || lines(stage, vec!["x".repeat(LINE_BYTES)]);
            (0..LINES_CREDIT_BYTES as usize / LINE_BYTES).map(|_| lines()).collect()
        }),
        ("b: its agent sent more lines than it was given leave for", |part, _| {
            vec![lines(part.commands[0].stage, Vec::new())]
        }),
        ("b: its agent sent more data than it was given leave for", |_, hop| {
            let data = |_| ControlMessage::Data { hop, bytes: vec![0; RELAY_BYTES_MAX] };
            (0..=RELAY_CREDIT_BYTES as usize / RELAY_BYTES_MAX).map(data).collect()
        }),
        ("b: its agent gave credit for data that it was not sent", |_, hop| {
            vec![ControlMessage::Word(AgentReport::Credit { hop, bytes: 1 })]
        }),
        ("b: its agent says what no agent says: data of a length that cannot be", |_, hop| {
            vec![ControlMessage::Data { hop, bytes: vec![0; 2 * RELAY_BYTES_MAX] }]
        }),
    ];
    for (expected, lies) in lies {
        let (summary, _) = piped(lies);
        assert_eq!(summary.failures.first().map(String::as_str), Some(expected));
        assert_eq!(summary.status, 255, "{expected}");
    }
}

//! The nodes of a world, and the links between them.

use std::collections::BTreeSet;

use super::state::SimState;
use crate::contract::Error;

/// Whether a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeLife {
    /// It does what the test has it do.
    Running,
    /// It stands still, as after SIGSTOP: until it is resumed, the test calls none of its endpoints.
    Stopped,
    /// It has ended, with all its connections.
    Killed,
}

/// Something that [`World::mishap`](super::World::mishap) did. Nodes have their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// A node stands still.
    Stopped(usize),
    /// A node goes on.
    Resumed(usize),
    /// A node has ended.
    Killed(usize),
    /// A node that had ended can connect again. It has no connections.
    Restarted(usize),
    /// The link between two nodes is cut. Their connections break after a while.
    Cut([usize; 2]),
    /// The link between two nodes is whole again.
    Mended([usize; 2]),
}

/// The nodes of a world.
#[derive(Debug)]
pub(super) struct SimNodes {
    lives: Vec<NodeLife>,
    /// Of each node, whether its memory is still reached while it is stopped: a device does that, an agent does not.
    served: Vec<bool>,
    /// The links that are cut, with the lower number first.
    cuts: BTreeSet<[usize; 2]>,
}

impl SimNodes {
    pub(super) fn new(count: usize) -> Self {
        Self { lives: vec![NodeLife::Running; count], served: vec![true; count], cuts: BTreeSet::new() }
    }

    pub(super) fn life(&self, node: usize) -> NodeLife {
        self.lives[node]
    }

    /// True if operations at the node's memory are done.
    pub(super) fn is_served(&self, node: usize) -> bool {
        self.lives[node] == NodeLife::Running || self.served[node]
    }

    /// Refuses a connection that cannot be made now.
    pub(super) fn check_way(&self, nodes: [usize; 2]) -> Result<(), Error> {
        if let Some(node) = nodes.into_iter().find(|&node| self.lives[node] != NodeLife::Running) {
            return Err(Error::NotConnected(format!("sim: node {node} does not run")));
        }
        match self.cuts.contains(&ordered(nodes)) {
            true => Err(Error::NotConnected(format!("sim: the link between nodes {nodes:?} is cut"))),
            false => Ok(()),
        }
    }
}

fn ordered([one, other]: [usize; 2]) -> [usize; 2] {
    [one.min(other), one.max(other)]
}

impl SimState {
    /// Does what a mishap says.
    pub(super) fn suffer(&mut self, mishap: Mishap) {
        match mishap {
            Mishap::Stopped(node) => {
                self.nodes.lives[node] = NodeLife::Stopped;
                self.nodes.served[node] = self.random.once_in(2);
            }
            Mishap::Resumed(node) | Mishap::Restarted(node) => self.nodes.lives[node] = NodeLife::Running,
            Mishap::Killed(node) => {
                self.nodes.lives[node] = NodeLife::Killed;
                self.ends_of(node).into_iter().for_each(|end| self.end(end));
            }
            Mishap::Cut(nodes) => {
                self.nodes.cuts.insert(ordered(nodes));
                self.between(nodes).into_iter().for_each(|connection| self.cut(connection));
            }
            Mishap::Mended(nodes) => {
                self.nodes.cuts.remove(&ordered(nodes));
                self.between(nodes).into_iter().for_each(|connection| self.mend(connection));
            }
        }
    }

    /// Chooses a mishap that can happen now, and lets it happen.
    pub(super) fn mishap(&mut self) -> Mishap {
        let count = self.nodes.lives.len() as u64;
        let node = self.random.below(count) as usize;
        let link =
            ordered([node, (node + 1 + self.random.below(count.max(2) - 1) as usize) % count as usize]);
        let mishap = match (self.random.below(3), self.nodes.lives[node]) {
            (0, _) if count > 1 && self.nodes.cuts.contains(&link) => Mishap::Mended(link),
            (0, _) if count > 1 => Mishap::Cut(link),
            (_, NodeLife::Killed) => Mishap::Restarted(node),
            (1, NodeLife::Running) => Mishap::Stopped(node),
            (1, NodeLife::Stopped) => Mishap::Resumed(node),
            _ => Mishap::Killed(node),
        };
        self.suffer(mishap);
        let kind = match mishap {
            Mishap::Stopped(_) => 0,
            Mishap::Resumed(_) => 1,
            Mishap::Killed(_) => 2,
            Mishap::Restarted(_) => 3,
            Mishap::Cut(_) => 4,
            Mishap::Mended(_) => 5,
        };
        self.note(kind << 32 | (node as u64) << 16 | link[0] as u64);
        mishap
    }
}

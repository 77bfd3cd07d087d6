//! Which transactions precede which, and whether there is a cycle of them. Its size, and the time that it takes, grow
//! linearly with the number of transactions, as in Elle (Kingsbury and Alvaro, VLDB 2020).

use std::collections::{HashMap, VecDeque};

/// How one transaction precedes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// It wrote the version before.
    WriteWrite,
    /// It wrote the version that was read.
    WriteRead,
    /// It read the version before the one that was written.
    ReadWrite,
    /// It had ended before the other began.
    Time,
}

impl Edge {
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteWrite => "ww",
            Self::WriteRead => "wr",
            Self::ReadWrite => "rw",
            Self::Time => "time",
        }
    }
}

/// The transactions, by their numbers, and behind them a node for each end of one in the order of time: the edges of time
/// go through these.
pub struct Graph {
    transactions: usize,
    edges: Vec<Vec<(usize, Edge)>>,
}

impl Graph {
    pub fn new(transactions: usize) -> Self {
        Self { transactions, edges: vec![Vec::new(); transactions] }
    }

    /// Adds an edge between two transactions, if both are known and they are two.
    pub fn add(&mut self, from: Option<usize>, to: Option<usize>, edge: Edge) {
        if let (Some(from), Some(to)) = (from, to) {
            if from != to {
                self.edges[from].push((to, edge));
            }
        }
    }

    /// Adds a node for each end of a transaction, in the order of time, and edges to what began afterwards. A transaction is
    /// its number, its begin, and its end if it is known.
    pub fn add_times(&mut self, spans: Vec<(usize, u64, Option<u64>)>) {
        let ended = spans.iter().filter_map(|(index, _, end)| end.map(|end| (end, *index)));
        let mut ends: Vec<(u64, usize)> = ended.collect();
        ends.sort_unstable();
        let mut begins: Vec<(u64, usize)> = spans.iter().map(|(index, begin, _)| (*begin, *index)).collect();
        begins.sort_unstable();
        let base = self.edges.len();
        self.edges.resize(base + ends.len(), Vec::new());
        let mut begins = begins.into_iter().peekable();
        for (place, (end, index)) in ends.iter().enumerate() {
            while let Some((_, begun)) = begins.next_if(|(begin, _)| begin <= end) {
                if place > 0 {
                    self.edges[base + place - 1].push((begun, Edge::Time));
                }
            }
            self.edges[*index].push((base + place, Edge::Time));
            if place > 0 {
                self.edges[base + place - 1].push((base + place, Edge::Time));
            }
        }
        for (_, begun) in begins {
            if let Some(last) = ends.len().checked_sub(1) {
                self.edges[base + last].push((begun, Edge::Time));
            }
        }
    }

    /// Returns the transactions of a short cycle, each with the edge by which it precedes the next one.
    pub fn shortest_cycle(&self) -> Option<Vec<(usize, Edge)>> {
        let preceding = self.remaining();
        let mut sources = vec![usize::MAX; self.edges.len()];
        for (node, edges) in self.edges.iter().enumerate().filter(|(node, _)| preceding[*node] > 0) {
            edges.iter().for_each(|(to, _)| sources[*to] = node);
        }
        // Backwards from any of them, one comes to a cycle.
        let mut node = (0..preceding.len()).find(|node| preceding[*node] > 0)?;
        let mut is_visited = vec![false; self.edges.len()];
        while !is_visited[node] {
            is_visited[node] = true;
            node = sources[node];
        }
        // Of all cycles through a transaction of it, the shortest is the clearest.
        while node >= self.transactions {
            node = sources[node];
        }
        Some(self.shortest_cycle_of(node, &preceding))
    }

    /// Takes away what nothing precedes, again and again. What then still has nodes before it is on a cycle, or after one:
    /// returns how many these are.
    fn remaining(&self) -> Vec<u32> {
        let mut preceding = vec![0_u32; self.edges.len()];
        self.edges.iter().flatten().for_each(|(to, _)| preceding[*to] += 1);
        let mut free: Vec<usize> = (0..preceding.len()).filter(|node| preceding[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for (to, _) in &self.edges[node] {
                preceding[*to] -= 1;
                if preceding[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        preceding
    }

    fn shortest_cycle_of(&self, start: usize, preceding: &[u32]) -> Vec<(usize, Edge)> {
        let mut from: HashMap<usize, (usize, Edge)> = HashMap::new();
        let mut waiting = VecDeque::from([start]);
        'search: while let Some(node) = waiting.pop_front() {
            for (to, edge) in self.edges[node].iter().filter(|(to, _)| preceding[*to] > 0) {
                if !from.contains_key(to) {
                    from.insert(*to, (node, *edge));
                    waiting.push_back(*to);
                }
                if *to == start {
                    break 'search;
                }
            }
        }
        let mut cycle = Vec::new();
        let mut node = start;
        loop {
            let (before, edge) = from[&node];
            // Nodes of time lie between two transactions.
            if before < self.transactions {
                cycle.push((before, edge));
            }
            node = before;
            if node == start {
                break;
            }
        }
        cycle.reverse();
        cycle
    }
}

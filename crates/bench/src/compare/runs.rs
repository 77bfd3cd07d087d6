//! Which two runs of a history are compared.

use crate::engine::history::Line;

/// One run's lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its number in the history, from 1.
    pub number: usize,
    pub lines: Vec<Line>,
}

impl Run {
    fn first(&self) -> &Line {
        // A run is made of a line.
        &self.lines[0]
    }

    pub fn commit(&self) -> &str {
        self.first().commit.as_deref().unwrap_or("unknown commit")
    }

    pub fn date(&self) -> &str {
        &self.first().date
    }

    pub fn same_machine(&self, other: &Self) -> bool {
        self.first().machine.same(&other.first().machine)
    }

    pub fn machine(&self) -> String {
        let machine = &self.first().machine;
        format!("{} x {}, Linux {}, {}", machine.cores, machine.processor, machine.kernel, machine.system)
    }

    /// Whether both have samples of the same benchmark in the same placement.
    fn shares(&self, other: &Self) -> bool {
        self.lines.iter().any(|line| other.lines.iter().any(|theirs| key(line) == key(theirs)))
    }
}

/// What two runs must both have to be compared.
pub fn key(line: &Line) -> (&str, &str) {
    (&line.benchmark, &line.placement)
}

/// All runs of a history, in the order in which they were written.
#[derive(Clone, Debug, Default)]
pub struct Runs(Vec<Run>);

impl Runs {
    pub fn of(lines: &[Line]) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for line in lines {
            match runs.iter_mut().find(|run| run.first().run == line.run) {
                Some(run) => run.lines.push(line.clone()),
                None => runs.push(Run { number: runs.len() + 1, lines: vec![line.clone()] }),
            }
        }
        Self(runs)
    }

    /// The runs called `a` and `b`. Without `b` the last; without `a` the one before `b` that is on its
    /// machine and has something in common with it. What cannot be found is a sentence.
    pub fn pair(&self, a: Option<&str>, b: Option<&str>) -> Result<(Run, Run), String> {
        let b = match (b, self.0.last()) {
            (Some(name), _) => self.find(name)?,
            (None, Some(last)) => last,
            (None, None) => return Err("the history has no run: `caravan bench engine` adds one".into()),
        };
        let a = match a {
            Some(name) => self.find(name)?,
            None => {
                let earlier = self.0[..b.number - 1].iter().rev();
                let mut alike = earlier.filter(|run| run.same_machine(b) && run.shares(b));
                alike.next().ok_or_else(|| {
                    format!(
                        "before run {} there is none on the same machine with a benchmark in the same \
                         placement: run `caravan bench engine` again, or name two runs",
                        b.number
                    )
                })?
            }
        };
        match () {
            () if a.number == b.number => Err(format!("run {} would be compared with itself", a.number)),
            () if !a.shares(b) => Err(format!(
                "runs {} and {} have no benchmark in the same placement in common",
                a.number, b.number
            )),
            () => Ok((a.clone(), b.clone())),
        }
    }

    /// A number from the first (1) or from the last (-1), the start of a commit, or that of a date. The
    /// last run that fits.
    fn find(&self, name: &str) -> Result<&Run, String> {
        let starts = |run: &&Run| run.commit().starts_with(name) || run.date().starts_with(name);
        if let Some(run) = self.0.iter().rev().find(starts).filter(|_| !is_small(name)) {
            return Ok(run);
        }
        let place = name.parse::<i64>().ok().and_then(|number| match number {
            0 => None,
            1.. => usize::try_from(number - 1).ok(),
            _ => self.0.len().checked_sub(usize::try_from(number.unsigned_abs()).ok()?),
        });
        place.and_then(|place| self.0.get(place)).ok_or_else(|| {
            format!(
                "no run of {} in the history is called {name}: give its number (1 is the first, -1 the \
                 last), or the start of its commit or date",
                self.0.len()
            )
        })
    }
}

/// A number too short for a commit's: then it counts runs.
fn is_small(name: &str) -> bool {
    name.len() < 4 && name.parse::<i64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::history::tests::line;

    /// Runs 1 to 5; the third on another machine, the fourth of another benchmark.
    fn runs() -> Runs {
        Runs::of(&[
            line("2026-01-01", "aaaa1", 2, "swap", &[1.0]),
            line("2026-01-02", "bbbb2", 2, "swap", &[2.0]),
            line("2026-01-02", "bbbb2", 2, "basic1/60", &[2.0]),
            line("2026-01-03", "1234567", 4, "swap", &[3.0]),
            line("2026-01-04", "dddd4", 2, "recovery", &[4.0]),
            line("2026-01-05", "aaaa1-dirty", 2, "swap", &[5.0]),
        ])
    }

    #[test]
    fn runs_are_chosen_as_they_are_called() {
        for (a, b, expected) in [
            (None, None, Ok((2, 5))),
            (Some("-4"), None, Ok((2, 5))),
            (Some("1"), None, Ok((1, 5))),
            (Some("1"), Some("2"), Ok((1, 2))),
            (Some("bbbb"), Some("aaaa1"), Ok((2, 5))),
            (Some("2026-01-01"), Some("2026-01-02"), Ok((1, 2))),
            (Some("1234567"), Some("5"), Ok((3, 5))),
            (None, Some("2"), Ok((1, 2))),
            (None, Some("1"), Err("before run 1 there is none")),
            (None, Some("4"), Err("before run 4 there is none")),
            (Some("1"), Some("4"), Err("no benchmark in the same placement")),
            (Some("5"), Some("-1"), Err("compared with itself")),
            (Some("0"), None, Err("is called 0")),
            (Some("9"), None, Err("no run of 5 in the history is called 9")),
            (Some("cccc"), None, Err("is called cccc")),
        ] {
            let found = runs().pair(a, b).map(|(a, b)| (a.number, b.number));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{a:?} {b:?}"),
                (Err(text), Err(expected)) => assert!(text.contains(expected), "{a:?} {b:?}: {text}"),
                (found, _) => panic!("{a:?} {b:?}: {found:?}"),
            }
        }
        let none = Runs::of(&[]).pair(None, None).expect_err("nothing");
        assert!(none.contains("caravan bench engine"), "{none}");
    }
}

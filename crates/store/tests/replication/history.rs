//! Whether what clients were told can have happened in one order: a sequential specification, and every order that real
//! time allows. The versions of the store do not count.

/// The most parts or objects of a history.
pub const VALUES: usize = 3;

/// What a client did as one transaction. Its number is its place in a set of bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Act {
    pub number: u8,
    /// Whether it has an answer that says that it was done. Without one it may have been done, or not.
    pub is_answered: bool,
    /// What it read.
    pub reads: [Option<u8>; VALUES],
    /// Which values it wrote, as bits; and what.
    pub writes: u8,
    pub value: u8,
    /// Which acts had ended before it began, as bits.
    pub after: u8,
}

/// Tells whether some order explains all answers. All values are 0 at first.
pub fn is_strictly_serializable(acts: &[Act]) -> bool {
    extend(acts, 0, [0; VALUES])
}

/// Tells whether the acts that are not yet `done` can follow.
fn extend(acts: &[Act], done: u8, values: [u8; VALUES]) -> bool {
    let left = || acts.iter().filter(|act| done & 1 << act.number == 0);
    if left().all(|act| !act.is_answered) {
        return true;
    }
    left().any(|act| {
        // Nothing that had ended before this one began may come after it.
        let is_early = left().any(|other| act.after & 1 << other.number != 0);
        let reads = act.reads.iter().zip(values);
        if is_early || !reads.into_iter().all(|(read, value)| read.is_none_or(|read| read == value)) {
            return false;
        }
        let mut values = values;
        for (number, value) in values.iter_mut().enumerate() {
            if act.writes & 1 << number != 0 {
                *value = act.value;
            }
        }
        extend(acts, done | 1 << act.number, values)
    })
}

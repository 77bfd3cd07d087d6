//! What the demonstration's clients know of their transfers, and what the store must therefore have at the end.

/// A move of money between two accounts of one office.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub from: usize,
    pub to: usize,
    pub amount: i64,
}

/// What one client knows of its transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientBook {
    /// How many transfers were acknowledged. The client's counter in the store says the same.
    pub acknowledged: u64,
    /// What they changed, for each account.
    pub changes: Vec<i64>,
    /// A transfer without an answer: it may be there, once.
    pub unanswered: Option<Transfer>,
}

impl ClientBook {
    /// Returns the book of a client that has done nothing yet.
    pub fn new(accounts: usize) -> Self {
        Self { acknowledged: 0, changes: vec![0; accounts], unanswered: None }
    }

    /// Notes a transfer that was acknowledged.
    pub fn acknowledge(&mut self, transfer: Transfer) {
        self.acknowledged += 1;
        self.apply(transfer);
    }

    fn apply(&mut self, transfer: Transfer) {
        self.changes[transfer.from] -= transfer.amount;
        self.changes[transfer.to] += transfer.amount;
    }
}

/// What the store has for one office, read in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundOffice {
    pub balances: Vec<i64>,
    /// For each client, the number of its last transfer.
    pub counters: Vec<u64>,
}

/// Returns what is wrong with an office, in sentences; nothing if every acknowledged transfer is there exactly once and nothing else
/// is. Each account began with `begin`.
pub fn mistakes(tag: &str, begin: i64, books: &[ClientBook], found: &FoundOffice) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut expected = vec![begin; found.balances.len()];
    for (client, (book, counter)) in books.iter().zip(&found.counters).enumerate() {
        let mut book = book.clone();
        if let Some(transfer) = book.unanswered.filter(|_| *counter == book.acknowledged + 1) {
            book.acknowledge(transfer);
        }
        let acknowledged = book.acknowledged;
        if *counter < acknowledged {
            let lost = acknowledged - counter;
            mistakes.push(format!(
                "{tag}: {lost} of the {acknowledged} acknowledged transfers of client {client} are lost"
            ));
        }
        if *counter > acknowledged {
            let more = counter - acknowledged;
            mistakes.push(format!("{tag}: client {client} has {more} transfers more than were acknowledged"));
        }
        expected.iter_mut().zip(&book.changes).for_each(|(balance, change)| *balance += change);
    }
    for (account, (found, expected)) in found.balances.iter().zip(&expected).enumerate() {
        if found != expected {
            mistakes.push(format!(
                "{tag}: account {account} has {found}; by the acknowledged transfers it has {expected}"
            ));
        }
    }
    mistakes
}

/// Returns what is wrong with an office as a reader found it, who began when so many transfers of each client were acknowledged: a
/// server that is no longer the one of this part has older counters.
pub fn stale(tag: &str, acknowledged: &[u64], found: &FoundOffice) -> Vec<String> {
    let clients = acknowledged.iter().zip(&found.counters).enumerate();
    let older = clients.filter(|(_, (acknowledged, counter))| counter < acknowledged);
    older
        .map(|(client, (acknowledged, counter))| {
            format!("{tag}: a reader found {counter} transfers of client {client} after {acknowledged} were acknowledged")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSFER: Transfer = Transfer { from: 0, to: 2, amount: 30 };

    /// Returns books of two clients with a transfer each, and what a store that lost and doubled nothing has.
    fn sound() -> (Vec<ClientBook>, FoundOffice) {
        let mut books = vec![ClientBook::new(3); 2];
        books[0].acknowledge(TRANSFER);
        books[1].acknowledge(Transfer { from: 2, to: 1, amount: 5 });
        (books, FoundOffice { balances: vec![70, 105, 125], counters: vec![1, 1] })
    }

    #[test]
    fn what_was_acknowledged_once_is_right() {
        let (books, found) = sound();
        assert_eq!(mistakes("t", 100, &books, &found), [""; 0]);
    }

    #[test]
    fn a_transfer_without_an_answer_may_be_there_or_not_but_not_twice() {
        let (mut books, mut found) = sound();
        books[0].unanswered = Some(TRANSFER);
        assert_eq!(mistakes("t", 100, &books, &found), [""; 0]);
        found = FoundOffice { balances: vec![40, 105, 155], counters: vec![2, 1] };
        assert_eq!(mistakes("t", 100, &books, &found), [""; 0]);
        // Its money was moved twice, although its number was counted once.
        found.balances = vec![10, 105, 185];
        let expected = [
            "t: account 0 has 10; by the acknowledged transfers it has 40",
            "t: account 2 has 185; by the acknowledged transfers it has 155",
        ];
        assert_eq!(mistakes("t", 100, &books, &found), expected);
    }

    #[test]
    fn a_lost_transfer_is_noticed_although_the_sum_is_right() {
        let (books, mut found) = sound();
        found = FoundOffice { balances: vec![100, 105, 95], counters: vec![0, found.counters[1]] };
        assert_eq!(found.balances.iter().sum::<i64>(), 300);
        let expected = [
            "t: 1 of the 1 acknowledged transfers of client 0 are lost",
            "t: account 0 has 100; by the acknowledged transfers it has 70",
            "t: account 2 has 95; by the acknowledged transfers it has 125",
        ];
        assert_eq!(mistakes("t", 100, &books, &found), expected);
    }

    #[test]
    fn what_nobody_was_told_of_is_noticed() {
        let (books, mut found) = sound();
        found.counters[1] = 3;
        let expected = ["t: client 1 has 2 transfers more than were acknowledged"];
        assert_eq!(mistakes("t", 100, &books, &found), expected);
        // A transfer that was refused has left its money behind.
        let (books, mut found) = sound();
        found.balances[1] += 5;
        let expected = ["t: account 1 has 110; by the acknowledged transfers it has 105"];
        assert_eq!(mistakes("t", 100, &books, &found), expected);
    }

    #[test]
    fn a_reader_of_what_is_over_is_noticed() {
        let (_, found) = sound();
        assert_eq!(stale("t", &[1, 0], &found), [""; 0]);
        let expected = ["t: a reader found 1 transfers of client 1 after 2 were acknowledged"];
        assert_eq!(stale("t", &[1, 2], &found), expected);
    }
}

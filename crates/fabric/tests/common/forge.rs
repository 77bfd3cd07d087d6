//! Messages of `verbs`, changed by hand: their layout is `src/verbs/message.rs`'s.

/// Name, version, kind.
const HEAD: usize = 9;
/// What follows a port's kind and its name.
const PORT_REST: usize = 1 + 16 + 1 + 2 + 4 + 4;
/// A half ends in address, key, first byte exposed, bytes exposed.
const TARGET: usize = 8 + 4 + 8 + 8;
/// An answer ends in a listener and a nonce.
const ANSWER_REST: usize = 2 + 16;

/// An offer with only those ports that have an IPv6 address, or an IPv4 address.
pub fn only_family(offer: &[u8], v6: bool) -> Vec<u8> {
    let (mut ports, mut kept) = (&offer[HEAD + 1..], Vec::new());
    while !ports.is_empty() {
        let name = usize::from(ports[1]);
        let (port, rest) = ports.split_at(2 + name + PORT_REST);
        let gid = &port[2 + name + 1..][..16];
        if gid.starts_with(&[0; 10]) != v6 {
            kept.push(port);
        }
        ports = rest;
    }
    [&offer[..HEAD], &[kept.len() as u8], &kept.concat()].concat()
}

/// What a side says that it exposes.
#[derive(Clone, Copy, Debug)]
pub struct Exposed {
    pub address: u64,
    pub key: u32,
    pub start: u64,
    pub bytes: u64,
}

/// Changes what an answer says of it.
pub fn change_answer(answer: &mut [u8], change: impl FnOnce(&mut Exposed)) {
    let end = answer.len() - ANSWER_REST;
    let target = &mut answer[end - TARGET..end];
    let word = |at: usize| u64::from_be_bytes(target[at..at + 8].try_into().unwrap());
    let key = u32::from_be_bytes(target[8..12].try_into().unwrap());
    let mut exposed = Exposed { address: word(0), key, start: word(12), bytes: word(20) };
    change(&mut exposed);
    target[..8].copy_from_slice(&exposed.address.to_be_bytes());
    target[8..12].copy_from_slice(&exposed.key.to_be_bytes());
    target[12..20].copy_from_slice(&exposed.start.to_be_bytes());
    target[20..].copy_from_slice(&exposed.bytes.to_be_bytes());
}

/// Changes how many immediates an answer says that its side takes: the word before all that.
pub fn change_window(answer: &mut [u8], window: u32) {
    let end = answer.len() - ANSWER_REST - TARGET;
    answer[end - 4..end].copy_from_slice(&window.to_be_bytes());
}

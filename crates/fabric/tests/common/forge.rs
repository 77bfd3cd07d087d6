//! Changes messages of `verbs` by hand; `src/verbs/message.rs` defines their layout.

/// The bytes of a message's head: name, version, kind.
const HEAD: usize = 9;
/// The bytes of a port after its fabric and its name.
const PORT_REST: usize = 1 + 16 + 1 + 2 + 4 + 4;
/// The last bytes of a half: address, key, first byte exposed, bytes exposed.
const TARGET: usize = 8 + 4 + 8 + 8;
/// The last bytes of an answer: a listener and a nonce.
const ANSWER_REST: usize = 2 + 16;

/// Returns an offer of only those ports that have an IPv6 address, or an IPv4 address.
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

/// What a side says about its exposed memory.
#[derive(Clone, Copy, Debug)]
pub struct Exposed {
    pub address: u64,
    pub key: u32,
    pub start: u64,
    pub bytes: u64,
}

/// Changes what an answer says about exposed memory.
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

/// Changes the immediate credit of an answer: the word before the exposed memory.
pub fn change_window(answer: &mut [u8], window: u32) {
    let end = answer.len() - ANSWER_REST - TARGET;
    answer[end - 4..end].copy_from_slice(&window.to_be_bytes());
}

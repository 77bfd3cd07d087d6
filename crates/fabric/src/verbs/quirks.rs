//! What devices lack or demand without reporting it: one row for each quirk, with the evidence.
//!
//! Two things are not quirks. A memory window is given back before its queue pair, to which it is bound: this is
//! done for all devices alike. The connection manager makes iWARP's connections: this is part of iWARP, where RDMA
//! begins with MPA's exchange over a TCP connection (RFC 5044, 7.1).

/// A deviation that the rest of this backend asks for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// Writes carry no immediates: a message follows the write.
    NoImmediates,
    /// Memory that a read copies to must be open to the peer's writes.
    ReadsNeedRemoteWrite,
    /// Memory windows do not keep the peer out of the rest of the memory.
    BrokenWindows,
    /// A message that arrives while the queue pair changes its state may stay unread until another one arrives.
    MissesFirstWord,
    /// The device has no reliable connections, which this backend needs.
    NoReliableConnections,
}

struct QuirkRow {
    quirk: Quirk,
    /// The row holds for all devices of the transport iWARP.
    iwarp: bool,
    /// The row holds for devices whose names begin with this.
    prefix: &'static str,
    #[allow(dead_code, reason = "for the reader")]
    evidence: &'static str,
}

const TABLE: &[QuirkRow] = &[
    QuirkRow {
        quirk: Quirk::NoImmediates,
        iwarp: true,
        prefix: "",
        evidence: "RFC 5040 has no immediates; siw_post_send (siw_verbs.c, Linux 6.1) refuses \
                   IB_WR_RDMA_WRITE_WITH_IMM with EINVAL; RFC 7306 adds them, for devices newer than most",
    },
    QuirkRow {
        quirk: Quirk::ReadsNeedRemoteWrite,
        iwarp: true,
        prefix: "",
        evidence: "a read's answer is a tagged write to the key that the request names (RFC 5040, 5.2)",
    },
    QuirkRow {
        quirk: Quirk::BrokenWindows,
        iwarp: false,
        prefix: "rxe",
        evidence: "check_rkey (rxe_resp.c, Linux 6.1) takes a window's region and holds the access against \
                   the region's bounds alone; `caravan selftest` saw such a write carried out. And a bound \
                   window holds on to its queue pair: when a process is killed, the kernel ends the queue \
                   pair first, waits for 50 s in vain, and warns (rxe_pool.c:255)",
    },
    QuirkRow {
        quirk: Quirk::MissesFirstWord,
        iwarp: false,
        prefix: "siw",
        evidence: "siw_qp_llp_data_ready (siw_qp.c, Linux 6.1) reads nothing while it cannot have the lock of \
                   the state, and nobody calls it again; rdma_accept is such a change. Between two guests \
                   one connection in four waited for a second greeting, and none in two hundred longer",
    },
    QuirkRow {
        quirk: Quirk::NoReliableConnections,
        iwarp: false,
        prefix: "efa",
        evidence: "efadv.h of rdma-core: its queue pairs are SRD and UD, there is no RC",
    },
    QuirkRow {
        quirk: Quirk::NoReliableConnections,
        iwarp: false,
        prefix: "usnic",
        evidence: "usnic_ib_create_qp (usnic_ib_verbs.c, Linux 6.1) makes UD queue pairs alone",
    },
];

/// True if a device of that name has the quirk; `iwarp` says that its transport is iWARP.
pub fn has(quirk: Quirk, device: &str, iwarp: bool) -> bool {
    TABLE
        .iter()
        .any(|row| row.quirk == quirk && if row.iwarp { iwarp } else { device.starts_with(row.prefix) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_their_quirks() {
        for (device, iwarp, quirks) in [
            ("mlx5_0", false, &[][..]),
            ("rxe0", false, &[Quirk::BrokenWindows]),
            ("siw0", true, &[Quirk::NoImmediates, Quirk::ReadsNeedRemoteWrite, Quirk::MissesFirstWord]),
            ("efa_0", false, &[Quirk::NoReliableConnections]),
        ] {
            for row in TABLE {
                assert_eq!(has(row.quirk, device, iwarp), quirks.contains(&row.quirk), "{device}");
            }
        }
    }
}

//! How a server becomes a member.

use std::time::Instant;

use caravan_cluster::limits;
use caravan_cluster::{
    Change, ClusterError, Configuration, ConfigurationRegister, MemberIdentity, MemberMessage, NewMember,
    PartId, Revision, StoreInstance, StoredConfiguration, SwapOutcome,
};

use super::line::MemberLine;
use super::{Letter, MemberOptions, address, dial};
use crate::error::ServeError;
use crate::limits::{JOIN_PAUSE, REGISTER_CALL_MAX};

/// A server that wants to be a member.
pub(super) struct Joining<'j> {
    pub(super) options: &'j MemberOptions,
    pub(super) register: &'j dyn ConfigurationRegister,
    pub(super) host: &'j str,
    pub(super) new: NewMember,
    pub(super) password: &'j Option<Vec<u8>>,
    /// The parts of which the keeper holds memory, and as which member this server had it.
    pub(super) kept: Vec<(PartId, MemberIdentity)>,
}

impl Joining<'_> {
    pub(super) fn join(&mut self) -> Result<(StoredConfiguration, MemberIdentity), ServeError> {
        let mut was_absent = false;
        let mut heard = Instant::now();
        loop {
            let (stored, is_made) = self.read_or_make()?;
            // Somebody else may make it at the same time.
            let Some(stored) = stored else { continue };
            was_absent |= is_made;
            let configuration = &stored.configuration;
            if configuration.store != self.options.store {
                let (place, found) = (self.register.place(), &configuration.store);
                let text = format!(
                    "{place} is the configuration of the store {found}, not of {}",
                    self.options.store
                );
                return Err(ServeError::Member(text));
            }
            self.check_options(configuration)?;
            let found = configuration
                .member_by_name(&self.new.name)
                .map(|member| (member.identity(), member.member_address == self.new.member_address));
            let message = match found {
                Some((me, is_address)) if self.is_held(me) || is_address && was_absent => {
                    return Ok((stored, me));
                }
                // A server before this one, whose name and socket this one has now.
                Some((before, true)) => Some(MemberMessage::Testimony(before)),
                // A server of this name at another address: this one, before it had a new address, or another one.
                Some((namesake, false)) => {
                    self.refuse_if_alive(configuration, namesake)?;
                    None
                }
                None => {
                    was_absent = true;
                    let kept = self.kept_of_lost(configuration);
                    Some(MemberMessage::Propose(Change::Join(NewMember { kept, ..self.new.clone() })))
                }
            };
            if self.tell_members(configuration, message) {
                heard = Instant::now();
            } else if heard.elapsed() > REGISTER_CALL_MAX {
                return Err(self.alone(configuration));
            }
            let deadline = Instant::now() + JOIN_PAUSE;
            match self.register.watch(stored.revision, deadline) {
                // It may take longer to answer than this pause: the next reading has more time.
                Ok(_) | Err(ClusterError::Unreachable(_) | ClusterError::Locked(_)) => {}
                Err(error) => return Err(ServeError::Cluster(error)),
            }
        }
    }

    /// Refuses options that the store was not made with: its servers would not do what they seem to say.
    fn check_options(&self, configuration: &Configuration) -> Result<(), ServeError> {
        let MemberOptions { store, copies, parts, lease, .. } = self.options;
        let ms = |number: u64| format!("{number}ms");
        let lease = lease.map(|lease| ms(lease.as_millis() as u64));
        let all = [
            ("--copies", copies.map(|number| number.to_string()), configuration.copies.to_string()),
            ("--parts", parts.map(|number| number.to_string()), configuration.parts.len().to_string()),
            ("--lease", lease, ms(configuration.lease_ms)),
        ];
        let other = all.into_iter().find_map(|(option, given, found)| {
            given.filter(|given| *given != found).map(|given| (option, given, found))
        });
        other.map_or(Ok(()), |(option, given, found)| {
            Err(ServeError::Member(format!(
                "the store {store} was made with {option} {found}, not {given}, and that stays: leave {option} out"
            )))
        })
    }

    fn is_held(&self, me: MemberIdentity) -> bool {
        self.kept.iter().any(|(_, holder)| *holder == me)
    }

    /// Returns the memory by which lost parts become whole again: this server had a last copy of them.
    fn kept_of_lost(&self, configuration: &Configuration) -> Vec<(PartId, MemberIdentity)> {
        let is_wanted = |(part, holder): &&(PartId, MemberIdentity)| {
            let lost = configuration.part(*part).and_then(|part| part.lost.as_ref());
            lost.is_some_and(|lost| lost.holders.iter().any(|last| last.identity == *holder))
        };
        self.kept.iter().filter(is_wanted).copied().collect()
    }

    /// Returns the configuration, and whether this server has made it.
    fn read_or_make(&self) -> Result<(Option<StoredConfiguration>, bool), ServeError> {
        let deadline = Instant::now() + REGISTER_CALL_MAX;
        if let Some(stored) = self.register.read(deadline).map_err(ServeError::Cluster)? {
            return Ok((Some(stored), false));
        }
        let instance = StoreInstance::random().map_err(ServeError::Cluster)?;
        let MemberOptions { store, copies, parts, lease, .. } = self.options;
        let (copies, parts) =
            (copies.unwrap_or(limits::COPIES_DEFAULT), parts.unwrap_or(limits::PARTS_DEFAULT));
        let members = [self.new.clone()];
        let made = Configuration::create(store, instance, copies, parts, &members)
            .and_then(|made| made.with_lease(lease.unwrap_or(limits::LEASE_DEFAULT)))
            .map_err(ServeError::Cluster)?;
        match self.register.compare_and_swap(Revision::NONE, &made, deadline).map_err(ServeError::Cluster)? {
            SwapOutcome::Swapped(revision) => {
                Ok((Some(StoredConfiguration { revision, configuration: made }), true))
            }
            SwapOutcome::Changed(other) => Ok((other, false)),
        }
    }

    /// Sends a message to all members, and returns whether one has taken it.
    fn tell_members(&self, configuration: &Configuration, message: Option<MemberMessage>) -> bool {
        let mut is_taken = false;
        for member in &configuration.members {
            let addresses = address::reachable(&member.member_address, self.host);
            if member.name == self.new.name || addresses.is_empty() {
                continue;
            }
            let socket = dial(&addresses, self.password.as_deref(), configuration.instance);
            let line = socket.and_then(|socket| MemberLine::new(socket).ok());
            let Some(mut line) = line else { continue };
            let letter = message.clone().map(|message| Letter { from: None, to: member.identity(), message });
            is_taken |= letter.is_none_or(|letter| line.send(&letter).is_ok());
        }
        is_taken
    }

    /// Fails if the member, which has the name of this server, answers: it is another server.
    fn refuse_if_alive(
        &self,
        configuration: &Configuration,
        namesake: MemberIdentity,
    ) -> Result<(), ServeError> {
        let Some(member) = configuration.member(namesake.id) else { return Ok(()) };
        let addresses = address::reachable(&member.member_address, self.host);
        match dial(&addresses, self.password.as_deref(), configuration.instance) {
            None => Ok(()),
            Some(_) => Err(ServeError::Member(format!(
                "the store {} has another server with the name {}, at {}: give this one another name (--member)",
                self.options.store, member.name, member.client_address
            ))),
        }
    }

    fn alone(&self, configuration: &Configuration) -> ServeError {
        let names: Vec<&str> = configuration.members.iter().map(|member| &member.name[..]).collect();
        ServeError::Member(format!(
            "none of the members of the store {} answers ({}): its memory is gone if none of them runs any more. To make the store anew, remove its configuration, {}",
            self.options.store,
            names.join(", "),
            self.register.place()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    /// A register that takes longer to answer than a server waits for news. The server is a member at the third reading.
    struct SlowRegister {
        configurations: [Configuration; 2],
        readings: AtomicU64,
    }

    impl ConfigurationRegister for SlowRegister {
        fn read(&self, _: Instant) -> Result<Option<StoredConfiguration>, ClusterError> {
            let reading = self.readings.fetch_add(1, Ordering::Relaxed);
            let configuration = self.configurations[usize::from(reading >= 2)].clone();
            Ok(Some(StoredConfiguration { revision: Revision(reading + 1), configuration }))
        }

        fn compare_and_swap(
            &self,
            _: Revision,
            _: &Configuration,
            _: Instant,
        ) -> Result<SwapOutcome, ClusterError> {
            unreachable!("there is a configuration")
        }

        fn watch(&self, _: Revision, deadline: Instant) -> Result<Option<StoredConfiguration>, ClusterError> {
            assert!(deadline <= Instant::now() + JOIN_PAUSE);
            Err(ClusterError::Unreachable("no answer in time".to_owned()))
        }

        fn place(&self) -> String {
            "a slow place".to_owned()
        }
    }

    #[test]
    fn a_server_joins_although_the_register_is_slow() {
        let member = |name: &str, port: u16| NewMember {
            name: name.to_owned(),
            client_address: format!("127.0.0.1:{port}"),
            member_address: format!("127.0.0.1:{port}"),
            kept: Vec::new(),
        };
        // Nobody listens at these ports.
        let (other, new) = (member("other", 1), member("new", 2));
        let of =
            |members: &[NewMember]| Configuration::create("shop", StoreInstance(7), 1, 1, members).unwrap();
        let configurations = [of(std::slice::from_ref(&other)), of(&[other, new.clone()])];
        let register = SlowRegister { configurations, readings: AtomicU64::new(0) };
        let options = MemberOptions {
            store: "shop".to_owned(),
            name: new.name.clone(),
            client_address: new.client_address.clone(),
            socket: "/nowhere".into(),
            tcp_address: Some(new.member_address.clone()),
            part_bytes: 1 << 20,
            copies: None,
            parts: None,
            lease: None,
            fill_pause: Duration::ZERO,
        };
        let mut joining = Joining {
            options: &options,
            register: &register,
            host: "here",
            new,
            password: &None,
            kept: Vec::new(),
        };
        let (stored, me) = joining.join().expect("a member");
        assert_eq!(stored.configuration.member(me.id).map(|member| &member.name[..]), Some("new"));
    }
}

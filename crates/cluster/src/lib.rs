#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod clock;
mod configuration;
mod error;
#[doc(hidden)]
pub mod faults;
mod lease;
pub mod limits;
mod member_watch;
pub mod placement;
mod register;
mod slots;
mod times;

pub use caravan_store::{SLOTS, slot_of};
pub use clock::BootTime;
pub use configuration::{
    Configuration, FillingCopy, FormerHolder, FormerMember, LostPart, Member, MemberId, MemberIdentity,
    MemberState, NewMember, Part, PartId, SlotMap, StoreInstance,
};
pub use error::ClusterError;
pub use lease::{LeaseGranter, LeaseHolder, ProcessNumber};
pub use member_watch::{MemberAction, MemberMessage, MemberWatch};
pub use placement::{Change, Occasion, next_configuration};
pub use register::{
    ConfigurationRegister, EtcdOptions, EtcdRegister, EtcdTls, FileRegister, Revision, StoredConfiguration,
    SwapOutcome,
};
pub use slots::SlotRange;
pub use times::LeaseTimes;

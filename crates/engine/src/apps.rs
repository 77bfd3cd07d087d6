//! The apps that come with the engine.

mod mac;
mod sink;
mod source;
pub mod tunnel;

use crate::app::Registry;

pub use mac::Mac;
pub use sink::Sink;
pub use source::Source;
pub use tunnel::{Decapsulate, Encapsulate, Tunnel};

/// Adds all of them to a registry.
pub fn register(registry: &mut Registry) {
    registry.add::<Source>("source").add::<Sink>("sink");
    registry.add::<Tunnel>("tunnel").add::<Encapsulate>("encapsulate").add::<Decapsulate>("decapsulate");
}

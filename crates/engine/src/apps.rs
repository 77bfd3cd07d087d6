//! The apps that come with the engine.

mod sink;
mod source;

use crate::app::Registry;

pub use sink::Sink;
pub use source::Source;

/// Adds all of them to a registry.
pub fn register(registry: &mut Registry) {
    registry.add::<Source>("source").add::<Sink>("sink");
}

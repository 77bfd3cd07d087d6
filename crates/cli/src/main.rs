//! The `caravan` command.
fn main() {}

//! caravan-fabric

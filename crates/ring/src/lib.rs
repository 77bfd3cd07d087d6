//! caravan-ring

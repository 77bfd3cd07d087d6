//! caravan-segment

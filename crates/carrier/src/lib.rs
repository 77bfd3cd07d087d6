//! caravan-carrier

//! The functions of the commands, one file for each subject.

pub(crate) mod attach;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod counters;
pub(crate) mod expiry;
pub(crate) mod info;
pub(crate) mod keys;
pub(crate) mod ranges;
pub(crate) mod settings;
pub(crate) mod strings;
pub(crate) mod table;
pub(crate) mod transactions;

//! Histories: processes send random transactions to a server and read its memory, are stopped and killed at random
//! instants, and write down what they did and saw. A judge then says whether there is an order that explains all of it.
//!
//! | variable | |
//! |---|---|
//! | `CARAVAN_KILLS` | the number of kills, 1,200 by default |
//! | `CARAVAN_CLUSTER_KILLS` | the number of kills and stops of servers of a store of several, 6 by default |
//! | `CARAVAN_SOAK_SECONDS` | how long the soak lasts, 600 by default |
//! | `CARAVAN_SEED` | the seed of the random numbers, which is printed |
//! | `CARAVAN_HISTORIES` | a folder to which histories of single values are written, for `tests/histories/run` |

mod anomalies;
mod children;
mod clients;
mod cycles;
mod graph;
mod herd;
mod history;
mod hosts;
mod hosts_storms;
mod quiet;
mod rig;
mod runs;
mod several;
mod soak;
mod steps;
mod storms;

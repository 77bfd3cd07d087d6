//! Tests of the server of a store, in one program, which is linked once. Only processes that a test starts for it plant
//! faults: nothing that one test changes in this process may be seen by another.

mod beside_redis;
mod cluster;
mod commands;
mod connected;
mod histories;
mod hostile;
mod protocol;
mod server;

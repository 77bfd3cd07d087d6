//! Tests of pipes as a library. They are one program, which is linked once. What has to change the process that it runs
//! in (`tree::siege`) starts this program once more for one test.

mod connect;
mod coordinator;
mod tree;

//! Tests of two endpoints over a network in memory, whose clock is simulated.

mod attacks;
mod crowd;
mod holding;
mod invariants;
mod limits;
mod network;
mod parked;
mod peer;
mod planted;
mod recovery;
mod rows;
mod seeds;
mod states;

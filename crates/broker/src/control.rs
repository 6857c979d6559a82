//! What an operator asks of a shard, and what it answers: the one door besides mail through which anything that
//! is not a connection reaches a shard.
//!
//! Invariants: what one [`Control`] makes a shard do is bounded like any input (listings are pages of so many rows);
//! each gets one [`Report`], with the [`Ticket`] that it came with, within the call of
//! [`Shard::handle`](crate::Shard::handle) or a later turn.
//!
//! Deliberately not here: who may ask. Whoever holds the other end is the operator.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::drain::Settled;
use crate::io::Io;
use crate::shard::{Shard, World};
use crate::snapshot::Head;
use crate::stats::{Accounts, Stats};

/// Names an order, so that its report finds who asked. Chosen by whoever asks; the shard only gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// An order.
#[derive(Debug)]
pub enum Control {
    /// Say what you met and what you hold; also the question whether you turn at all.
    Accounts,
    /// From now on by the settings and rules of this world, which is one of the same shards and topics.
    Settings(Arc<World>),
    /// Move clients off.
    Drain,
    /// Let no time pass any more, and say whether anything is under way: the last orders before an end.
    Settle,
    /// The next block of your snapshot, which is to have so many bytes at most.
    Save(Head, usize),
}

/// The answer to an order.
#[derive(Debug)]
pub enum Report {
    /// What the shard met and holds.
    Accounts(Box<(Stats, Accounts)>),
    /// It is done.
    Done,
    /// What is under way.
    Settled(Settled),
    /// A block; empty behind the last one.
    Block(Vec<u8>),
}

impl Shard {
    pub(crate) fn control<I: Io>(&mut self, ticket: Ticket, control: Control, io: &mut I) {
        let report = match control {
            Control::Accounts => Report::Accounts(Box::new((self.stats(), self.accounts()))),
            Control::Settings(world) => {
                self.change(world);
                Report::Done
            }
            Control::Drain => {
                self.drain(self.now);
                Report::Done
            }
            Control::Save(head, bytes_max) => Report::Block(self.save(&head, bytes_max)),
            Control::Settle => Report::Settled(self.settle()),
        };
        io.report(ticket, report);
    }
}

//! Counts the channels of users: the subscriptions that all connections of one user have together (`centrifugo.channels_per_user_max`).
//!
//! Invariant: the table of grants has for each connection the number of channels that is counted for its user, so that exactly this number is subtracted when
//! the connection ends. The user of a connection does not change while it has channels.

use crate::base::reason::Reason;
use crate::budget::admission::Party;
use crate::protocol::front::Clients;

/// The user of the connection, if its channels are counted. Clients without a name have no user.
fn counted_user(clients: &Clients, slot: u32) -> Option<Party> {
    let counts = clients.ctx.world.admission.counts_channels();
    counts
        .then(|| clients.party(slot))
        .filter(|it| it.is_user())
}

/// Checks that the connection's user may have so many more channels.
pub(super) fn check_room_of_user(clients: &Clients, slot: u32, more: usize) -> Result<(), Reason> {
    let admission = &clients.ctx.world.admission;
    match counted_user(clients, slot) {
        Some(user) if !admission.has_room_for_channels(user, more) => Err(Reason::ChannelsOfUser),
        _ => Ok(()),
    }
}

/// Counts a channel that the connection has from now on.
pub(super) fn count_channel(clients: &mut Clients, slot: u32) {
    if let Some(user) = counted_user(clients, slot)
        && let Some(channels) = clients.conns.grants.channels_mut(slot)
        && let Some(more) = channels.checked_add(1)
    {
        *channels = more;
        clients.ctx.world.admission.add_channel(user);
    }
}

/// Ends the count of one channel.
pub(super) fn uncount_channel(clients: &mut Clients, slot: u32) {
    subtract(clients, slot, 1);
}

/// Ends the count of all channels of a connection that ends.
pub(crate) fn uncount_all_channels(clients: &mut Clients, slot: u32) {
    subtract(clients, slot, u16::MAX);
}

fn subtract(clients: &mut Clients, slot: u32, most: u16) {
    let channels = clients.conns.grants.channels_mut(slot);
    if let Some(channels) = channels.filter(|it| **it > 0) {
        let ended = most.min(*channels);
        *channels -= ended;
        let user = clients.party(slot);
        let admission = &clients.ctx.world.admission;
        admission.subtract_channels(user, ended.into());
    }
}

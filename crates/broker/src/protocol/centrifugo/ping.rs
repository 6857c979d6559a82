//! Pings of the server, and their answers.
//!
//! A client expects a ping in each interval, whatever else it gets. The time of a connection's pings follows from its slot, so that no connection needs
//! memory for it, and the pings of connections that began together are spread.

use crore_wire::centrifugo::codes::Disconnect;

use crate::client::list::collapse;
use crate::client::row::PAUSED;
use crate::io::Io;
use crate::protocol::centrifugo::close::end_saying;
use crate::protocol::centrifugo::options::{AWAITS_PONG, CONNECTED, ODD_PING, ONE_WAY};
use crate::protocol::centrifugo::reply::write_ping;
use crate::protocol::front::Clients;
use crate::store::slab::NONE;

/// A ping is on time up to this second of its interval. Each connection is looked at once a second.
const ON_TIME_S: u32 = 1;

/// Where a connection is in its intervals: whether the interval is an odd one, and the seconds since its ping.
fn place(clients: &Clients, slot: u32) -> Option<(bool, u32)> {
    let interval_s = clients.ctx.world.settings.centrifugo.ping_interval_s;
    if interval_s == 0 {
        return None;
    }
    let spread = slot.wrapping_mul(0x9E37_79B9) >> 16;
    let at = u64::from(clients.ctx.now.s) + u64::from(spread % interval_s);
    let (number, since) = (at / u64::from(interval_s), at % u64::from(interval_s));
    Some((number % 2 == 1, since as u32))
}

/// The first ping comes in the next interval.
pub(super) fn begin_pings(clients: &mut Clients, slot: u32) {
    let is_odd = place(clients, slot).is_some_and(|(is_odd, _)| is_odd);
    set_odd(clients, slot, is_odd);
}

fn set_odd(clients: &mut Clients, slot: u32, is_odd: bool) {
    let options = &mut clients.conns.get_mut(slot).consumer.options;
    *options &= !ODD_PING;
    *options |= ODD_PING * u32::from(is_odd);
}

/// Called once a second.
pub(super) fn centrifugo_second<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    collapse(&mut clients.conns, slot);
    let row = clients.conns.get(slot);
    let Some((is_odd, since_s)) = place(clients, slot).filter(|_| row.has_option(CONNECTED)) else {
        return;
    };
    let is_due = is_odd != row.has_option(ODD_PING);
    let is_late = since_s >= clients.ctx.world.settings.centrifugo.pong_timeout_s;
    // While bytes wait in either direction, the server does not read the pong. Other limits apply then.
    let reads =
        row.link.outbox == NONE && row.link.unprocessed_input == NONE && !row.link.has(PAUSED);
    if row.has_option(AWAITS_PONG) && (is_due || is_late) {
        if reads {
            let code = Disconnect::NO_PONG;
            return end_saying(clients, slot, code, code.text, io);
        }
        clients.conns.get_mut(slot).consumer.options &= !AWAITS_PONG;
    }
    if is_due {
        set_odd(clients, slot, is_odd);
        // A ping that comes late in its interval would leave too little time for its pong. A client that only listens has none.
        if since_s <= ON_TIME_S && !clients.conns.get(slot).has_option(ONE_WAY) {
            clients.conns.get_mut(slot).consumer.options |= AWAITS_PONG;
        }
        write_ping(clients, slot);
        clients.send_reply(slot, io);
    }
}

//! Sends pings to clients, and ends connections that do not answer them.
//!
//! A client expects a ping in each interval, whatever else it gets. The second of a connection's pings is computed from its slot. So no connection needs memory
//! for it, and the pings of connections that began together are spread over the interval.

use crore_wire::centrifugo::codes::Disconnect;

use crate::client::list::move_to_row;
use crate::client::row::PAUSED;
use crate::io::Io;
use crate::protocol::centrifugo::close::end_with_text;
use crate::protocol::centrifugo::options::{AWAITS_PONG, CONNECTED, ODD_PING, ONE_WAY};
use crate::protocol::centrifugo::reply::write_ping;
use crate::protocol::front::Clients;
use crate::store::slab::NONE;

/// A ping is on time up to this second of its interval. Each connection is checked once a second.
const ON_TIME_S: u32 = 1;

/// The current interval of a connection: whether its number is odd, and the seconds since it began. `None` without pings.
fn current_interval(clients: &Clients, slot: u32) -> Option<(bool, u32)> {
    let interval_s = clients.ctx.world.settings.centrifugo.ping_interval_s;
    if interval_s == 0 {
        return None;
    }
    let spread = slot.wrapping_mul(0x9E37_79B9) >> 16;
    let spread_second = u64::from(clients.ctx.now.s) + u64::from(spread % interval_s);
    let (number, since_ping) = (
        spread_second / u64::from(interval_s),
        spread_second % u64::from(interval_s),
    );
    Some((number % 2 == 1, since_ping as u32))
}

/// Begins the pings of a connection. The first one is sent in the next interval.
pub(super) fn begin_pings(clients: &mut Clients, slot: u32) {
    let is_odd = current_interval(clients, slot).is_some_and(|(is_odd, _)| is_odd);
    set_odd(clients, slot, is_odd);
}

fn set_odd(clients: &mut Clients, slot: u32, is_odd: bool) {
    let options = &mut clients.conns.get_mut(slot).consumer.options;
    *options &= !ODD_PING;
    *options |= ODD_PING * u32::from(is_odd);
}

/// Called once a second: sends a ping if it is due, and ends the connection if a pong is late.
pub(super) fn centrifugo_each_second<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    move_to_row(&mut clients.conns, slot);
    let row = clients.conns.get(slot);
    let Some((is_odd, since_s)) =
        current_interval(clients, slot).filter(|_| row.has_option(CONNECTED))
    else {
        return;
    };
    let is_due = is_odd != row.has_option(ODD_PING);
    let is_late = since_s >= clients.ctx.world.settings.centrifugo.pong_timeout_s;
    // While bytes wait in either direction, the server does not read the pong. Other limits apply then.
    let is_reading =
        row.link.outbox == NONE && row.link.unprocessed_input == NONE && !row.link.has(PAUSED);
    if row.has_option(AWAITS_PONG) && (is_due || is_late) {
        if is_reading {
            let code = Disconnect::NO_PONG;
            return end_with_text(clients, slot, code, code.text, io);
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

//! The part of the contract that the clients' side asks for: see [`Protocols`], which says what each question means.

use crate::base::access::Identity;
use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::base::time::Now;
use crate::client::progress::Allowance;
use crate::client::protocols::{Holds, Protocols};
use crate::client::row::{SERVED, State};
use crate::client::types::ProtocolTypes;
use crate::home::Home;
use crate::io::{Close, Io};
use crate::protocol::encode::Encoding;
use crate::protocol::front::{AllProtocols, Front};
use crate::protocol::http::options::FOLLOWS;
use crate::protocol::mqtt::state::{MqttRow, Subscribed};
use crate::protocol::own::Own;
use crate::protocol::side::{Side, Spill};
use crate::store::slab::NONE;

impl ProtocolTypes for AllProtocols {
    type Spill = Spill;
    type Held = Side;
    type Subscribed = Subscribed;
    type Row = MqttRow;
    type Own = Own;
    type Encoding = Encoding;

    fn own(now: Now) -> Own {
        Own::new(now)
    }
}

impl Protocols for AllProtocols {
    fn resume<I: Io>(front: &mut Front, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        match front.conns.get(conn.slot).state {
            State::Http => front.http_resume(conn, home, io),
            State::Waiting => front.request_resume(conn.slot, home, io),
            State::Sse | State::WebSocket => front.stream_resume(conn, home, io),
            State::Mqtt => front.mqtt_resume(conn.slot, home, io),
            State::Proxy | State::Poll | State::Draining => {}
        }
    }

    fn sent_all(front: &mut Front, slot: u32) {
        match front.conns.get(slot).state {
            State::Http | State::Mqtt => front.resume_later(front.conns.id_of(slot)),
            State::Sse | State::WebSocket => front.catch_up(slot),
            State::Proxy | State::Waiting | State::Poll | State::Draining => {}
        }
    }

    fn silent_until_s(front: &Front, slot: u32) -> u32 {
        match front.conns.get(slot).state {
            State::Http => front.now.s + front.world.settings.timeouts.keep_alive_s,
            State::Mqtt => front.keep_alive_end_s(slot),
            State::Proxy
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => 0,
        }
    }

    fn deadline_passed<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let row = front.conns.get_mut(slot);
        match row.state {
            State::Http if row.spill == NONE && row.is(SERVED) => front.shut(slot, io),
            State::Http | State::WebSocket => _ = front.end_for(slot, Reason::TooSlow, io),
            State::Poll => front.end_poll(slot, io),
            State::Waiting | State::Sse => row.deadline_s = 0,
            State::Mqtt => front.mqtt_deadline(slot, io),
            State::Proxy | State::Draining => {
                front.because(Closed::Timeout);
                front.drop_conn(slot, Close::Now, io);
            }
        }
    }

    fn is_held(front: &Front, slot: u32) -> bool {
        match front.conns.get(slot).state {
            State::Mqtt => true,
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => {
                front.has_batch(slot)
                    || match front.conns.spill(slot) {
                        Some(Spill::Http(spill)) => spill.held,
                        Some(Spill::Frames(..) | Spill::Mqtt(..)) => true,
                        Some(Spill::WebSocket(..)) | None => false,
                    }
            }
        }
    }

    fn holds(front: &Front, slot: u32) -> Holds {
        match front.conns.get(slot).state {
            State::Poll => Holds::Pipelined,
            State::Http | State::WebSocket | State::Mqtt => Holds::Input,
            State::Proxy | State::Waiting | State::Sse | State::Draining => Holds::Other,
        }
    }

    fn partial_of(front: &Front, slot: u32) -> (usize, u64) {
        match front.conns.get(slot).state {
            // A packet may be spread over frames.
            State::Mqtt => front.mqtt_part(slot),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => (0, 0),
        }
    }

    fn input_lags(front: &mut Front, slot: u32, allowance: Allowance) -> bool {
        let state = front.conns.get(slot).state;
        let is_mqtt = state == State::Mqtt;
        if is_mqtt && front.mqtt_must_wait(slot) {
            return false;
        }
        // Bytes of a frame whose packet began in an earlier one.
        let mut came = 0;
        if let Some(spill) = front.conns.spill_mut(slot) {
            let slow = match spill {
                Spill::Http(spill) => {
                    let in_body = spill.judged && state == State::Http;
                    in_body && spill.progress.second(spill.data.len(), allowance)
                }
                Spill::WebSocket(partial, progress) => {
                    came = partial.received_bytes();
                    progress.second(came, allowance)
                }
                Spill::Mqtt(data, progress) => progress.second(data.rest().len(), allowance),
                Spill::Frames(..) => false,
            };
            if slow {
                return true;
            }
        }
        is_mqtt && front.mqtt_part_is_slow(slot, came, allowance)
    }

    fn drop_pipelined<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        front.forget_pipelined(slot, io);
    }

    fn verdict_came(front: &mut Front, conn: ConnId, who: Identity) {
        match front.conns.get(conn.slot).state {
            State::Waiting => front.http_verdict(conn, who),
            State::Mqtt => front.mqtt_verdict(conn, who),
            State::Proxy
            | State::Http
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => {}
        }
    }

    fn settings_changed<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        match front.conns.get(slot).state {
            State::Waiting | State::Poll | State::Sse | State::WebSocket => {
                let may = front.may_follow(slot).and_then(|()| front.may_keep(slot));
                may.is_err_and(|denied| front.end_for(slot, denied, io))
            }
            State::Mqtt => front.mqtt_review(slot, io),
            State::Proxy | State::Http | State::Draining => false,
        }
    }

    fn end_for<I: Io>(front: &mut Front, slot: u32, reason: Reason, io: &mut I) -> bool {
        match front.conns.get(slot).state {
            State::Proxy => front.proxy_end_for(slot, reason, io),
            State::Http => front.http_end_for(slot, reason, io),
            State::Waiting => front.waiting_end_for(slot, reason, io),
            State::Poll => front.poll_end_for(slot, reason, io),
            State::Sse | State::WebSocket => front.stream_end_for(slot, reason, io),
            State::Mqtt => front.mqtt_end_for(slot, reason, io),
            State::Draining => front.draining_end_for(slot, reason, io),
        }
    }

    fn relieve<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let row = front.conns.get(slot);
        match row.state {
            // It has no request under way.
            State::Http if row.spill == NONE && row.outbox == NONE => front.shut(slot, io),
            // A publish is on its way, and its answer comes soon: the bytes pipelined behind it are dropped.
            State::Waiting if !front.is_subscribing(slot) && !front.is_judged(slot) => {
                front.forget_pipelined(slot, io);
            }
            _ => _ = front.end_for(slot, Reason::MemoryFull, io),
        }
    }

    fn leaves(front: &mut Front, slot: u32) {
        front.drop_batch(slot);
        let row = front.conns.get_mut(slot);
        if row.own != NONE {
            return front.end_session(slot);
        }
        if row.wants(FOLLOWS) {
            row.options &= !FOLLOWS;
            front.unfollow(slot);
        }
    }

    fn dropped(front: &mut Front, slot: u32) {
        front.drop_partial(slot);
    }
}

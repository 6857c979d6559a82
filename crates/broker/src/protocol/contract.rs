//! Names the types of this server's protocols for the code that all protocols share.
//!
//! Each protocol implements [`Protocol`](crate::client::protocols::Protocol) in its folder, with only the functions that differ from the defaults. Requests do
//! so in `requests.rs` beside this file, because they begin streams and polls, and end as them.

use crate::base::reason::Reason;
use crate::base::time::Now;
use crate::budget::stats::Transport;
use crate::client::protocols::{Protocols, protocol_of};
use crate::client::row::Row;
use crate::client::types::ProtocolTypes;
use crate::io::CloseMode;
use crate::mail::Frames;
use crate::protocol::centrifugo::close::drop_held;
use crate::protocol::centrifugo::contract::Centrifugo;
use crate::protocol::centrifugo::join_leave::end_all_pushes;
use crate::protocol::centrifugo::user_channels::uncount_all_channels;
use crate::protocol::encode::Encoding;
use crate::protocol::front::{AllProtocols, Clients, Front, SubscriptionState};
use crate::protocol::http::options::FOLLOWS;
use crate::protocol::http::publish::batch::drop_batch;
use crate::protocol::http2::contract::Http2;
use crate::protocol::mqtt::contract::Mqtt;
use crate::protocol::mqtt::packets::drop_partial_packet;
use crate::protocol::mqtt::state::MqttRow;
use crate::protocol::pusher::contract::Pusher;
use crate::protocol::pusher::presence::end_all_memberships;
use crate::protocol::requests::Request;
use crate::protocol::run::encode_once;
use crate::protocol::shard_state::ShardState;
use crate::protocol::side::{Side, Spill};
use crate::protocol::stream::contract::Stream;
use crate::protocol::stream::interest::unfollow;
use crate::store::slab::NONE;

impl ProtocolTypes for AllProtocols {
    type UnprocessedInput = Spill;
    type SideState = Side;
    type SubscriptionState = SubscriptionState;
    type ProtocolRow = MqttRow;
    type ShardState = ShardState;
    type Encoding = Encoding;

    fn new_shard_state(now: Now) -> ShardState {
        ShardState::new(now)
    }
}

impl Protocols for AllProtocols {
    type Request = Request;
    type Stream = Stream;
    type Mqtt = Mqtt;
    type Centrifugo = Centrifugo;
    type Pusher = Pusher;
    type Http2 = Http2;

    fn encode_once(front: &mut Front, form: Encoding, topic: u32, frames: &Frames) {
        let (topics, feed) = (&front.subs.topics, &mut front.feed);
        encode_once(topics, feed, &mut front.clients, form, topic, frames);
    }

    fn connection_ends(front: &mut Front, slot: u32) {
        for stream in front.clients.conns.end_link(slot) {
            front.clients.drop_connection(stream, CloseMode::Now);
        }
        drop_batch(&mut front.clients.conns, slot);
        let row = front.clients.conns.get_mut(slot);
        if row.consumer.protocol_row != NONE {
            front.end_session(slot);
        } else if row.has_option(FOLLOWS) {
            row.consumer.options &= !FOLLOWS;
            unfollow(&mut front.clients, &mut front.subs.lanes, slot);
        }
        end_all_pushes(&mut front.clients, &mut front.subs.lanes, slot);
        uncount_all_channels(&mut front.clients, slot);
        end_all_memberships(&mut front.clients, &mut front.subs.lanes, slot);
        drop_partial_packet(&mut front.clients, slot);
        drop_held(&mut front.clients, slot);
    }
}

impl Clients {
    /// Counts a refusal, by reason and transport. All code that refuses something must call this.
    pub(crate) fn refused(&mut self, slot: u32, reason: Reason) {
        let transport = self.conns.get(slot).transport();
        self.meter.stats.refusals.add(reason, transport);
    }
}

impl Row {
    /// The transport that the connection is counted for.
    pub fn transport(&self) -> Transport {
        protocol_of!(AllProtocols, self.consumer.state, transport(self))
    }
}

//! The protocols' state of a connection in side rows (entries outside the connection's row), which exist only while they are
//! needed.

use alloc::boxed::Box;

use crore_wire::websocket::receive::Partial;

use crate::client::progress::{Allowance, Progress};
use crate::client::types::{self, UnprocessedInput};
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::centrifugo::state::CentrifugoState;
use crate::protocol::front::Connections;
use crate::protocol::http::filter_response::PendingFilterResponse;
use crate::protocol::http::state::{
    Batch, FollowProgress, HeldItem, HttpSpill, PendingAnswer, PendingResponse, PresenceRequest,
    PublishTarget,
};
use crate::protocol::mqtt::state::MqttState;
use crate::protocol::pusher::state::PusherState;

/// Received input that is incomplete, or waits.
pub enum Spill {
    /// The received part of an HTTP request, or pipelined requests.
    Http(HttpSpill),
    /// The received part of a WebSocket frame, or of a fragmented message.
    WebSocket(Box<Partial>, Progress),
    /// WebSocket frames that wait for credit or for the next turn, after a partly received message if there is one.
    Frames(Option<Box<Partial>>, SpillBuffer, Progress),
    /// MQTT packets.
    Mqtt(SpillBuffer, Progress),
    /// Frames of HTTP/2: the received part of a frame, or frames that wait for the next turn or for the socket.
    Http2(SpillBuffer, Progress),
}

impl Default for Spill {
    fn default() -> Self {
        Spill::Http(HttpSpill::default())
    }
}

impl UnprocessedInput for Spill {
    fn is_waiting(&self) -> bool {
        match self {
            Spill::Http(spill) => spill.is_held,
            Spill::Frames(..) | Spill::Mqtt(..) => true,
            Spill::WebSocket(..) | Spill::Http2(..) => false,
        }
    }

    fn count_second(&mut self, allowance: Allowance) -> bool {
        match self {
            // A head has a deadline instead.
            Spill::Http(spill) => {
                spill.is_judged && spill.progress.count_second(spill.data.len(), allowance)
            }
            Spill::WebSocket(partial, progress) => {
                progress.count_second(partial.received_bytes(), allowance)
            }
            Spill::Mqtt(data, progress) | Spill::Http2(data, progress) => {
                progress.count_second(data.rest().len(), allowance)
            }
            Spill::Frames(..) => false,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Spill::Http(spill) => spill.bytes(),
            Spill::WebSocket(partial, _) => partial.buffered_bytes(),
            Spill::Mqtt(data, _) | Spill::Http2(data, _) => data.bytes(),
            Spill::Frames(partial, data, _) => {
                partial.as_ref().map_or(0, |held| held.buffered_bytes()) + data.bytes()
            }
        }
    }

    fn bytes_behind(&self) -> u64 {
        let progress = match self {
            Spill::Http(spill) => &spill.progress,
            Spill::WebSocket(_, progress)
            | Spill::Mqtt(_, progress)
            | Spill::Http2(_, progress)
            | Spill::Frames(_, _, progress) => progress,
        };
        progress.bytes_behind()
    }
}

/// The protocols' state in the side row of a connection.
#[derive(Default)]
pub struct Side {
    /// The response to a subscribe request by topic, until it begins.
    pub pending_response: Option<Box<PendingResponse>>,
    /// The topic that the client's frames are published to.
    pub publish_to: Option<PublishTarget>,
    /// The request whose answer the client waits for.
    pub pending_answer: Option<PendingAnswer>,
    /// The client's request to follow which topics have subscribers.
    pub follow_progress: Option<Box<FollowProgress>>,
    /// The response to a subscribe request by filter, until it begins.
    pub filter_response: Option<Box<PendingFilterResponse>>,
    /// The state of an MQTT client.
    pub mqtt: Option<Box<MqttState>>,
    /// The state of a client of a protocol with channels.
    pub channels: Option<Box<ChannelsState>>,
}

/// The state of a client of a protocol with channels. A connection speaks one of them.
pub enum ChannelsState {
    /// Centrifugo's protocol.
    Centrifugo(CentrifugoState),
    /// Pusher's protocol.
    Pusher(PusherState),
}

impl ChannelsState {
    fn is_idle(&self) -> bool {
        match self {
            ChannelsState::Centrifugo(state) => state.is_idle(),
            ChannelsState::Pusher(state) => state.is_idle(),
        }
    }

    /// The bytes of the state and its heap.
    fn bytes(&self) -> usize {
        let heap_bytes = match self {
            ChannelsState::Centrifugo(state) => state.heap_bytes(),
            ChannelsState::Pusher(state) => state.heap_bytes(),
        };
        size_of::<ChannelsState>() + heap_bytes
    }
}

impl Side {
    /// The state of a client of Centrifugo's protocol, if there is any.
    pub fn centrifugo(&self) -> Option<&CentrifugoState> {
        match self.channels.as_deref()? {
            ChannelsState::Centrifugo(state) => Some(state),
            ChannelsState::Pusher(_) => None,
        }
    }

    /// The state of a client of Centrifugo's protocol, made if necessary.
    pub fn centrifugo_mut(&mut self) -> &mut CentrifugoState {
        let make = || ChannelsState::Centrifugo(CentrifugoState::default());
        match self.channels_mut(|it| matches!(it, ChannelsState::Centrifugo(_)), make) {
            ChannelsState::Centrifugo(state) => state,
            ChannelsState::Pusher(_) => unreachable!("a connection speaks one protocol"),
        }
    }

    /// The state of a client of Pusher's protocol, if there is any.
    pub fn pusher(&self) -> Option<&PusherState> {
        match self.channels.as_deref()? {
            ChannelsState::Pusher(state) => Some(state),
            ChannelsState::Centrifugo(_) => None,
        }
    }

    /// The state of a client of Pusher's protocol, made if necessary.
    pub fn pusher_mut(&mut self) -> &mut PusherState {
        let make = || ChannelsState::Pusher(PusherState::default());
        match self.channels_mut(|it| matches!(it, ChannelsState::Pusher(_)), make) {
            ChannelsState::Pusher(state) => state,
            ChannelsState::Centrifugo(_) => unreachable!("a connection speaks one protocol"),
        }
    }

    fn channels_mut(
        &mut self,
        is_wanted: impl FnOnce(&ChannelsState) -> bool,
        make: impl FnOnce() -> ChannelsState,
    ) -> &mut ChannelsState {
        if !self.channels.as_deref().is_some_and(is_wanted) {
            self.channels = None;
        }
        self.channels.get_or_insert_with(|| Box::new(make()))
    }
}

impl types::SideState for Side {
    fn bytes(&self) -> usize {
        let pending_response = self.pending_response.as_ref().map_or(0, |it| {
            size_of::<PendingResponse>()
                + it.head.capacity()
                + it.body.own.capacity()
                + it.frames.own_bytes()
                + it.held.capacity() * size_of::<HeldItem>()
        });
        pending_response
            + match &self.pending_answer {
                Some(PendingAnswer::History(bytes) | PendingAnswer::Info(bytes)) => bytes.len(),
                Some(PendingAnswer::Presence(request)) => {
                    size_of::<PresenceRequest>() + request.name.len() + request.tags.len()
                }
                Some(PendingAnswer::Batch(batch)) => size_of::<Batch>() + batch.own_bytes(),
                _ => 0,
            }
            + (self.publish_to.as_ref()).map_or(0, |to| to.name.len())
            + (self.follow_progress.as_ref())
                .map_or(0, |it| size_of::<FollowProgress>() + it.filter.capacity())
            + self.mqtt.as_ref().map_or(0, |mqtt| mqtt.bytes())
            + (self.channels.as_ref()).map_or(0, |channels| channels.bytes())
            + self.filter_response.as_ref().map_or(0, |it| it.own_bytes())
    }

    fn shared_weight(&self) -> usize {
        let pending_response = self.pending_response.as_ref();
        let filter_response = self.filter_response.as_ref();
        pending_response.map_or(0, |it| it.frames.large_weight() + it.body.shared_weight())
            + filter_response.map_or(0, |filter_response| filter_response.large_weight())
            + self.mqtt.as_ref().map_or(0, |mqtt| mqtt.shared_bytes())
    }

    fn pending_answers(&self) -> usize {
        let mqtt = self.mqtt.as_ref();
        mqtt.map_or(0, |mqtt| mqtt.repeated_entries.len())
    }

    fn member_of(&self, topic: u32) -> Option<(&[u8], &[u8])> {
        self.pusher()?.member_of(topic)
    }

    /// Whether no protocol needs its state. An MQTT client needs it, for example, while it waits for answers or has messages to acknowledge, a client of
    /// Centrifugo's protocol while its commands wait.
    fn is_idle(&self) -> bool {
        let channels = self.channels.as_ref();
        self.mqtt.as_ref().is_none_or(|mqtt| mqtt.is_idle())
            && channels.is_none_or(|channels| channels.is_idle())
    }
}

impl Connections {
    /// The response to a subscribe request by topic that has not begun, in the side row, which is created if needed.
    pub(crate) fn pending_response_mut(&mut self, slot: u32) -> &mut Option<Box<PendingResponse>> {
        &mut self.ensure_side_row(slot).protocol_state.pending_response
    }

    /// The response to a subscribe request by filter that has not begun, in the side row, which is created if needed.
    pub(crate) fn filter_response_mut(
        &mut self,
        slot: u32,
    ) -> &mut Option<Box<PendingFilterResponse>> {
        &mut self.ensure_side_row(slot).protocol_state.filter_response
    }
}

//! Channels and their topics. Within the broker everything has the topic's name: the reader of commands and tokens exchanges the names of channels, and whatever
//! writes to clients or asks the backend exchanges them back.

use crore_wire::centrifugo::ChannelNames;

use crate::budget::world::World;

/// How the names of channels become those of topics, and back.
pub fn channel_names(world: &World) -> ChannelNames {
    match world.settings.centrifugo.colon_for_slash {
        true => ChannelNames::ColonForSlash,
        false => ChannelNames::Same,
    }
}

//! Builds sets of properties for the encoders.
//!
//! The decoder accepts the built set in every packet type that may have these properties. Two rules are not checked here:
//! Authentication Data needs an Authentication Method, and a SUBSCRIBE has at most one Subscription Identifier.

use super::base::{FIELD_MAX, Qos, REMAINING_LENGTH_MAX, USER_PROPERTIES_MAX};
use super::property_set::Properties;
use super::property_set::is_topic_name;
use super::property_table::Property as P;
use super::write;
use alloc::vec::Vec;

/// The value was not written: a field is longer than [`FIELD_MAX`], a text contains a null character, or the set already has
/// [`USER_PROPERTIES_MAX`] user properties, which is a limit of this codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("the value does not fit into an MQTT property")]
pub struct Unencodable;

impl core::error::Error for Unencodable {}

/// Builds a set of properties. One builder can serve many packets, with a [`clear`](Self::clear) between them.
///
/// # Panics
/// On a mistake of the caller: a second value for a property that may occur once, zero where the specification forbids it, a subscription
/// identifier of more than 28 bits, or a response topic with wildcards.
#[derive(Clone, Debug, Default)]
pub struct PropertyWriter {
    bytes: Vec<u8>,
    present: u64,
    user_property_count: usize,
}

impl PropertyWriter {
    /// An empty set.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            present: 0,
            user_property_count: 0,
        }
    }

    /// The properties written so far.
    pub fn properties(&self) -> Properties<'_> {
        Properties {
            bytes: &self.bytes,
            present: self.present,
        }
    }

    /// Removes all properties and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.present = 0;
        self.user_property_count = 0;
    }

    /// Copies the properties that a server must forward unaltered: payload format indicator, response topic, correlation data, content
    /// type, and user properties in their order [MQTT-3.3.2-4, -15, -16, -17, -18, -20].
    ///
    /// Properties that this set already has are skipped, and so are user properties beyond [`USER_PROPERTIES_MAX`].
    pub fn forward(&mut self, from: &Properties<'_>) -> &mut Self {
        for (property, encoded) in from.iter() {
            match property {
                P::UserProperty if self.user_property_count < USER_PROPERTIES_MAX => {
                    self.user_property_count += 1
                }
                P::PayloadFormatIndicator
                | P::ResponseTopic
                | P::CorrelationData
                | P::ContentType
                    if !self.properties().has(property) => {}
                _ => continue,
            }
            self.present |= property.bit();
            self.bytes.extend_from_slice(encoded);
        }
        self
    }

    /// Payload Format Indicator.
    pub fn payload_is_utf8(&mut self, yes: bool) -> &mut Self {
        self.push_byte(P::PayloadFormatIndicator, yes.into())
    }

    /// Message Expiry Interval in seconds.
    pub fn message_expiry_interval_s(&mut self, value: u32) -> &mut Self {
        self.push_u32(P::MessageExpiryInterval, value)
    }

    /// Content Type.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn content_type(&mut self, value: &str) -> Result<&mut Self, Unencodable> {
        self.push_text(P::ContentType, value)
    }

    /// Response Topic.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn response_topic(&mut self, value: &str) -> Result<&mut Self, Unencodable> {
        assert!(is_topic_name(value), "a response topic is a topic name");
        self.push_text(P::ResponseTopic, value)
    }

    /// Correlation Data.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn correlation_data(&mut self, value: &[u8]) -> Result<&mut Self, Unencodable> {
        self.push_binary(P::CorrelationData, value)
    }

    /// Subscription Identifier. A PUBLISH has one for each matching subscription.
    pub fn subscription_identifier(&mut self, value: u32) -> &mut Self {
        let is_valid = value != 0 && value as usize <= REMAINING_LENGTH_MAX;
        assert!(is_valid, "a subscription identifier has 28 bits");
        self.bytes.push(P::SubscriptionIdentifier.id());
        write::write_variable(&mut self.bytes, value as usize);
        self.present |= P::SubscriptionIdentifier.bit();
        self
    }

    /// Session Expiry Interval in seconds, `u32::MAX` for never.
    pub fn session_expiry_interval_s(&mut self, value: u32) -> &mut Self {
        self.push_u32(P::SessionExpiryInterval, value)
    }

    /// Assigned Client Identifier.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn assigned_client_identifier(&mut self, value: &str) -> Result<&mut Self, Unencodable> {
        self.push_text(P::AssignedClientIdentifier, value)
    }

    /// Server Keep Alive in seconds.
    pub fn server_keep_alive_s(&mut self, value: u16) -> &mut Self {
        self.push_u16(P::ServerKeepAlive, value)
    }

    /// Authentication Method.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn authentication_method(&mut self, value: &str) -> Result<&mut Self, Unencodable> {
        self.push_text(P::AuthenticationMethod, value)
    }

    /// Authentication Data.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn authentication_data(&mut self, value: &[u8]) -> Result<&mut Self, Unencodable> {
        self.push_binary(P::AuthenticationData, value)
    }

    /// Request Problem Information.
    pub fn request_problem_information(&mut self, yes: bool) -> &mut Self {
        self.push_byte(P::RequestProblemInformation, yes.into())
    }

    /// Request Response Information.
    pub fn request_response_information(&mut self, yes: bool) -> &mut Self {
        self.push_byte(P::RequestResponseInformation, yes.into())
    }

    /// Will Delay Interval in seconds.
    pub fn will_delay_interval_s(&mut self, value: u32) -> &mut Self {
        self.push_u32(P::WillDelayInterval, value)
    }

    /// Response Information.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn response_information(&mut self, value: &str) -> Result<&mut Self, Unencodable> {
        self.push_text(P::ResponseInformation, value)
    }

    /// Server Reference.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn server_reference(&mut self, value: &str) -> Result<&mut Self, Unencodable> {
        self.push_text(P::ServerReference, value)
    }

    /// Reason String.
    ///
    /// # Errors
    /// The value does not fit.
    pub fn reason_string(&mut self, value: &str) -> Result<&mut Self, Unencodable> {
        self.push_text(P::ReasonString, value)
    }

    /// Receive Maximum, not zero.
    pub fn receive_maximum(&mut self, value: u16) -> &mut Self {
        assert!(value != 0, "a receive maximum is not zero");
        self.push_u16(P::ReceiveMaximum, value)
    }

    /// Topic Alias Maximum.
    pub fn topic_alias_maximum(&mut self, value: u16) -> &mut Self {
        self.push_u16(P::TopicAliasMaximum, value)
    }

    /// Topic Alias, not zero.
    pub fn topic_alias(&mut self, value: u16) -> &mut Self {
        assert!(value != 0, "a topic alias is not zero");
        self.push_u16(P::TopicAlias, value)
    }

    /// Maximum QoS. For QoS 2 nothing is written, because an absent property means 2.
    pub fn maximum_qos(&mut self, value: Qos) -> &mut Self {
        match value {
            Qos::ExactlyOnce => self,
            _ => self.push_byte(P::MaximumQos, value.bits()),
        }
    }

    /// Retain Available.
    pub fn retain_available(&mut self, yes: bool) -> &mut Self {
        self.push_byte(P::RetainAvailable, yes.into())
    }

    /// Maximum Packet Size in bytes, not zero.
    pub fn maximum_packet_size_bytes(&mut self, value: u32) -> &mut Self {
        assert!(value != 0, "a maximum packet size is not zero");
        self.push_u32(P::MaximumPacketSize, value)
    }

    /// Wildcard Subscription Available.
    pub fn wildcard_subscription_available(&mut self, yes: bool) -> &mut Self {
        self.push_byte(P::WildcardSubscriptionAvailable, yes.into())
    }

    /// Subscription Identifiers Available.
    pub fn subscription_identifiers_available(&mut self, yes: bool) -> &mut Self {
        self.push_byte(P::SubscriptionIdentifierAvailable, yes.into())
    }

    /// Shared Subscription Available.
    pub fn shared_subscription_available(&mut self, yes: bool) -> &mut Self {
        self.push_byte(P::SharedSubscriptionAvailable, yes.into())
    }

    /// Adds a user property.
    ///
    /// # Errors
    /// The name or the value does not fit, or there are [`USER_PROPERTIES_MAX`] user properties already.
    pub fn user_property(&mut self, name: &str, value: &str) -> Result<&mut Self, Unencodable> {
        if !is_encodable(name)
            || !is_encodable(value)
            || self.user_property_count == USER_PROPERTIES_MAX
        {
            return Err(Unencodable);
        }
        self.user_property_count += 1;
        self.present |= P::UserProperty.bit();
        self.bytes.push(P::UserProperty.id());
        self.push_field(name.as_bytes());
        self.push_field(value.as_bytes());
        Ok(self)
    }

    fn assert_absent(&self, property: P) {
        assert!(!self.properties().has(property), "{property:?} comes once");
    }

    fn push_id(&mut self, property: P) {
        self.assert_absent(property);
        self.present |= property.bit();
        self.bytes.push(property.id());
    }

    fn push_byte(&mut self, property: P, value: u8) -> &mut Self {
        self.push_id(property);
        self.bytes.push(value);
        self
    }

    fn push_u16(&mut self, property: P, value: u16) -> &mut Self {
        self.push_id(property);
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn push_u32(&mut self, property: P, value: u32) -> &mut Self {
        self.push_id(property);
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn push_text(&mut self, property: P, value: &str) -> Result<&mut Self, Unencodable> {
        match is_encodable(value) {
            true => self.push_binary(property, value.as_bytes()),
            false => Err(Unencodable),
        }
    }

    fn push_binary(&mut self, property: P, value: &[u8]) -> Result<&mut Self, Unencodable> {
        if value.len() > FIELD_MAX {
            return Err(Unencodable);
        }
        self.push_id(property);
        self.push_field(value);
        Ok(self)
    }

    /// Writes Binary Data or text. The caller must have checked it with [`is_encodable`] or against [`FIELD_MAX`].
    fn push_field(&mut self, value: &[u8]) {
        write::write_field(&mut self.bytes, value);
    }
}

fn is_encodable(text: &str) -> bool {
    text.len() <= FIELD_MAX && memchr::memchr(0, text.as_bytes()).is_none()
}

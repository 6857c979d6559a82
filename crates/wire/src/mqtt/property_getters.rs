//! The getters of [`Properties`]. For an absent property a getter returns the default of the specification, if there is one.

use super::base::Qos;
use super::property_set::Properties;
use super::property_table::Property as P;

impl<'a> Properties<'a> {
    /// Whether the payload is declared to be UTF-8 text. If absent, it is not (sections 3.1.3.2.3, 3.3.2.3.2).
    pub fn payload_is_utf8(&self) -> bool {
        self.byte(P::PayloadFormatIndicator) == Some(1)
    }

    /// Payload Format Indicator as sent, 0 or 1 (section 3.3.2.3.2).
    pub fn payload_format_indicator(&self) -> Option<u8> {
        self.byte(P::PayloadFormatIndicator)
    }

    /// Message Expiry Interval in seconds; if absent, the message never expires (section 3.3.2.3.3).
    pub fn message_expiry_interval_s(&self) -> Option<u32> {
        self.u32(P::MessageExpiryInterval)
    }

    /// Content Type (section 3.3.2.3.9).
    pub fn content_type(&self) -> Option<&'a str> {
        self.text(P::ContentType)
    }

    /// Response Topic: a topic name without wildcards (section 3.3.2.3.5).
    pub fn response_topic(&self) -> Option<&'a str> {
        self.text(P::ResponseTopic)
    }

    /// Correlation Data (section 3.3.2.3.6).
    pub fn correlation_data(&self) -> Option<&'a [u8]> {
        self.binary(P::CorrelationData)
    }

    /// The Subscription Identifier of a SUBSCRIBE, from 1 on (section 3.8.2.1.2).
    pub fn subscription_identifier(&self) -> Option<u32> {
        self.subscription_identifiers().next()
    }

    /// The Subscription Identifiers of a PUBLISH, which only servers send (section 3.3.2.3.8).
    pub fn subscription_identifiers(&self) -> SubscriptionIdentifiers<'a> {
        SubscriptionIdentifiers(self.only(P::SubscriptionIdentifier))
    }

    /// Session Expiry Interval in seconds; `u32::MAX` means never. If absent, it is 0 in CONNECT and unchanged in CONNACK and DISCONNECT
    /// (sections 3.1.2.11.2, 3.2.2.3.2, 3.14.2.2.2).
    pub fn session_expiry_interval_s(&self) -> Option<u32> {
        self.u32(P::SessionExpiryInterval)
    }

    /// Assigned Client Identifier (section 3.2.2.3.7).
    pub fn assigned_client_identifier(&self) -> Option<&'a str> {
        self.text(P::AssignedClientIdentifier)
    }

    /// Server Keep Alive in seconds (section 3.2.2.3.14).
    pub fn server_keep_alive_s(&self) -> Option<u16> {
        self.u16(P::ServerKeepAlive)
    }

    /// Authentication Method (section 3.1.2.11.9).
    pub fn authentication_method(&self) -> Option<&'a str> {
        self.text(P::AuthenticationMethod)
    }

    /// Authentication Data; never present without a method (section 3.1.2.11.10).
    pub fn authentication_data(&self) -> Option<&'a [u8]> {
        self.binary(P::AuthenticationData)
    }

    /// Request Problem Information; yes if absent (section 3.1.2.11.7).
    pub fn request_problem_information(&self) -> bool {
        self.byte(P::RequestProblemInformation) != Some(0)
    }

    /// Request Response Information; no if absent (section 3.1.2.11.6).
    pub fn request_response_information(&self) -> bool {
        self.byte(P::RequestResponseInformation) == Some(1)
    }

    /// Will Delay Interval in seconds; 0 if absent (section 3.1.3.2.2).
    pub fn will_delay_interval_s(&self) -> u32 {
        self.u32(P::WillDelayInterval).unwrap_or(0)
    }

    /// Response Information (section 3.2.2.3.15).
    pub fn response_information(&self) -> Option<&'a str> {
        self.text(P::ResponseInformation)
    }

    /// Server Reference (section 3.2.2.3.16).
    pub fn server_reference(&self) -> Option<&'a str> {
        self.text(P::ServerReference)
    }

    /// Reason String (section 3.2.2.3.9).
    pub fn reason_string(&self) -> Option<&'a str> {
        self.text(P::ReasonString)
    }

    /// Receive Maximum, from 1 on; 65,535 if absent (section 3.1.2.11.3).
    pub fn receive_maximum(&self) -> u16 {
        self.u16(P::ReceiveMaximum).unwrap_or(u16::MAX)
    }

    /// Topic Alias Maximum; 0 if absent (section 3.1.2.11.5).
    pub fn topic_alias_maximum(&self) -> u16 {
        self.u16(P::TopicAliasMaximum).unwrap_or(0)
    }

    /// Topic Alias, from 1 on (section 3.3.2.3.4).
    pub fn topic_alias(&self) -> Option<u16> {
        self.u16(P::TopicAlias)
    }

    /// Maximum QoS; 2 if absent (section 3.2.2.3.4).
    pub fn maximum_qos(&self) -> Qos {
        match self.byte(P::MaximumQos) {
            Some(0) => Qos::AtMostOnce,
            Some(_) => Qos::AtLeastOnce,
            None => Qos::ExactlyOnce,
        }
    }

    /// Retain Available; yes if absent (section 3.2.2.3.5).
    pub fn retain_available(&self) -> bool {
        self.byte(P::RetainAvailable) != Some(0)
    }

    /// Maximum Packet Size in bytes, from 1 on, including the fixed header. If absent, only the limit of the protocol applies (section
    /// 3.1.2.11.4).
    pub fn maximum_packet_size_bytes(&self) -> Option<u32> {
        self.u32(P::MaximumPacketSize)
    }

    /// Wildcard Subscription Available; yes if absent (section 3.2.2.3.11).
    pub fn wildcard_subscription_available(&self) -> bool {
        self.byte(P::WildcardSubscriptionAvailable) != Some(0)
    }

    /// Subscription Identifiers Available; yes if absent (section 3.2.2.3.12).
    pub fn subscription_identifiers_available(&self) -> bool {
        self.byte(P::SubscriptionIdentifierAvailable) != Some(0)
    }

    /// Shared Subscription Available; yes if absent (section 3.2.2.3.13).
    pub fn shared_subscription_available(&self) -> bool {
        self.byte(P::SharedSubscriptionAvailable) != Some(0)
    }

    /// User properties (names and values) in their order (section 3.3.2.3.7).
    pub fn user_properties(&self) -> UserProperties<'a> {
        UserProperties(self.only(P::UserProperty))
    }

    /// The set, for a search for `property`. Empty if the property is absent.
    fn only(&self, property: P) -> Properties<'a> {
        match self.has(property) {
            true => *self,
            false => Properties::NONE,
        }
    }
}

/// The iterator of [`Properties::user_properties`].
#[derive(Clone, Debug)]
pub struct UserProperties<'a>(Properties<'a>);

impl<'a> Iterator for UserProperties<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let mut value = self.0.advance(P::UserProperty)?;
        Some((value.text().ok()?, value.text().ok()?))
    }
}

/// The iterator of [`Properties::subscription_identifiers`].
#[derive(Clone, Debug)]
pub struct SubscriptionIdentifiers<'a>(Properties<'a>);

impl Iterator for SubscriptionIdentifiers<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let mut value = self.0.advance(P::SubscriptionIdentifier)?;
        value.variable().ok()
    }
}
